"""Attention as JAX sees it: one function with a gradient, and who computes it.

Arrays that have values are computed where they lie, without a copy. What is traced (`jax.jit`,
`vmap`, `scan`, …) becomes a custom call of XLA where XLA takes it (ffi.py), and else a call back
into NumPy. On accelerators, and within `portable`, it is JAX's own operations (blocks.py).
"""

# mypy: allow-untyped-calls

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import jax
import numpy as np

from regard.core import given as on_arrays
from regard.core.arguments import FLOAT64, Array, real
from regard.core.call import Call
from regard.core.given import FLOATS, Given, checked, room, swapped
from regard.jax import blocks, ffi
from regard.jax.whole import whole

_portable = ContextVar("portable", default=False)


@contextmanager
def portable() -> Iterator[None]:
    """Compute what is called or traced within by JAX's own operations alone, on any platform.

    Such a function can be written to a file by `jax.export`, and read where `regard` is not. It is
    slower on a CPU. It keeps a block of scores at a time, not all T × S.

    >>> import regard
    >>> x = jax.numpy.eye(3)
    >>> with portable():
    ...     text = jax.jit(lambda x: regard.attention(x, x, x)).lower(x).as_text()
    >>> "custom_call" in text
    False
    """
    token = _portable.set(True)
    try:
        yield
    finally:
        _portable.reset(token)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def attend(given: Given, count: int, *arrays: Any) -> tuple[Any, ...]:
    """Compute the first `count` of output and lse, with gradients of FLOATS among the arrays."""
    return tuple(_forward(given, count, *arrays))


def _keeping(given: Given, count: int, *arrays: Any) -> tuple[Any, Any]:
    query = arrays[given.names.index("query")]
    output, *lse = _forward(given, 2 if query.dtype == FLOAT64 else 3, *arrays)
    return (output, lse[0])[:count], (arrays, output, lse)


def _gradients(given: Given, count: int, kept: Any, grads: Any) -> tuple[Any, ...]:
    arrays, output, lse = kept
    found = iter(_backward(given, *arrays, output, *lse, *grads))
    return tuple(next(found) if name in FLOATS else None for name in given.names)


attend.defvjp(_keeping, _gradients)


def traced(*arrays: Any) -> bool:
    """Whether any of these has no value yet."""
    return any(isinstance(array, jax.core.Tracer) for array in arrays)


def refuse_wrong(given: Given, arrays: Any) -> Call:
    """Check a call whose arrays have no values yet, by their shapes and dtypes."""
    return checked(given, [np.broadcast_to(np.zeros((), one.dtype), one.shape) for one in arrays])


def _forward(given: Given, count: int, *arrays: Any) -> list[Any]:
    query = arrays[given.names.index("query")]
    if _at_hand(arrays):
        found = _numpy_forward(given, count, *map(np.asarray, arrays), strict=True)
        return [_like(query, one) for one in found]
    call = refuse_wrong(given, arrays)
    if _calls_back():
        compute = partial(_numpy_forward, given, count)
        return _called_back(compute, _results(given, call, query)[:count], arrays)
    made, operands = whole(given, arrays)
    found = _by_platform("forward", (made, call, count), operands)
    return [one[0] for one in found] if query.ndim == 2 else found


def _backward(given: Given, *arrays: Any) -> list[Any]:
    query = arrays[given.names.index("query")]
    if _at_hand(arrays):
        found = _numpy_backward(given, *map(np.asarray, arrays))
        return [_like(query, one) for one in found]
    count = len(given.names)
    own = {n: one for n, one in zip(given.names, arrays, strict=False) if n in FLOATS}
    if _calls_back():
        return _called_back(partial(_numpy_backward, given), list(own.values()), arrays)
    call = refuse_wrong(given, arrays[:count])
    made, operands = whole(given, arrays[:count])
    known = [one[None] if query.ndim == 2 else one for one in arrays[count:]]
    wanted = tuple(name for name in FLOATS if name in own)
    found = _by_platform("backward", (made, call, wanted), [*operands, *known])
    grads = dict(zip(wanted, found, strict=True))
    return [grads[name].reshape(one.shape).astype(one.dtype) for name, one in own.items()]


# ------------------------------------------------------------------------------------ who computes


def _at_hand(arrays: Any) -> bool:
    """Whether these have values, in the memory of this machine, and the kernel may see them."""
    return not (_portable.get() or traced(*arrays)) and all(
        device.platform == "cpu" for array in arrays for device in array.devices()
    )


def _calls_back() -> bool:
    return not _portable.get() and jax.default_backend() == "cpu" and not ffi.registered()


def _by_platform(name: str, call: tuple[Any, ...], operands: list[Any]) -> list[Any]:
    in_jax, by_kernel = (partial(getattr(one, name), *call) for one in (blocks, ffi))
    if _portable.get() or not ffi.registered():
        return list(in_jax(*operands))
    if jax.default_backend() == "cpu":
        return list(by_kernel(*operands))
    return list(jax.lax.platform_dependent(*operands, cpu=by_kernel, default=in_jax))


def _called_back(compute: Any, results: list[Any], arrays: Any) -> list[Any]:
    kinds = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in results]
    return list(jax.pure_callback(compute, kinds, *arrays, vmap_method="sequential"))


# -------------------------------------------------------------------------------------- on NumPy


def _numpy_forward(given: Given, count: int, *arrays: Any, strict: bool = False) -> list[Array]:
    """Compute the first `count` of output, lse, and what float32 leaves out of a float64 lse."""
    arrays = tuple(map(np.asarray, arrays))
    output, exact = on_arrays.forward(given, *arrays, strict=strict, with_lse=count > 1)
    if exact is None:
        return [output]
    if output.dtype == FLOAT64:
        return [output, exact][:count]
    lse, rest = room(exact.shape, np.float32), room(exact.shape, np.float32)
    lse[...] = exact
    with np.errstate(invalid="ignore"):
        rest[...] = np.where(np.isfinite(exact), exact - lse, 0)
    return [output, lse, rest][:count]


def _numpy_backward(given: Given, *arrays: Any) -> list[Array]:
    arrays = tuple(map(np.asarray, arrays))
    count = len(given.names)
    output, lse, *others = arrays[count:]
    if lse.dtype != FLOAT64:
        lse = lse.astype(FLOAT64) + others.pop(0)
    return on_arrays.backward(given, *arrays[:count], output, lse, *others)


def _results(given: Given, call: Call, query: Any) -> list[Any]:
    """What `_numpy_forward` gives, by shape and dtype."""
    rows = call.shape[1:-1] if query.ndim == 2 else call.shape[:-1]
    shape: tuple[int, ...] = (*rows, call.value.shape[-1])
    wide = jax.ShapeDtypeStruct(rows, real(call.dtype))
    turned = swapped(shape) if given.turned(shape) else shape
    return [jax.ShapeDtypeStruct(turned, query.dtype), wide, wide]


def _like(query: Any, found: Any) -> Any:
    """An array of JAX over this memory, on the query's device."""
    (device, *others) = query.devices()
    return jax.device_put(found, None if others else device)
