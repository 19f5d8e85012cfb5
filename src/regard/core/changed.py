"""A checked call with something changed: on copies, without some keys, or one row alone."""

from typing import Any

import numpy as np

from regard.core.arguments import BFLOAT16, Array
from regard.core.call import Call, Rule
from regard.core.indexing import position_of
from regard.core.tiles import part


def once(array: Array) -> Array:
    """The array without what broadcasting repeats; a view."""
    view: Array = array[tuple(slice(None if step else 1) for step in array.strides)]
    return view


def copied(call: Call) -> Call:
    """The same call on copies of its arrays; axes that broadcasting repeats stay repeated."""

    def copy(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        return np.broadcast_to(once(value).copy(), value.shape)

    arrays = {name: copy(getattr(call, name)) for name in ("query", "key", "value")}
    return call._replace(**arrays, rule=Rule(*map(copy, call.rule)))


def without(call: Call, keys: Array, sink: bool) -> Call:
    """The same call with some keys in a segment that no query is in: so no mask has to grow."""
    of_queries, of_keys = call.rule.query_segments, call.rule.key_segments
    if of_queries is None or of_keys is None:
        of_queries, of_keys = (np.zeros(size, np.int64) for size in call.shape[-2:])
    taken = np.unique(once(of_queries))
    nobody = np.setdiff1d(np.arange(taken.size + 1), taken)[0]
    removed = np.zeros(call.shape[-1], bool)
    removed[keys] = True
    rule = call.rule._replace(
        query_segments=of_queries,
        key_segments=np.where(removed, nobody, of_keys),
        sinks=None if sink else call.rule.sinks,
    )
    return call._replace(rule=rule)


def row(
    call: Call, lse: Array, query: Any, head: Any, item: int | tuple[int, ...]
) -> dict[str, Any]:
    """One row of one head as arguments of `regard.steps`: who may attend becomes one mask."""
    *batch, heads, rows, keys = call.shape
    place = item if isinstance(item, tuple) else (item,)
    if not place and set(batch) <= {1}:
        place = (0,) * len(batch)
    if len(place) != len(batch):
        raise IndexError(f"item: expected one of a batch {tuple(batch)}, received {item!r}")
    at = tuple(position_of(i, n, "item") for i, n in zip(place, batch, strict=True))
    one = part(call, lse, at).head(position_of(head, heads, "head"))
    number = position_of(query, rows, "query")
    span, rule = slice(number, number + 1), one.rule
    bias = rule.bias
    if bias is not None:
        bias = bias.view(BFLOAT16) if bias.dtype == np.uint16 else bias
        bias = np.broadcast_to(bias, (1, rows, keys))[0, span]
    return {
        "query": one.query[0, span],
        "key": one.key[0],
        "value": one.value[0],
        "mask": one.tile("allowed", span, slice(0, keys))[0],
        "bias": bias,
        "sinks": rule.sinks,
        "softcap": rule.softcap or None,
        "scale": rule.scale,
    }
