"""The compiled kernel: the only door between C++ and Python (see kernel/bind.cpp)."""

from typing import Any

# The rule who may attend what, and how a score is made: thirteen values, in Call.rule's order.
def forward(
    query: Any,
    key: Any,
    value: Any,
    output: Any,
    lse: Any | None,
    scale: float,
    softcap: float,
    mask: Any | None,
    bias: Any | None,
    sinks: Any | None,
    lower: Any | None,
    upper: Any | None,
    lengths: Any | None,
    first: Any | None,
    past: Any | None,
    query_segments: Any | None,
    key_segments: Any | None,
    row_offset: int,
    dropout: float,
    seed: int,
    high: bool,
) -> int: ...
def forward_tensors(
    query: Any, key: Any, value: Any, output: Any, scale: float, causal: bool, grouped: bool
) -> None: ...
def forward_arrays(
    query: Any, key: Any, value: Any, output: Any, scale: float, causal: bool
) -> None: ...
def tile(
    what: str,
    query: Any,
    key: Any,
    lse: Any | None,
    out: Any,
    row_begin: int,
    key_begin: int,
    scale: float,
    softcap: float,
    mask: Any | None,
    bias: Any | None,
    sinks: Any | None,
    lower: Any | None,
    upper: Any | None,
    lengths: Any | None,
    first: Any | None,
    past: Any | None,
    query_segments: Any | None,
    key_segments: Any | None,
    row_offset: int,
) -> int: ...
def backward(
    query: Any,
    key: Any,
    value: Any,
    output: Any,
    lse: Any,
    grad_output: Any,
    grad_lse: Any | None,
    grad_query: Any,
    grad_key: Any,
    grad_value: Any,
    grad_bias: Any | None,
    grad_sinks: Any | None,
    scale: float,
    softcap: float,
    mask: Any | None,
    bias: Any | None,
    sinks: Any | None,
    lower: Any | None,
    upper: Any | None,
    lengths: Any | None,
    first: Any | None,
    past: Any | None,
    query_segments: Any | None,
    key_segments: Any | None,
    row_offset: int,
    dropout: float,
    seed: int,
) -> None: ...
def sums(
    query: Any,
    key: Any,
    lse: Any,
    real: Any | None,
    received: Any,
    seen: Any,
    along: Any,
    met: Any,
    entropy: Any,
    row_ids: Any | None,
    key_ids: Any | None,
    same: Any | None,
    weights: Any | None,
    positions: Any | None,
    total: Any | None,
    largest: Any | None,
    count: Any | None,
    scale: float,
    softcap: float,
    mask: Any | None,
    bias: Any | None,
    sinks: Any | None,
    lower: Any | None,
    upper: Any | None,
    lengths: Any | None,
    first: Any | None,
    past: Any | None,
    query_segments: Any | None,
    key_segments: Any | None,
    row_offset: int,
) -> None: ...
def top(
    query: Any,
    key: Any,
    lse: Any,
    real: Any | None,
    received: Any | None,
    seen: Any | None,
    along: Any | None,
    met: Any | None,
    weights: Any,
    positions: Any,
    scale: float,
    softcap: float,
    mask: Any | None,
    bias: Any | None,
    sinks: Any | None,
    lower: Any | None,
    upper: Any | None,
    lengths: Any | None,
    first: Any | None,
    past: Any | None,
    query_segments: Any | None,
    key_segments: Any | None,
    row_offset: int,
) -> None: ...
def map(
    query: Any,
    key: Any,
    lse: Any,
    real: Any | None,
    total: Any,
    largest: Any,
    count: Any,
    scale: float,
    softcap: float,
    mask: Any | None,
    bias: Any | None,
    sinks: Any | None,
    lower: Any | None,
    upper: Any | None,
    lengths: Any | None,
    first: Any | None,
    past: Any | None,
    query_segments: Any | None,
    key_segments: Any | None,
    row_offset: int,
) -> None: ...

# Capsules of XLA's custom calls (see kernel/ffi.cpp).
xla_forward: Any
xla_backward: Any

def calls() -> tuple[int, int, int]: ...  # forward, backward, tile: how often each ran
def threads() -> int: ...
def set_threads(count: int) -> None: ...
def join_team() -> None: ...
def kernels() -> list[str]: ...
def kernel() -> str: ...
def use_kernel(name: str) -> None: ...
