"""Who is measured. A peer is a function that makes a problem ready and gives a call.

Inputs are brought into the peer's own layout and graphs are compiled beforehand: a call is what
users would wait for. Each peer lives in a process of its own (bench/apart.py), which alone imports
its module. `Cannot` says what a peer does not offer.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from bench.problems import Array, Problem


class Cannot(Exception):  # noqa: N818, it is no error
    """Why a peer has no answer to a problem."""


class Ready(NamedTuple):
    """A call, and how its answer is read: as arrays (B, H, T, D), gradients of them likewise."""

    call: Callable[[], Any]
    arrays: Callable[[Any], list[Array]]


# name -> module and function; "regard" is what the others are compared with.
PEERS = {
    "regard": ("ours", "numpy"),
    "regard from torch": ("ours", "torch"),
    "regard + top 8": ("ours", "top"),
    "regard + all looks": ("ours", "looks"),
    "torch": ("pytorch", "plain"),
    "torch enable_gqa": ("pytorch", "enable_gqa"),
    "torch folded rows": ("pytorch", "folded"),
    "torch by pieces": ("pytorch", "pieces"),
    "torch flex": ("pytorch", "flex"),
    "onnxruntime": ("onnx", "onnxruntime"),
    "jax.nn": ("jaxed", "nn"),
    "keras, tensorflow": ("kerased", "tensorflow"),
    "keras, jax": ("kerased", "jax"),
    "numpy": ("plain", "numpy"),
}
# Left out in a hurry: the one compiles for half a minute, the other is jax.nn by another name.
SLOW = {"torch flex", "keras, jax"}


def find(name: str) -> Callable[[Problem], Ready]:
    """Import a peer; whoever calls this should be a process of its own."""
    module, function = PEERS[name]
    peer: Callable[[Problem], Ready] = getattr(import_module(f"bench.peers.{module}"), function)
    return peer


def heads_last(array: Array) -> Array:
    """(B, H, T, D) as (B, T, H, D), which some libraries want."""
    return np.ascontiguousarray(array.swapaxes(1, 2))
