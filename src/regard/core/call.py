"""One attention call as a checked value: what `attention` promises, before any work is done.

`check` takes every argument of a call, refuses what makes no sense in words that name the
argument, what was expected and what was received, and lowers the rest to the one inner form that
the kernel knows: a key range for each row, plus, where given, segments, a dense mask and a dense
bias. Nothing is expanded, and query, key and value are not copied.

Shapes: `B…` leading batch axes, `H` query heads, `G` key heads, `T` queries, `S` keys, `D` query
and key width, `V` value width.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from regard.core import reach
from regard.core.arguments import (
    FLOAT64,
    Array,
    ShapeError,
    addends,
    bits,
    booleans,
    broadcasts,
    floating,
    integer,
    native,
    number,
    plain,
)


class Rule(NamedTuple):
    """How scores are made and who may attend what: the kernel's thirteen values, in its order.

    Batch axes may be 1 or absent, and so may all axes of mask and bias. All limits hold together.
    """

    scale: float
    softcap: float  # 0: none
    mask: Array | None  # booleans against (B…, H, T, S)
    bias: Array | None  # floats against (B…, H, T, S); bfloat16 as its bits
    sinks: Array | None  # (H,) float64
    lower: Array | None  # (B…): row i sees key j where i + lower <= j
    upper: Array | None  # (B…): … and j < i + upper
    lengths: Array | None  # (B…): … and j < lengths
    first: Array | None  # (B…, T): … and first <= j
    past: Array | None  # (B…, T): … and j < past
    query_segments: Array | None  # (B…, T): … and both segments are equal
    key_segments: Array | None  # (B…, S)
    row_offset: int  # the number of the first row, for lower and upper


class Call(NamedTuple):
    """A checked call: three arrays, and the rule."""

    query: Array  # (B…, H, T, D), with all batch axes
    key: Array  # (B…, G, S, D), whose batch axes may be 1
    value: Array  # (B…, G, S, V), whose batch axes may be 1
    shape: tuple[int, ...]  # (B…, H, T, S)
    rule: Rule
    flat: bool  # the caller's arrays had no head axis
    query_offset: int | Array  # position of the first query among the keys; broadcasts to B…
    dropout: float
    seed: int
    high: bool  # precision="high" is good enough

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch axes."""
        return self.shape[:-3]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype that query, key and value share."""
        return self.query.dtype


def check(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    query_offset: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    segments: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
    ranges: tuple[ArrayLike, ArrayLike] | None = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    precision: str = "highest",
) -> Call:
    """Check one attention call and lower it to the form that the kernel computes.

    The arguments are those of `regard.attention`. A `TypeError` or `ValueError` names the
    argument, what was expected and what was received; where shapes do not fit, it holds all shapes.

    >>> call = check(np.ones((2, 3, 5)), np.ones((1, 7, 5)), np.ones((1, 7, 4)), scale=1)
    >>> call.shape
    (2, 3, 7)
    """
    lower = upper = length = first = past = of_queries = of_keys = None
    offset: int | Array = 0
    try:
        q, k, v, shape, flat = _operands(query, key, value)
        batch, (heads, rows, keys) = shape[:-3], shape[-3:]
        if mask is not None:
            mask = _dense("mask", booleans("mask", mask), shape, flat)
        if bias is not None:
            bias = bits(_dense("bias", addends("bias", bias), shape, flat))
        if sinks is not None:
            sinks = _sinks(sinks, heads)
        if causal is not False or window is not None or query_offset is not None:
            lower, upper, offset = reach.band(causal, window, query_offset, batch, rows, keys)
        if key_lengths is not None:
            length = reach.lengths(key_lengths, batch, keys)
        if ranges is not None:
            first, past = reach.ranges(ranges, batch, rows, keys)
        if segments is not None:
            of_queries, of_keys = reach.segments(segments, batch, rows, keys)
            if (found := reach.sorted_segments(of_queries, of_keys)) is not None:
                first = found[0] if first is None else np.maximum(first, found[0])
                past = found[1] if past is None else np.minimum(past, found[1])
                of_queries = of_keys = None
    except ShapeError as error:
        given: dict[str, Any] = {"query": query, "key": key, "value": value, "mask": mask}
        given |= {"bias": bias, "sinks": sinks, "query_offset": query_offset}
        given |= {"key_lengths": key_lengths, "segments": segments, "ranges": ranges}
        raise ValueError(f"{error}\nReceived {_shapes(given)}") from None

    if scale is None:
        scale = 1.0 / math.sqrt(q.shape[-1])
    else:
        scale = number("scale", scale, "a finite number", math.isfinite)
    if softcap is None:
        softcap = 0.0
    else:
        softcap = number("softcap", softcap, "a finite number above 0", lambda c: 0 < c < math.inf)
        if q.dtype != FLOAT64:  # float32 holds it then, and no weight changes
            softcap = min(max(softcap, 1e-30), 1e30)
    if dropout != 0 or seed is not None:
        dropout = number("dropout", dropout, "a probability in [0, 1)", lambda p: 0 <= p < 1)
        seed = _seed(seed, dropout)
    if precision not in ("highest", "high"):
        raise ValueError(f"precision: expected 'highest' or 'high', received {precision!r}")
    rule = Rule(
        scale, softcap, mask, bias, sinks, lower, upper, length, first, past, of_queries, of_keys, 0
    )
    return Call(q, k, v, shape, rule, flat, offset, dropout, seed or 0, precision == "high")


def _operands(
    query: ArrayLike, key: ArrayLike, value: ArrayLike
) -> tuple[Array, Array, Array, tuple[int, ...], bool]:
    """Read query, key and value; also return (B…, H, T, S) and whether the head axis was added."""
    q, k, v = floating("query", query), floating("key", key), floating("value", value)
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(
            f"query, key and value: expected one dtype, received {q.dtype}, {k.dtype} and {v.dtype}"
        )
    if not 2 <= q.ndim == k.ndim == v.ndim <= 32:
        raise ShapeError("query, key and value: expected the same number of axes, 2 to 32.")
    if flat := q.ndim == 2:
        q, k, v = q[None], k[None], v[None]
    *batch, heads, rows, width = q.shape
    *key_batch, key_heads, keys, key_width = k.shape
    *value_batch, value_heads, values, _ = v.shape
    if width == 0 or key_width != width:
        raise ShapeError("query and key: expected one width (axis -1), at least 1.")
    if value_heads != key_heads or values != keys:
        raise ShapeError("value: expected as many heads and keys (axes -3 and -2) as in key.")
    if heads % key_heads if key_heads else heads:
        raise ShapeError(
            "query and key: expected query's number of heads (axis -3) to be a multiple of key's, "
            f"received {heads} and {key_heads}."
        )
    if not batch == key_batch == value_batch:
        try:
            batch[:] = np.broadcast_shapes(tuple(batch), tuple(key_batch), tuple(value_batch))
        except ValueError:
            raise ShapeError("query, key and value: expected batch axes equal or 1.") from None
        q = np.broadcast_to(q, (*batch, heads, rows, width))
    return q, k, v, (*batch, heads, rows, keys), flat


def _dense(name: str, array: Array, shape: tuple[int, ...], flat: bool) -> Array:
    """Refuse a mask or bias that does not broadcast against the call, or could mean two things."""
    batch, heads, keys = shape[:-3], shape[-3], shape[-1]
    target = shape[1:] if flat else shape
    of_items = len(batch) == 1 and array.ndim == 3 and array.shape[0] == batch[0]
    if of_items and batch[0] == heads > 1:
        raise ShapeError(
            f"{name}: expected it to be clear whether {array.shape} is one for each head or one "
            f"for each batch item. Write {name}[None] for heads, {name}[:, None] for items."
        )
    if broadcasts(array.shape, target):
        return array
    hint = ""
    if of_items:
        hint = f" For one {name} for each batch item write {name}[:, None]."
    elif len(batch) == 1 and array.shape == (batch[0], keys):
        hint = f" For one row of keys for each batch item write {name}[:, None, None]."
    raise ShapeError(
        f"{name}: expected a shape that broadcasts to {target}, received {array.shape}.{hint}"
    )


def _sinks(given: ArrayLike, heads: int) -> Array:
    array = addends("sinks", given)
    if array.shape != (heads,):
        raise ShapeError(f"sinks: expected shape (H,) = ({heads},), received {array.shape}.")
    return native(array, np.dtype(np.float64))


def _seed(seed: int | None, dropout: float) -> int:
    if seed is None:
        raise ValueError(
            f"seed: expected an integer with dropout={dropout:g}, received None; "
            "the same seed drops the same weights"
        )
    found = integer("seed", seed)
    if not -(2**63) <= found < 2**64:
        raise ValueError(f"seed: expected an integer of 64 bits, received {found}")
    return found % 2**64


def _shapes(arguments: dict[str, Any]) -> str:
    """Write 'query (2, 3), key (5, 3), …' for the arguments that are given."""
    said = []
    for name, given in arguments.items():
        if given is not None:
            pair = isinstance(given, tuple) and name in ("segments", "ranges")
            shapes = (str(plain(name, part).shape) for part in (given if pair else (given,)))
            said.append(f"{name} {' and '.join(shapes)}")
    return ", ".join(said) + "."
