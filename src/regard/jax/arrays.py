"""One attention call on NumPy arrays, as JAX's transformations hand them over.

Under `jax.vmap` every array has further axes in front, of size 1 where it is the same for all. All
arrays then have their full rank, so that the axes in front are those before the batch axes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard import _kernel
from regard.core.arguments import FLOAT64, Array, bits, real
from regard.core.call import Call, check

# What may be a pair of arrays.
PAIRS = ("segments", "ranges")
# What has a gradient.
FLOATS = ("query", "key", "value", "bias", "sinks")
# JAX takes memory as it is if it begins at a multiple of so many bytes.
ALIGNMENT = 64


@dataclass(frozen=True, eq=False)
class Given:
    """The arguments of a call but JAX's arrays: these come apart, in the order of `names`."""

    names: tuple[str, ...]  # of JAX's arrays; "ranges.0" is the first of a pair
    rest: dict[str, Any]
    heads_axis: int  # -3, or -2 where query, key, value and output are (B…, T, H, D)

    def arguments(self, arrays: Any) -> dict[str, Any]:
        """Put arrays back among the arguments."""
        parts = dict(self.rest) | dict(zip(self.names, arrays, strict=True))
        whole = {name: part for name, part in parts.items() if "." not in name}
        for name in PAIRS:
            if f"{name}.0" in parts:
                whole[name] = (parts[f"{name}.0"], parts[f"{name}.1"])
        return whole


def checked(given: Given, arrays: Any) -> Call:
    """Check a call; heads come before rows in it."""
    arguments = given.arguments(arrays)
    if given.heads_axis == -2:
        for name in ("query", "key", "value"):
            arguments[name] = np.swapaxes(arguments[name], -2, -3)
    return check(**arguments)


def forward(given: Given, rank: int, *operands: Any, strict: bool = False) -> tuple[Array, ...]:
    """Compute output, lse, and the lse in float64 as pairs of uint32, which JAX always has.

    `rank` is the query's without what `vmap` put in front; `strict` refuses a bias that spoils
    a row.
    """
    lead, arrays = _led(given, rank, operands)
    if lead and _by_item(given):
        return _stacked(lambda *item: forward(given, rank, *item), lead, arrays)
    call = checked(given, arrays)
    rows = call.shape[1:-1] if call.flat else call.shape[:-1]
    output, inner = _room(given, call, (*rows, call.value.shape[-1]), call.dtype)
    exact = room(rows, FLOAT64)
    query, key, value = bits(call.query), bits(call.key), bits(call.value)
    lse = exact[None] if call.flat else exact
    bad = _kernel.forward(query, key, value, bits(inner), lse, *call.rule, call.dropout, call.seed)
    if strict and bad:
        raise ValueError(
            "bias: expected finite numbers or -inf wherever a query may attend, "
            "received +inf or NaN"
        )
    narrow = room(rows, real(call.dtype))
    narrow[...] = exact
    return output, narrow, exact[..., None].view(np.uint32)


