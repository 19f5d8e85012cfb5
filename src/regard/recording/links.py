"""How words read words: a link's weight, and what the other rows give.

The weight of a link is summed over the pieces of the word that is read and averaged over the
pieces of the word that reads. What the others give comes from rows outside the reading word: on
average to the same key (`baseline`), and on average at the same distance (`by_distance`). A head
that gives a word the same weight whoever asks, or looks one back whatever stands there, has links
of much weight and no lift.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from regard.core.arguments import Array
from regard.recording.layer import Layer

# What the arrays of one block of reading words may take.
_BLOCK_BYTES = 32 << 20
# Rows so near each other are computed together.
_GAP = 32

# One link of `edges`, `reads` and `read_by`; query and key are the words' first positions.
PLACES, NUMBERS = ("item", "layer", "head", "query", "key"), ("weight", "baseline", "by_distance")
LINK = np.dtype([*((name, np.int64) for name in PLACES), *((name, np.float64) for name in NUMBERS)])

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
    keys = np.array([position for group in read for position in group], np.int64)
    begins = np.cumsum([0, *map(len, read)])[:-1]

    def summed(single: Array) -> Array:
        shape = (*single.shape[:-1], 0)
        numbers = single.astype(np.float64)
        return np.add.reduceat(numbers, begins, axis=-1) if len(begins) else np.zeros(shape)

    for block in blocks(layer, readers):
        head, reader = np.ix_(np.arange(len(layer.heads)), np.arange(len(block.numbers)))
        yield (
            block.numbers,
            words(cells(layer, block, head[..., None], reader[..., None], keys), summed),
        )


class Block(NamedTuple):
    """Some readers of as many pieces each, and the weights of a stretch of rows with theirs."""

    numbers: list[int]
    rows: Array  # (n, pieces): which rows of the layer they are
    first: int  # the stretch begins at this row
    weights: Array  # (H, rows of the stretch, S)
    allowed: Array  # likewise


def blocks(layer: Layer, readers: Sequence[Group]) -> Iterator[Block]:
    """All weights of these words' rows, stretch by stretch."""
    heads, _, keys = layer.shape
    most = max(1, _BLOCK_BYTES // (heads * keys * 8))
    order = sorted(range(len(readers)), key=lambda n: min(readers[n]))
    while order:
        # Rows that stand near each other are computed together, with those in between.
        first, past, taken = min(readers[order[0]]), 0, 0
        for taken, n in enumerate(order):
            low, high = min(readers[n]), max(readers[n]) + 1
            if taken and (high - first > most or low - past > _GAP):
                break
            past = max(past, high)
        else:
            taken = len(order)
        some, order = order[:taken], order[taken:]
        first, stretch = first - layer.offset, slice(first - layer.offset, past - layer.offset)
        weights, allowed = layer.weights[:, stretch], layer.allowed[:, stretch]
        for size in sorted({len(readers[n]) for n in some}):
            alike = [n for n in some if len(readers[n]) == size]
            rows = np.array([readers[n] for n in alike]) - layer.offset
            yield Block(alike, rows, first, weights, allowed)


def cells(layer: Layer, block: Block, head: Array, reader: Array, key: Array) -> Links:
    """What readers of a block have to do with single keys; the three numbers broadcast."""
    sums, queries, keys = layer.sums, *layer.shape[1:]
    rows, pieces = block.rows[reader], range(block.rows.shape[1])
    at = [rows[..., i] - block.first for i in pieces]
    weights = [block.weights[head, at[i], key].astype(np.float64) for i in pieces]
    allowed = [block.allowed[head, at[i], key] for i in pieces]
    weight, count = sum(weights[1:], weights[0]), sum(allowed[1:], allowed[0].astype(np.int64))
    baseline = _mean(sums.received[head, key] - weight, sums.seen[head, key] - count)

    by_distance = np.zeros(weight.shape)
    for i in pieces:
        place = key - rows[..., i] + queries - 1  # where the distance stands
        total, times = sums.along[head, place], sums.met[head, place]
        for k in pieces:  # the word's own rows, at the same distance
            other = key + (rows[..., k] - rows[..., i])
            inside = (other >= 0) & (other < keys)
            other = np.where(inside, other, 0)
            total = total - inside * block.weights[head, at[k], other].astype(np.float64)
            times = times - (inside & block.allowed[head, at[k], other])
        by_distance += _mean(total, times) / len(pieces)
    return Links(weight / len(pieces), baseline, by_distance, count > 0)


def words(single: Links, summed: Callable[[Array], Array]) -> Links:
    """Links to single keys, summed up to words."""
    weight, baseline, by_distance, allowed = map(summed, single)
    return Links(weight, baseline, by_distance, allowed > 0)


def _mean(total: Array, count: Array) -> Array:
    """What is left of a sum over what is left of its count; NaN where nothing is."""
    out = np.full(np.broadcast_shapes(total.shape, count.shape), np.nan)
    np.divide(np.maximum(total, 0), count, out=out, where=count > 0)
    return out


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
