"""Attention as JAX sees it: one function with a gradient, computed at once or called back.

Arrays that have values are computed where they lie, without a copy. What is traced (`jax.jit`,
`vmap`, `scan`, …) becomes a call back into NumPy, which JAX makes when the values are there.
"""

# mypy: allow-untyped-calls

from functools import partial
from typing import Any

import jax
import numpy as np

from regard.core.call import Call
from regard.jax.arrays import FLOATS, Given, backward, checked, forward

# How many axes an argument has less than query, at most.
_FEWER = {"query_offset": 3, "key_lengths": 3, "segments": 2, "ranges": 2}


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend(given: Given, *arrays: Any) -> tuple[Any, Any]:
    """Compute output and lse of a call, with gradients of the FLOATS among the arrays."""
    output, lse, _ = _forward(given, *arrays)
    return output, lse


def _keeping(given: Given, *arrays: Any) -> tuple[Any, Any]:
    output, lse, exact = _forward(given, *arrays)
    return (output, lse), (arrays, output, exact)


def _gradients(given: Given, kept: Any, grads: Any) -> tuple[Any, ...]:
    arrays, output, exact = kept
    found = iter(_backward(given, *arrays, output, exact, *grads))
    return tuple(next(found) if name in FLOATS else None for name in given.names)


attend.defvjp(_keeping, _gradients)


def traced(*arrays: Any) -> bool:
    """Whether any of these has no value yet."""
    return any(isinstance(array, jax.core.Tracer) for array in arrays)


def _forward(given: Given, *arrays: Any) -> Any:
    query = arrays[given.names.index("query")]
    if not traced(*arrays):
        found = forward(given, query.ndim, *map(np.asarray, arrays), strict=True)
        return [_like(query, one) for one in found]
    call = refuse_wrong(given, arrays)
    rows = call.shape[:-1]
    shape: tuple[int, ...] = (*rows, call.value.shape[-1])
    if given.heads_axis == -2:
        shape = (*shape[:-3], shape[-2], shape[-3], shape[-1])
    wide = np.float64 if query.dtype == np.float64 else np.float32
    kinds = [
        jax.ShapeDtypeStruct(shape, query.dtype),
        jax.ShapeDtypeStruct(rows, wide),
        jax.ShapeDtypeStruct((*rows, 2), np.uint32),
    ]
    full, operands = _full(given, arrays, max(query.ndim, 3))
    found = jax.pure_callback(
        partial(forward, full, max(query.ndim, 3)), kinds, *operands, vmap_method="expand_dims"
    )
    return [one[0] for one in found] if call.flat else found


def _backward(given: Given, *arrays: Any) -> Any:
    query = arrays[given.names.index("query")]
    if not traced(*arrays):
        found = backward(given, query.ndim, *map(np.asarray, arrays))
        return [_like(query, one) for one in found]
    own = [one for name, one in zip(given.names, arrays, strict=False) if name in FLOATS]
    count, rank = len(given.names), max(query.ndim, 3)
    full, operands = _full(given, arrays[:count], rank)
    known = [one[None] if query.ndim == 2 else one for one in arrays[count:]]
    kinds = [
        jax.ShapeDtypeStruct(one.shape, one.dtype)
        for name, one in zip(given.names, operands, strict=True)
        if name in FLOATS
    ]
    found = jax.pure_callback(
        partial(backward, full, rank), kinds, *operands, *known, vmap_method="expand_dims"
    )
    return [grad.reshape(one.shape) for grad, one in zip(found, own, strict=True)]


def refuse_wrong(given: Given, arrays: Any) -> Call:
    """Check a call whose arrays have no values yet, by their shapes and dtypes."""
    return checked(given, [np.broadcast_to(np.zeros((), one.dtype), one.shape) for one in arrays])


def _full(given: Given, arrays: Any, rank: int) -> tuple[Given, list[Any]]:
    """Give all arrays their full rank, so that `vmap` may put axes in front of them."""

    def full(name: str, array: Any) -> Any:
        if name in ("sinks", "seed"):
            return array
        missing = rank - _FEWER.get(name.split(".")[0], 0) - np.ndim(array)
        return array[(None,) * missing] if missing > 0 else array

    rest = dict(given.rest)
    for name in ("mask", "bias", "query_offset", "key_lengths", "segments", "ranges"):
        given_here = rest.get(name)
        if isinstance(given_here, tuple):
            rest[name] = tuple(full(name, np.asarray(part)) for part in given_here)
        elif given_here is not None and np.ndim(given_here):
            rest[name] = full(name, np.asarray(given_here))
        for part in (f"{name}.0", f"{name}.1"):
            if part in rest:
                rest[part] = full(name, np.asarray(rest[part]))
    arrays = [full(name, array) for name, array in zip(given.names, arrays, strict=True)]
    return Given(given.names, rest, given.heads_axis), arrays


def _like(query: Any, found: Any) -> Any:
    """An array of JAX over this memory, on the query's device."""
    (device, *others) = query.devices()
    return jax.device_put(found, None if others else device)
