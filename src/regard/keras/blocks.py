"""Attention in Keras's own operations, a block of rows at a time.

For a backend whose door is missing. Scores are computed again for the gradient, so that no more
than a block of them is held at a time.
"""

import math
from typing import Any

import keras  # type: ignore[import-untyped]
from keras import ops

BLOCK = 1 << 22  # scores of one block, or as many as one row has


def by_blocks(
    query: Any,
    key: Any,
    value: Any,
    *,
    scale: float,
    mask: Any = None,
    segments: Any = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    query_offset: int = 0,
    dropout: float = 0.0,
    seed: Any = None,
) -> Any:
    """Compute attention of (B…, H, T, D), (B…, G, S, D), (B…, G, S, V); options as in `attend`."""
    *batch, heads, rows, width = query.shape
    groups, keys = key.shape[-3:-1]
    columns = value.shape[-1]
    dtype = keras.backend.standardize_dtype(query.dtype)
    wide = "float64" if dtype == "float64" else "float32"
    if 0 in query.shape or 0 in key.shape:
        return ops.zeros((*batch, heads, rows, columns), dtype)
    key, value = ops.cast(key, wide), ops.cast(value, wide)
    height = max(1, min(rows, BLOCK // (math.prod(batch) * heads * keys)))
    count = -(-rows // height)

    def one(block: tuple[Any, Any]) -> Any:
        part, number = block
        place = number * height + ops.arange(height, dtype="int32")
        at = ops.minimum(place, rows - 1)
        part = ops.reshape(ops.cast(part, wide), (*batch, groups, -1, width))
        scores = ops.matmul(part, ops.swapaxes(key, -1, -2)) * scale
        scores = ops.reshape(scores, (*batch, heads, height, keys))
        allowed = _reach(place + query_offset, keys, causal, window)
        if mask is not None:
            allowed = allowed & (ops.take(mask, at, -2) if mask.shape[-2] > 1 else mask)
        if segments is not None:
            of_queries, of_keys = segments
            of_queries = ops.take(of_queries, at, -1)[..., None, :, None]
            allowed = allowed & (of_queries == of_keys[..., None, None, :])
        # A row without keys has equal weights first, of which nothing remains.
        scores = ops.where(allowed, scores, -1e30)
        weights = ops.where(allowed, ops.softmax(scores), 0)
        if dropout:
            weights = weights * _kept((*batch, heads), place, keys, dropout, seed, wide)
        weights = ops.reshape(weights, (*batch, groups, -1, keys))
        output = ops.reshape(ops.matmul(weights, value), (*batch, heads, height, columns))
        return ops.cast(output, dtype)

    if count == 1:
        return keras.remat(one)((query, 0))
    padding = [(0, 0)] * (len(batch) + 1) + [(0, count * height - rows), (0, 0)]
    parts = ops.reshape(ops.pad(query, padding), (*batch, heads, count, height, width))
    numbers = ops.arange(count, dtype="int32")
    found = ops.map(keras.remat(one), (ops.moveaxis(parts, -3, 0), numbers))
    whole = ops.reshape(ops.moveaxis(found, 0, -3), (*batch, heads, count * height, columns))
    return whole[..., :rows, :]


def _reach(place: Any, keys: int, causal: bool, window: tuple[int, int] | None) -> Any:
    """Who may attend by position: (R, S)."""
    distance = ops.arange(keys, dtype="int32") - place[:, None]
    before, after = window or (keys + math.inf, math.inf)
    after = min(after, 0) if causal else after
    allowed = ops.ones_like(distance, dtype="bool")
    if before < math.inf:
        allowed = allowed & (distance >= -before)
    return allowed & (distance <= after) if after < math.inf else allowed


def _kept(
    lead: tuple[int, ...], place: Any, keys: int, dropout: float, seed: Any, dtype: str
) -> Any:
    """What dropout multiplies weights by, drawn by place as the kernel does (core/dropout.py).

    Philox4x32-10, where products of 32 bits are put together from 16, since some backends have no
    more than 32.
    """

    def word(numbers: Any) -> Any:
        return ops.cast(numbers, "uint32")

    def product(a: Any, b: int) -> tuple[Any, Any]:
        """The high and the low word of a product."""
        high, low = ops.right_shift(a, word(16)), ops.bitwise_and(a, word(0xFFFF))
        b_high, b_low = word(b >> 16), word(b & 0xFFFF)
        cross = low * b_high + ops.right_shift(low * b_low, word(16))
        more = high * b_low + ops.bitwise_and(cross, word(0xFFFF))
        top = high * b_high + ops.right_shift(cross, word(16)) + ops.right_shift(more, word(16))
        return top, a * word(b)

    *batch, heads = lead
    items = ops.reshape(ops.arange(math.prod(batch), dtype="int32"), (*batch, 1, 1, 1))
    c0, c1 = word(items), word(ops.arange(heads, dtype="int32")[:, None, None])
    c2, c3 = word(place[:, None]), word(ops.arange(keys, dtype="int32"))
    k0, k1 = word(seed), word(0)
    for _ in range(10):
        (high0, low0), (high2, low2) = product(c0, 0xD2511F53), product(c2, 0xCD9E8D57)
        c0 = ops.bitwise_xor(ops.bitwise_xor(high2, c1), k0)
        c2 = ops.bitwise_xor(ops.bitwise_xor(high0, c3), k1)
        c1, c3 = low2, low0
        k0, k1 = k0 + word(0x9E3779B9), k1 + word(0xBB67AE85)
    threshold = word(min(math.ceil(dropout * 2**32), 2**32 - 1))
    return ops.cast(c0 >= threshold, dtype) / (1 - dropout)
