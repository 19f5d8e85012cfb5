"""A call of tensors lowered to blocks of rows: their scores, and who may attend to what.

Sizes are Python's ints where they are known while a graph is traced, and tensors where not.
"""

import math
from typing import Any, NamedTuple

import tensorflow as tf  # type: ignore[import-untyped]

from regard.core.arguments import addends, booleans
from regard.core.dropout import philox
from regard.core.given import Given
from regard.tensorflow.tensors import is_tensor

BLOCK = 1 << 22  # scores of one block, or as many as one row has
_FAR = 1 << 40  # farther than any array is long


class Lowered(NamedTuple):
    """A call with a head axis before the rows, and all batch axes in the query."""

    arguments: dict[str, Any]
    query: Any  # (B…, H, T, D)
    key: Any  # (B…, G, S, D), whose batch axes may be 1
    value: Any  # (B…, G, S, V), likewise
    mask: Any | None
    bias: Any | None
    sinks: Any | None  # (H, 1, 1)
    scale: Any  # a number
    batch: list[Any]
    heads: Any
    queries: Any
    keys: Any
    wide: Any  # the dtype of all sums
    flat: bool  # the caller's tensors have no head axis
    turned: bool  # … have it behind the rows

    @property
    def empty(self) -> bool:
        """Whether it is known that there is no row."""
        return any(type(n) is int and n == 0 for n in (*self.batch, self.heads, self.queries))

    @property
    def height(self) -> Any:
        """How many rows a block has."""
        sizes = [*self.batch, self.heads, self.keys]
        if all(type(n) is int for n in [*sizes, self.queries]):
            return max(1, min(self.queries, BLOCK // max(1, math.prod(sizes))))
        row = tf.reduce_prod(tf.stack([tf.cast(n, tf.int64) for n in sizes]))
        fit = tf.cast(BLOCK // tf.maximum(row, 1), tf.int32)
        return tf.maximum(tf.minimum(fit, self.queries), 1)

    def inside(self, outer: Any) -> Any:
        """A tensor laid out as the caller's query, with heads before rows."""
        return outer[None] if self.flat else _swapped(outer) if self.turned else outer

    def outside(self, inner: Any) -> Any:
        """The other way round."""
        return inner[0] if self.flat else _swapped(inner) if self.turned else inner


class Block(NamedTuple):
    """Some rows of all heads."""

    rows: Any  # (R,): their numbers; those past the last may attend nothing
    scores: Any  # (B…, H, R, S): what enters the softmax, -inf where not allowed
    allowed: Any  # (B…, H, R, S)
    slope: Any | None  # of the soft cap: d capped / d scaled
    kept: Any | None  # what dropout multiplies weights by


def lowered(given: Given, tensors: Any) -> Lowered:
    """Lower a call; `tensors` are those of `given`."""
    arguments = given.arguments(tensors)
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    if None in (query.shape.rank, key.shape.rank, value.shape.rank):
        raise ValueError(
            "query, key and value: expected a known number of axes, received "
            f"{query.shape}, {key.shape} and {value.shape}; say it with tf.ensure_shape"
        )
    flat, turned = query.shape.rank == 2, given.turned(query.shape)
    wide = tf.float64 if query.dtype == tf.float64 else tf.float32
    query, key, value = (
        one[None] if flat else _swapped(one) if turned else one for one in (query, key, value)
    )
    batch = _batch(query, key, value)
    scale = arguments.get("scale")
    sinks = _dense(arguments, "sinks")
    return Lowered(
        arguments,
        tf.broadcast_to(query, [*batch, *(size(query, axis) for axis in (-3, -2, -1))]),
        key,
        value,
        _dense(arguments, "mask"),
        _dense(arguments, "bias"),
        None if sinks is None else tf.cast(sinks, wide)[:, None, None],
        tf.cast(size(query, -1), wide) ** -0.5 if scale is None else float(scale),
        batch,
        size(query, -3),
        size(query, -2),
        size(key, -2),
        wide,
        flat,
        turned,
    )


def block(call: Lowered, number: Any) -> Block:
    """The block of this number."""
    height = call.height
    first = tf.cast(number * height, tf.int64)
    rows = first + tf.range(tf.cast(height, tf.int64), dtype=tf.int64)
    query = tf.cast(take(call.query, rows), call.wide)
    scores = by_group(call, query, tf.cast(call.key, call.wide), transposed=True) * call.scale
    slope = None
    if cap := call.arguments.get("softcap"):
        bent = tf.tanh(scores / cap)
        scores, slope = cap * bent, 1 - bent * bent
    allowed = _allowed(call, rows)
    if call.mask is not None:
        allowed &= take(call.mask, rows)
    if call.bias is not None:
        bias = take(call.bias, rows)
        allowed &= bias != tf.constant(-math.inf, bias.dtype)
        # What is finite stays finite, since -inf excludes.
        added, most = tf.cast(bias, call.wide), call.wide.max
        limited = tf.clip_by_value(added, -most, most)
        scores += tf.where(tf.math.is_finite(bias), limited, added)
    allowed = tf.broadcast_to(allowed, tf.shape(scores))
    scores = tf.where(allowed, scores, tf.constant(-math.inf, call.wide))
    kept = _kept(call, rows) if call.arguments.get("dropout") else None
    return Block(rows, scores, allowed, slope, kept)


def size(tensor: Any, axis: int) -> Any:
    """The size of an axis: an int if it is known."""
    known = tensor.shape[axis]
    return tf.shape(tensor)[axis] if known is None else known


def take(dense: Any, rows: Any) -> Any:
    """These rows, axis -2, of an array that may have only one, or none, for all."""
    if dense.shape.rank < 2 or dense.shape[-2] == 1:
        return dense
    last = tf.cast(size(dense, -2), rows.dtype) - 1
    return tf.gather(dense, tf.minimum(rows, last), axis=-2)


def by_group(call: Lowered, rows: Any, shared: Any, transposed: bool = False) -> Any:
    """(B…, H, R, n) @ (B…, G, n, m): heads that share a factor are stacked, it is not copied."""
    count = size(rows, -2)
    stacked = _stacked(call, rows, shared)
    # TensorFlow 2.21, left to repeat a batch axis itself, writes out of bounds on some processors.
    if stacked.shape[:-3] != shared.shape[:-3]:
        shared = tf.broadcast_to(shared, [*call.batch, *(size(shared, n) for n in (-3, -2, -1))])
    product = tf.matmul(stacked, shared, transpose_b=transposed)
    return tf.reshape(product, [*call.batch, call.heads, count, size(product, -1)])


def over_rows(call: Lowered, left: Any, right: Any, shared: Any) -> Any:
    """Sum over rows and the heads of a group: (B…, H, R, n), (B…, H, R, m) → (B…, G, n, m)."""
    left, right = _stacked(call, left, shared), _stacked(call, right, shared)
    return tf.matmul(left, right, transpose_a=True)


def _stacked(call: Lowered, rows: Any, shared: Any) -> Any:
    groups = size(shared, -3)
    stack = call.heads * size(rows, -2) // groups
    return tf.reshape(rows, [*call.batch, groups, stack, size(rows, -1)])


def _swapped(tensor: Any) -> Any:
    axes = list(range(tensor.shape.rank))
    axes[-2], axes[-3] = axes[-3], axes[-2]
    return tf.transpose(tensor, axes)


def _batch(*tensors: Any) -> list[Any]:
    """The batch axes of all, broadcast."""
    axes = []
    for axis in range(tensors[0].shape.rank - 3):
        known = [one.shape[axis] for one in tensors]
        more = [n for n in known if n not in (1, None)]
        if more or None not in known:
            axes.append(more[0] if more else 1)
        else:
            axes.append(tf.reduce_max(tf.stack([tf.shape(one)[axis] for one in tensors])))
    return axes


def _dense(arguments: dict[str, Any], name: str) -> Any:
    """A mask, bias or sinks as a tensor."""
    given = arguments.get(name)
    if given is None or is_tensor(given):
        return given
    return tf.convert_to_tensor((booleans if name == "mask" else addends)(name, given))


def _numbers(given: Any, *axes: Any) -> Any:
    """Integers of (B…) or (B…, T) beside (B…, H, T, S)."""
    return tf.cast(tf.convert_to_tensor(given), tf.int64)[(..., *axes)]


def _allowed(call: Lowered, rows: Any) -> Any:
    """Who may attend, but for mask and bias: booleans that broadcast to (B…, H, R, S)."""
    item, row = (None, None, None), (None, slice(None), None)
    keys = tf.range(tf.cast(call.keys, tf.int64), dtype=tf.int64)
    allowed = (rows < tf.cast(call.queries, tf.int64))[:, None]
    options = call.arguments
    before, after = options.get("window") or (None, None)
    if options.get("causal"):
        after = 0
    if before is not None or after is not None:
        place = _offset(call) + rows[:, None]
        if before is not None:
            allowed &= keys >= place - min(before, _FAR)
        if after is not None:
            allowed &= keys <= place + min(after, _FAR)
    if (lengths := options.get("key_lengths")) is not None:
        allowed &= keys < _numbers(lengths, *item)
    if (ranges := options.get("ranges")) is not None:
        first, past = (take(_numbers(ranges[n], *row), rows) for n in (0, 1))
        allowed &= (keys >= first) & (keys < past)
    if (segments := options.get("segments")) is not None:
        paired = isinstance(segments, tuple) and len(segments) == 2
        of_queries, of_keys = segments if paired else (segments, segments)
        allowed &= take(_numbers(of_queries, *row), rows) == _numbers(
            of_keys, None, None, slice(None)
        )
    return allowed


def _offset(call: Lowered) -> Any:
    given = call.arguments.get("query_offset")
    if isinstance(given, int):
        return tf.constant(max(-_FAR, min(given, _FAR)), tf.int64)
    if given is not None:
        numbers = _numbers(given, None, None, None)
        return tf.clip_by_value(numbers, -_FAR, _FAR)
    if type(call.queries) is not int or type(call.keys) is not int:
        message = "query_offset: expected with causal or window where T ≠ S, received None"
        tf.debugging.assert_equal(call.queries, call.keys, message)
    return tf.constant(0, tf.int64)


def _kept(call: Lowered, rows: Any) -> Any:
    """What dropout multiplies weights by, drawn by place as the kernel does."""
    dropout, seed = call.arguments["dropout"], call.arguments["seed"]
    items = tf.reshape(tf.range(tf.reduce_prod([1, *call.batch])), [*call.batch, 1, 1, 1])
    heads, keys = tf.range(call.heads)[:, None, None], tf.range(call.keys)
    counter = [tf.cast(one, tf.uint64) for one in (items, heads, rows[:, None], keys)]
    if is_tensor(seed):
        # The same 64 bits, whatever the sign.
        seed = tf.bitcast(tf.cast(seed, tf.int64), tf.uint64) if seed.dtype != tf.uint64 else seed
        words = seed % 2**32, seed // 2**32
    else:
        words = int(seed) % 2**32, int(seed) % 2**64 // 2**32
    threshold = math.ceil(dropout * 2**32)
    kept = philox(counter, words)[0] >= tf.constant(threshold, tf.uint64)
    return tf.cast(kept, call.wide) / (1 - dropout)