def backward(given: Given, rank: int, *operands: Any) -> tuple[Array, ...]:
    """Compute the gradients of the FLOATS among the arrays, each in its shape and dtype.

    Behind the call's own arrays come output, lse in pairs, and the gradients of output and lse.
    """
    lead, arrays = _led(given, rank, operands)
    if lead and _by_item(given):
        return _stacked(lambda *item: backward(given, rank, *item), lead, arrays)
    count, front = len(given.names), len(lead)
    call = checked(given, arrays[:count])
    output, exact, grad_output, grad_lse = arrays[count:]
    own = dict(zip(given.names, arrays, strict=False))
    wide = real(call.dtype)
    outer: dict[str, Array] = {}
    inner: list[Array] = []
    for name in FLOATS[:3]:
        part = getattr(call, name)
        shape = part.shape[1:] if call.flat else (*call.batch, *part.shape[-3:])
        # What will be summed over items is summed in float32 or wider.
        dtype = call.dtype if call.batch == own[name].shape[:-3] or call.flat else wide
        outer[name], turned = _room(given, call, shape, dtype)
        inner.append(bits(turned))
    bias, sinks = call.rule.bias, call.rule.sinks
    if bias is not None and "bias" in own:
        outer["bias"] = np.zeros(bias.shape, wide)
    if sinks is not None and "sinks" in own:
        outer["sinks"] = np.zeros(sinks.shape, FLOAT64)
    lse = np.ascontiguousarray(exact).view(FLOAT64)[..., 0]
    query, key, value = bits(call.query), bits(call.key), bits(call.value)
    known = [bits(_inner(given, call, output)), lse, bits(_inner(given, call, grad_output))]
    known.append(grad_lse)
    if call.flat:
        known[1], known[3] = lse[None], grad_lse[None]
    _kernel.backward(
        query, key, value, known[0], known[1], known[2], known[3],
        inner[0], inner[1], inner[2], outer.get("bias"), outer.get("sinks"),
        *call.rule, call.dropout, call.seed,
    )  # fmt: skip
    return tuple(
        _like(outer[name], (*lead, *own[name].shape[front:]), own[name].dtype)
        for name in given.names
        if name in FLOATS
    )


# ----------------------------------------------------------------------------------- under `vmap`


def _led(given: Given, rank: int, operands: Any) -> tuple[tuple[int, ...], list[Array]]:
    """What `vmap` put in front of all arrays, and the arrays: query and bias have it in full."""
    arrays = [np.asarray(array) for array in operands]
    front = arrays[given.names.index("query")].ndim - rank
    if not front:
        return (), arrays
    lead = np.broadcast_shapes(*(array.shape[:front] for array in arrays))
    for number, name in enumerate(given.names):
        if name in ("query", "bias"):
            shape = (*lead, *arrays[number].shape[front:])
            arrays[number] = np.broadcast_to(arrays[number], shape)
    return lead, arrays


def _by_item(given: Given) -> bool:
    """Whether `vmap` means one call for each item: sinks have no batch, dropout counts items."""
    return "sinks" in given.names or "sinks" in given.rest or bool(given.rest.get("dropout"))


def _stacked(
    compute: Callable[..., tuple[Array, ...]], lead: tuple[int, ...], arrays: list[Array]
) -> tuple[Array, ...]:
    front = len(lead)
    full = [np.broadcast_to(array, (*lead, *array.shape[front:])) for array in arrays]
    items = [compute(*(array[at] for array in full)) for at in np.ndindex(lead)]
    return tuple(
        np.stack(parts).reshape(*lead, *parts[0].shape) for parts in zip(*items, strict=True)
    )


# ----------------------------------------------------------------------------------------- memory


def room(shape: tuple[int, ...], dtype: Any) -> Array:
    """An empty array whose memory JAX can take as it is."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT
    found: Array = raw[begin : begin + size].view(dtype).reshape(shape)
    return found


def _room(given: Given, call: Call, shape: tuple[int, ...], dtype: Any) -> tuple[Array, Array]:
    """Room for what the caller gets, and the kernel's view of it, whose shape is given."""
    if given.heads_axis == -2:
        shape = (*shape[:-3], shape[-2], shape[-3], shape[-1])
    outer = room(shape, dtype)
    return outer, _inner(given, call, outer)


def _inner(given: Given, call: Call, outer: Array) -> Array:
    """The caller's array as the kernel takes it: heads before rows."""
    if call.flat:
        return outer[None]
    return outer.swapaxes(-2, -3) if given.heads_axis == -2 else outer


def _like(grad: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """The gradient summed over the axes that were broadcast."""
    if grad.shape != shape:
        axes = tuple(n for n, size in enumerate(shape) if size != grad.shape[n])
        grad = grad.sum(axis=axes, keepdims=True)
    return grad.astype(dtype, copy=False)
