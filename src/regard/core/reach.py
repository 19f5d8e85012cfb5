"""Which keys a row may see: positions, windows, ranges and segments as bounds for each row.

`causal`, `window` and `query_offset` become two bounds around the row's own number; `ranges` and
sorted `segments` become a first and a past key for each row. Only unsorted segments stay what they
are. Nothing here has more than T + S numbers an item.
"""

from typing import Any

import numpy as np

from regard.core.arguments import Array, ShapeError, expect, integer, integers, kind, plain

_FAR = 2**62  # farther than any array is long, and int64 can still add two of them


def band(
    causal: Any, window: Any, query_offset: Any, batch: tuple[int, ...], rows: int, keys: int
) -> tuple[Array | None, Array | None, int | Array]:
    """Lower causal and window: row i sees key j where i + lower <= j < i + upper.

    Returns lower, upper and the position of the first query among the keys.
    """
    if not isinstance(causal, bool | np.bool_):
        raise TypeError(f"causal: expected True or False, received {causal!r}")
    before, after = (None, None) if window is None else _distances(window)
    if causal:
        after = 0
    offset: Any = 0
    if query_offset is not None:
        offset = _offset(query_offset, batch)
    elif rows != keys and (causal or window is not None):
        raise ShapeError(
            f"query_offset: expected with causal or window where the number of queries ({rows}) "
            f"is not that of the keys ({keys}), because libraries disagree, received None. Write "
            f"query_offset=0 where the first query meets the first key, or "
            f"query_offset={keys - rows} where the last query meets the last key."
        )
    lower = None if before is None else _clamp(offset - before, -rows - 1, keys + 1)
    upper = None if after is None else _clamp(offset + after + 1, -rows - 1, keys + 1)
    return lower, upper, _clamp(offset, -_FAR, _FAR) if query_offset is not None else 0


def _clamp(position: Any, lowest: int, highest: int) -> Array:
    """Bring Python ints, one or an array, into reach; one beyond is as good as any other."""
    if isinstance(position, int):
        return np.array(min(max(position, lowest), highest))
    return np.asarray(np.clip(position, lowest, highest), dtype=np.int64)


def _distances(window: Any) -> tuple[int | None, int | None]:
    if not isinstance(window, tuple | list) or len(window) != 2:
        raise TypeError(
            f"window: expected a pair (before, after) of distances or None, received {window!r}"
        )
    before, after = (None if n is None else integer("window", n) for n in window)
    if (before or 0) < 0 or (after or 0) < 0:
        raise ValueError(
            "window: expected distances of at least 0, or None for an open side, "
            f"received {window!r}"
        )
    return before, after


def _offset(given: Any, batch: tuple[int, ...]) -> Any:
    """Read the offset as Python ints, one or an array of them: they cannot overflow."""
    if isinstance(given, int | np.integer):
        return integer("query_offset", given)
    array = plain("query_offset", given)
    expect("query_offset", array, "(B…)", batch)
    exact = array.astype(object)
    if not all(type(n) is int for n in exact.flat):
        raise TypeError(f"query_offset: expected integers, received {kind(given, array)}")
    return exact if array.ndim else exact.item()


def lengths(given: Any, batch: tuple[int, ...], keys: int) -> Array:
    """Read `key_lengths`, which broadcast to (B…)."""
    array = integers("key_lengths", given)
    expect("key_lengths", array, "(B…)", batch)
    return _within("key_lengths", array, keys)


def ranges(given: Any, batch: tuple[int, ...], rows: int, keys: int) -> tuple[Array, Array]:
    """Read the pair `ranges`, each of (B…, T)."""
    if not isinstance(given, tuple | list | np.ndarray) or len(given) != 2:
        raise TypeError(f"ranges: expected a pair (first, past), received {given!r}")
    first, past = (integers("ranges", part) for part in given)
    for part in (first, past):
        expect("ranges", part, "(B…, T)", (*batch, rows))
    return _along(_within("ranges", first, keys), rows), _along(_within("ranges", past, keys), rows)


def _within(name: str, array: Array, keys: int) -> Array:
    wrong = array[(array < 0) | (array > keys)]
    if wrong.size:
        raise ValueError(f"{name}: expected 0..{keys}, the number of keys, received {wrong[0]}")
    return array


def segments(given: Any, batch: tuple[int, ...], rows: int, keys: int) -> tuple[Array, Array]:
    """Read `segments`: the segment of each query (B…, T) and of each key (B…, S)."""
    paired = isinstance(given, tuple) and len(given) == 2 and np.ndim(given[0]) > 0
    if not paired and rows != keys:
        raise ShapeError(
            "segments: expected a tuple of two, the queries' and the keys', "
            f"where there are {rows} queries and {keys} keys."
        )
    of_queries, of_keys = (
        integers("segments", part) for part in (given if paired else (given,) * 2)
    )
    expect("segments", of_queries, "(B…, T)", (*batch, rows))
    expect("segments", of_keys, "(B…, S)", (*batch, keys))
    return _along(of_queries, rows), _along(of_keys, keys)


def sorted_segments(of_queries: Array, of_keys: Array) -> tuple[Array, Array] | None:
    """Lower segments to a first and a past key for each row, if every item's keys are sorted."""
    if (of_keys[..., 1:] < of_keys[..., :-1]).any():
        return None
    items = np.broadcast_shapes(of_queries.shape[:-1], of_keys.shape[:-1])
    of_queries = np.broadcast_to(of_queries, items + of_queries.shape[-1:])
    of_keys = np.broadcast_to(of_keys, items + of_keys.shape[-1:])
    first, past = np.empty(of_queries.shape, np.int64), np.empty(of_queries.shape, np.int64)
    for item in np.ndindex(items):
        first[item] = np.searchsorted(of_keys[item], of_queries[item], "left")
        past[item] = np.searchsorted(of_keys[item], of_queries[item], "right")
    return first, past


def _along(array: Array, length: int) -> Array:
    """Give the last axis its length, as a view."""
    return np.broadcast_to(array, (*array.shape[:-1], length))
