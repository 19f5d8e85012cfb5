"""Who may attend what, and what dropout keeps, in JAX's operations, for some rows of a call."""

# mypy: allow-untyped-calls

import math
from typing import Any

import jax.numpy as jnp

from regard.core.call import Call
from regard.core.given import Given
from regard.jax.whole import FAR, bounds


def take(dense: Any, rows: Any) -> Any:
    """These rows, axis -2, of an array that may have one for all."""
    if dense.shape[-2] == 1:
        return dense
    return jnp.take(dense, jnp.minimum(rows, dense.shape[-2] - 1), axis=-2)


def allowed(given: Given, call: Call, options: dict[str, Any], rows: Any) -> Any:
    """Who may attend, but for mask and bias: booleans that broadcast to (B…, H, R, S)."""
    item, row = (..., None, None, None), (..., None, slice(None), None)
    count, keys = call.shape[-2:]
    key = jnp.arange(keys)
    may = (rows < count)[:, None]
    lower, upper = bounds(given, call)
    place = rows[:, None]
    if (offset := options.get("query_offset")) is not None:
        place = place + jnp.clip(offset, -FAR, FAR).astype(place.dtype)[item]
    if lower is not None:
        may &= key >= place + lower
    if upper is not None:
        may &= key < place + upper
    if (lengths := options.get("key_lengths")) is not None:
        may &= key < lengths[item]
    if (first := options.get("ranges.0")) is not None:
        may &= key >= take(first[row], rows)
        may &= key < take(options["ranges.1"][row], rows)
    if (of_queries := options.get("segments.0")) is not None:
        may &= take(of_queries[row], rows) == options["segments.1"][..., None, None, :]
    return may


def kept(call: Call, options: dict[str, Any], rows: Any, dtype: Any) -> Any:
    """What dropout multiplies weights by, drawn by place as the kernel does."""
    items = jnp.arange(math.prod(call.batch)).reshape(*call.batch, 1, 1, 1)
    heads, keys = jnp.arange(call.shape[-3])[:, None, None], jnp.arange(call.shape[-1])
    counter = [one.astype(jnp.uint32) for one in (items, heads, rows[:, None], keys)]
    seed = options.get("seed")
    if seed is None:
        low, high = (jnp.uint32(call.seed >> shift & 2**32 - 1) for shift in (0, 32))
    elif seed.dtype.itemsize == 8:
        low, high = seed.astype(jnp.uint32), (seed >> 32).astype(jnp.uint32)
    else:  # 32 bits or less: the sign goes on
        low, high = seed.astype(jnp.uint32), jnp.where(seed < 0, 2**32 - 1, 0).astype(jnp.uint32)
    last_dropped = jnp.uint32(math.ceil(call.dropout * 2**32) - 1)
    return (_philox(counter, low, high) > last_dropped).astype(dtype) / (1 - call.dropout)


def _philox(counter: list[Any], k0: Any, k1: Any) -> Any:
    """Philox4x32-10, the first word, as core/dropout.py has it, where no word has 64 bits."""
    c0, c1, c2, c3 = counter
    for _ in range(10):
        (high0, low0), (high2, low2) = _product(c0, 0xD2511F53), _product(c2, 0xCD9E8D57)
        c0, c1 = high2 ^ c1 ^ k0, low2
        c2, c3 = high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + jnp.uint32(0x9E3779B9), k1 + jnp.uint32(0xBB67AE85)
    return c0


def _product(word: Any, factor: int) -> tuple[Any, Any]:
    """The high and the low word of a product, by halves of 16 bits."""
    low, high = word & 0xFFFF, word >> 16
    other_low, other_high = jnp.uint32(factor & 0xFFFF), jnp.uint32(factor >> 16)
    middle = (low * other_low >> 16) + (high * other_low & 0xFFFF) + (low * other_high & 0xFFFF)
    top = high * other_high + (high * other_low >> 16) + (low * other_high >> 16) + (middle >> 16)
    return top, word * jnp.uint32(factor)
