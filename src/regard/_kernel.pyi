"""The compiled kernel: the only door between C++ and Python (see kernel/bind.cpp)."""

from typing import Any

# The rule who may attend what, and how a score is made: thirteen values, in Call.rule's order.
def forward(
    query: Any,
    key: Any,
    value: Any,
    output: Any,
    lse: Any,
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
) -> int: ...
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
def calls() -> tuple[int, int, int]: ...  # forward, backward, tile: how often each ran
def threads() -> int: ...
def set_threads(count: int) -> None: ...
def kernels() -> list[str]: ...
def kernel() -> str: ...
def use_kernel(name: str) -> None: ...
