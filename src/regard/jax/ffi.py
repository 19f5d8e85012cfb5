"""Attention as a custom call of XLA: compiled code calls the kernel, without Python or copies.

The kernel's side is kernel/ffi.cpp. Arguments come as arrays with all their axes and numbers as
attributes; what depends on values that are not known yet is left to the kernel.
"""

# mypy: allow-untyped-calls

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from regard import _kernel
from regard.core.arguments import real
from regard.core.call import Call
from regard.core.given import FLOATS, Given, swapped
from regard.jax.whole import ROLES, bounds

FORWARD, BACKWARD = "regard_attention", "regard_attention_gradients"


@cache
def registered() -> bool:
    """Register the kernel with XLA, once, and say whether this version of XLA takes it."""
    try:
        # A version that XLA refuses fails here, and harms nobody, once the CPU's backend is there;
        # registered before it, it would fail every use of JAX.
        jax.devices("cpu")
        jax.ffi.register_ffi_target(FORWARD, _kernel.xla_forward, platform="cpu")
        jax.ffi.register_ffi_target(BACKWARD, _kernel.xla_backward, platform="cpu")
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return False
    return True


def forward(given: Given, call: Call, count: int, *arrays: Any) -> list[Any]:
    """Compute the first `count` of output, lse and its rest; arguments as `whole` makes them."""
    wide = real(call.dtype)
    shape = (*call.shape[:-1], call.value.shape[-1])
    results = [
        jax.ShapeDtypeStruct(swapped(shape) if given.heads_axis == -2 else shape, call.dtype),
        jax.ShapeDtypeStruct(call.shape[:-1], wide),
        jax.ShapeDtypeStruct(call.shape[:-1], wide),
    ]
    return _called(FORWARD, results[:count], given, call, arrays)


def backward(given: Given, call: Call, wanted: tuple[str, ...], *arrays: Any) -> list[Any]:
    """Compute the gradients of query, key, value and what else of the FLOATS is `wanted`.

    Behind the call's own arrays come output, lse, its rest where there is one, the gradient of
    output and, where it was given out, that of lse.
    """
    wide = real(call.dtype)
    own = dict(zip(given.names, arrays, strict=False))
    results = []
    for name in wanted:
        shape = own[name].shape
        if name in FLOATS[:3]:
            shape = (*call.batch, *shape[-3:])
        # What will be summed over items is summed in float32 or wider.
        dtype = call.dtype if name in FLOATS[:3] and shape == own[name].shape else wide
        results.append(jax.ShapeDtypeStruct(shape, dtype))
    grads = _called(BACKWARD, results, given, call, arrays, wanted=_bits(wanted))
    return [_sum_to(grad, own[name].shape) for name, grad in zip(wanted, grads, strict=True)]


def _called(
    target: str, results: list[Any], given: Given, call: Call, arrays: Any, **more: Any
) -> list[Any]:
    lower, upper = bounds(given, call)
    attributes = {
        "present": _bits(given.names),
        "rank": np.int64(len(call.shape)),
        "turned": np.int64(given.heads_axis == -2),
        "scale": np.float64(call.rule.scale),
        "softcap": np.float64(call.rule.softcap),
        "lower": np.int64(-(2**63) if lower is None else lower),
        "upper": np.int64(-(2**63) if upper is None else upper),
        "dropout": np.float64(call.dropout),
        "seed": np.uint64(call.seed).astype(np.int64),
        "high": np.int64(call.high),
    }
    made = jax.ffi.ffi_call(target, results, vmap_method="expand_dims")
    return list(made(*arrays, **attributes, **more))


def _bits(names: tuple[str, ...]) -> Any:
    return np.int64(sum(1 << ROLES.index(name) for name in names))


def _sum_to(grad: Any, shape: tuple[int, ...]) -> Any:
    """Sum over the axes that were broadcast."""
    axes = tuple(n for n, size in enumerate(shape) if size != grad.shape[n])
    return jnp.sum(grad, axes, keepdims=True) if axes else grad
