"""The arguments of a call of which some arrays come apart, and the call computed on NumPy arrays.

What doors share whose framework calls back with nothing but its arrays, as TensorFlow and JAX do.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from regard import _kernel
from regard.core.arguments import FLOAT64, Array, bits, real
from regard.core.call import Call, check

# What may be a pair of arrays.
PAIRS = ("segments", "ranges")
# What has a gradient.
FLOATS = ("query", "key", "value", "bias", "sinks")
# Frameworks take memory as it is if it begins at a multiple of so many bytes.
ALIGNMENT = 64


class Given(NamedTuple):
    """The arguments of a call, a framework's arrays apart from all else."""

    names: tuple[str, ...]  # of those arrays; "ranges.0" is the first of a pair
    rest: dict[str, Any]
    heads_axis: int  # -3, or -2 where query, key, value and output are (B…, T, H, D)

    @classmethod
    def of(
        cls, arguments: dict[str, Any], heads_axis: int, apart: Callable[[Any], bool]
    ) -> tuple["Given", list[Any]]:
        """Take out of all arguments what is to come apart."""
        parts: dict[str, Any] = {}
        for name, given in arguments.items():
            if name in PAIRS and isinstance(given, tuple | list) and any(map(apart, given)):
                parts |= {f"{name}.{n}": part for n, part in enumerate(given)}
            elif given is not None:
                parts[name] = given
        arrays = {name: part for name, part in parts.items() if apart(part)}
        rest = {name: part for name, part in parts.items() if name not in arrays}
        return cls(tuple(arrays), rest, heads_axis), list(arrays.values())

    def arguments(self, arrays: Any) -> dict[str, Any]:
        """Put the arrays, or whatever stands for them, back among the arguments."""
        parts = dict(self.rest) | dict(zip(self.names, arrays, strict=True))
        whole = {name: part for name, part in parts.items() if "." not in name}
        for name in PAIRS:
            if f"{name}.0" in parts:
                pair = sorted(part for part in parts if part.startswith(f"{name}."))
                whole[name] = tuple(parts[part] for part in pair)
        return whole

    def turned(self, shape: Any) -> bool:
        """Whether the axes of heads and rows of such an array are swapped for the kernel."""
        return self.heads_axis == -2 and len(shape) > 2


def checked(given: Given, arrays: Any) -> Call:
    """Check a call of arrays; heads come before rows in it."""
    arguments = given.arguments(arrays)
    if given.heads_axis == -2:
        for name in ("query", "key", "value"):
            if np.ndim(arguments[name]) > 2:
                arguments[name] = np.swapaxes(arguments[name], -2, -3)
    return check(**arguments)


def forward(
    given: Given, *arrays: Array, strict: bool = False, with_lse: bool = True
) -> tuple[Array, Array | None]:
    """Compute output and lse, in float64; `strict` refuses a bias that spoils a row."""
    call = checked(given, arrays)
    query = call.query
    rows = call.shape[1:-1] if call.flat else call.shape[:-1]
    output, inner_output = _rooms(given, call, (*rows, call.value.shape[-1]), query.dtype)
    lse = room(rows, FLOAT64) if with_lse else None
    attends_bad_bias = _kernel.forward(
        bits(query),
        bits(call.key),
        bits(call.value),
        bits(inner_output),
        lse[None] if lse is not None and call.flat else lse,
        *call.rule,
        call.dropout,
        call.seed,
        call.high,
    )
    if strict and attends_bad_bias:
        raise ValueError(
            "bias: expected finite numbers or -inf wherever a query may attend, "
            "received +inf or NaN"
        )
    return output, lse


def backward(given: Given, *arrays: Array) -> list[Array]:
    """Compute the gradients of the FLOATS among the arrays, each in its shape and dtype.

    Behind the call's own arrays come output, lse, grad_output and, if there is one, grad_lse.
    """
    count = len(given.names)
    call = checked(given, arrays[:count])
    output, lse, grad_output, *grad_lse = arrays[count:]
    arguments = given.arguments(arrays[:count])
    turned, wide = given.turned(output.shape), real(call.dtype)
    rooms = {}
    for name in FLOATS[:3]:
        shape = swapped(arguments[name].shape) if turned else arguments[name].shape
        batch = shape[:-3] if call.flat else call.batch
        # What will be summed over items is summed in float32 or wider.
        dtype = call.dtype if batch == shape[:-3] else wide
        rooms[name] = _rooms(given, call, (*batch, *shape[-3:]), dtype)
    of_query, of_key, of_value = (bits(inner) for _, inner in rooms.values())
    bias, sinks = call.rule.bias, call.rule.sinks
    of_bias = np.zeros_like(bias, wide) if bias is not None and "bias" in given.names else None
    of_sinks = np.zeros_like(sinks) if sinks is not None and "sinks" in given.names else None
    _kernel.backward(
        bits(call.query),
        bits(call.key),
        bits(call.value),
        bits(_inner(given, call, output)),
        lse[None] if call.flat else lse,
        bits(_inner(given, call, grad_output)),
        None if not grad_lse else grad_lse[0][None] if call.flat else grad_lse[0],
        of_query,
        of_key,
        of_value,
        of_bias,
        of_sinks,
        *call.rule,
        call.dropout,
        call.seed,
    )
    found = {name: outer for name, (outer, _) in rooms.items()}
    found |= {name: g for name, g in (("bias", of_bias), ("sinks", of_sinks)) if g is not None}
    return [_like(found[n], arguments[n]) for n in given.names if n in FLOATS]


def room(shape: tuple[int, ...], dtype: Any) -> Array:
    """An empty array whose memory a framework can take as it is."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    begin = -raw.ctypes.data % ALIGNMENT
    found: Array = raw[begin : begin + size].view(dtype).reshape(shape)
    return found


def swapped(shape: Any) -> tuple[int, ...]:
    """(…, T, H, D) as (…, H, T, D)."""
    return (*shape[:-3], shape[-2], shape[-3], shape[-1])


def _rooms(given: Given, call: Call, shape: tuple[int, ...], dtype: Any) -> tuple[Array, Array]:
    """Room for what the caller gets, and the kernel's view of it, in which heads precede rows.

    The shape is the view's.
    """
    outer = room(swapped(shape) if given.turned(shape) else shape, dtype)
    return outer, _inner(given, call, outer)


def _inner(given: Given, call: Call, outer: Array) -> Array:
    """The caller's array as the kernel takes it: heads before rows."""
    if call.flat:
        return outer[None]
    return outer.swapaxes(-2, -3) if given.turned(outer.shape) else outer


def _like(grad: Array, own: Array) -> Array:
    """The gradient summed over the axes that were broadcast, in memory a framework can take."""
    if grad.shape != own.shape:
        axes = tuple(n for n, size in enumerate(own.shape) if size != grad.shape[n])
        grad = grad.sum(axis=axes, keepdims=True)
    elif grad.dtype == own.dtype and grad.ctypes.data % ALIGNMENT == 0:
        return grad
    found = room(own.shape, own.dtype)
    found[...] = grad
    return found
