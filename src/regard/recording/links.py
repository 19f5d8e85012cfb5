"""How words read words: a link's weight, and what the other rows give.

The weight of a link is summed over the pieces of the word that is read and averaged over the
pieces of the word that reads. What the others give comes from rows outside the reading word: on
average to the same key (`baseline`), and on average at the same distance (`by_distance`). A head
that gives a word the same weight whoever asks, or looks one back whatever stands there, has links
of much weight and no lift.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from regard.core.arguments import Array
from regard.recording.layer import Layer

# What the arrays of one block of reading words may take.
_BLOCK_BYTES = 32 << 20

# One link of `edges`, `reads` and `read_by`; query and key are the words' first positions.
_PLACES, _NUMBERS = "item layer head query key", "weight baseline by_distance"
LINK = np.dtype(
    [*((name, np.int64) for name in _PLACES.split()), *((n, np.float64) for n in _NUMBERS.split())]
)

Group = tuple[int, ...]  # the positions of a word


class Links(NamedTuple):
    """Links of some reading words to some read ones, each (H, readers, read)."""

    weight: Array
    baseline: Array
    by_distance: Array
    allowed: Array  # whether the reader may see any piece of the word

    @property
    def lift(self) -> Array:
        """What a row adds to what the others give; NaN where there are no others, or no way."""
        beside = np.maximum(self.baseline, self.by_distance)
        return np.where(self.allowed, self.weight - beside, np.nan)


def walk(
    layer: Layer, readers: Sequence[Group], read: Sequence[Group]
) -> Iterator[tuple[list[int], Links]]:
    """The links of these words, a few readers at a time: (their numbers, their links).

    Words are groups of positions in one item; the layer is (H, T, S), of self-attention.
    """
    heads, _, keys = layer.shape
    for size in sorted({len(group) for group in readers}):
        alike = [n for n, group in enumerate(readers) if len(group) == size]
        step = max(1, _BLOCK_BYTES // (heads * keys * size * 8))
        for begin in range(0, len(alike), step):
            some = alike[begin : begin + step]
            yield some, _links(layer, np.array([readers[n] for n in some]) - layer.offset, read)


def _links(layer: Layer, rows: Array, read: Sequence[Group]) -> Links:
    """Links of n words of m pieces each, whose rows are (n, m)."""
    sums, (heads, queries, keys) = layer.sums, layer.shape
    words, pieces = rows.shape
    flat = (heads, words, pieces, keys)
    weights = layer.weights[:, rows.reshape(-1)].astype(np.float64).reshape(flat)
    allowed = layer.allowed[:, rows.reshape(-1)].reshape(flat)

    received, seen = sums.received[:, None], sums.seen[:, None]
    baseline = _mean(received - weights.sum(axis=2), seen - allowed.sum(axis=2))

    by_distance = np.zeros((heads, words, keys))
    key = np.arange(keys)
    for i in range(pieces):
        place = key - rows[:, i, None] + queries - 1  # (n, S): where the distance stands
        total, count = sums.along[:, place], sums.met[:, place]
        for k in range(pieces):  # the word's own rows, at the same distance
            at = key + (rows[:, k] - rows[:, i])[:, None]
            inside = (at >= 0) & (at < keys)
            at = np.broadcast_to(np.where(inside, at, 0), (heads, words, keys))
            total = total - inside * np.take_along_axis(weights[:, :, k], at, -1)
            count = count - (inside & np.take_along_axis(allowed[:, :, k], at, -1))
        by_distance += _mean(total, count) / pieces

    return Links(
        _summed(weights.mean(axis=2), read),
        _summed(baseline, read),
        _summed(by_distance, read),
        _summed(np.asarray(allowed.any(axis=2)), read) > 0,
    )


def _mean(total: Array, count: Array) -> Array:
    """What is left of a sum over what is left of its count; NaN where nothing is."""
    out = np.full(np.broadcast_shapes(total.shape, count.shape), np.nan)
    np.divide(np.maximum(total, 0), count, out=out, where=count > 0)
    return out


def _summed(values: Array, groups: Sequence[Group]) -> Array:
    """Sum the last axis over each group of positions."""
    if not groups:
        return np.zeros((*values.shape[:-1], 0))
    order = np.concatenate([np.array(group) for group in groups])
    begins = np.cumsum([0, *map(len, groups[:-1])])
    summed: Array = np.add.reduceat(values[..., order].astype(np.float64), begins, axis=-1)
    return summed


def strongest(
    layer: Layer,
    readers: Sequence[Group],
    read: Sequence[Group],
    by: str,
    top: int | None = None,
    head: int | None = None,
) -> Array:
    """The links between these words as rows of `LINK`, the best first; none to the word itself."""
    rows = np.zeros(0, LINK)
    firsts = [np.array([group[0] for group in groups], np.int64) for groups in (readers, read)]
    owner = {position: n for n, group in enumerate(read) for position in group}
    some_heads = (layer.heads == (layer.heads if head is None else head))[:, None, None]
    for some, found in walk(layer, readers, read):
        fits = found.allowed & some_heads
        for n, reader in enumerate(some):
            fits[:, n, list({owner[p] for p in readers[reader] if p in owner})] = False
        value = np.where(fits, found.weight if by == "weight" else found.lift, np.nan)
        value = np.where(fits & np.isnan(value), -np.inf, value)
        if top is not None and np.count_nonzero(fits) > top:
            least = np.partition(value[fits], -top)[-top]
            fits &= value >= least
        at = np.nonzero(fits)
        more = np.zeros(len(at[0]), LINK)
        more["layer"], more["head"] = layer.number, layer.heads[at[0]]
        more["query"], more["key"] = firsts[0][some][at[1]], firsts[1][at[2]]
        for name in _NUMBERS.split():
            more[name] = getattr(found, name)[at]
        rows = best(np.concatenate([rows, more]), by, top)
    return rows


def rank(rows: Array, by: str) -> Array:
    """What rows of `LINK` are ranked by."""
    if by == "weight":
        return np.asarray(rows["weight"])
    return np.asarray(rows["weight"] - np.maximum(rows["baseline"], rows["by_distance"]))


def first_of(rows: Array, names: Sequence[str]) -> Array:
    """The first row of each value of some columns, in the order of the rows."""
    _, first = np.unique(rows[list(names)], return_index=True)
    return rows[np.sort(first)]


def best(rows: Array, by: str, top: int | None = None) -> Array:
    """Rows of `LINK` by rank, the best first; those that cannot be ranked come last."""
    value = rank(rows, by)
    order = np.lexsort((rows["key"], rows["query"], -np.where(np.isnan(value), -np.inf, value)))
    return rows[order[:top]]
