"""The strongest links between words, without working out every link of a long text.

A link's rank is its weight, or its lift, which is no larger. So links of a rank are among those of
as much weight; and a word that is read has as much only if one of its pieces has its share.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from regard.core.arguments import Array
from regard.core.passes import others
from regard.recording.layer import Layer
from regard.recording.links import (
    LINK,
    NUMBERS,
    Group,
    Links,
    best,
    blocks,
    cells,
    rank,
    walk,
    words,
)

FEW = 1 << 19  # so many weights of a layer are all looked at
_LEAST = 1e-4  # below such a rank, too


class _Words(NamedTuple):
    """Words as they stand in a layer: which word each position belongs to, -1 where none."""

    groups: Sequence[Group]
    of: Array  # (positions,)
    size: Array  # of each word
    at: Array  # (words, pieces): its positions, and -1 behind them

    @classmethod
    def among(cls, groups: Sequence[Group], positions: int) -> "_Words":
        size = np.array([len(group) for group in groups], np.int64)
        of, at = np.full(positions, -1), np.full((len(groups), size.max(initial=1)), -1)
        for number, group in enumerate(groups):
            of[list(group)], at[number, : len(group)] = number, group
        return cls(groups, of, size, at)


class _Found(NamedTuple):
    """Some links: numbers of head, reader and word read, and the links themselves, (n,) each."""

    head: Array
    reader: Array
    word: Array
    links: Links


def strongest(
    layer: Layer,
    readers: Sequence[Group],
    read: Sequence[Group],
    by: str,
    top: int | None = None,
    head: int | None = None,
    least: float = -np.inf,
) -> Array:
    """The links between these words as rows of `LINK`, the best first; none to the word itself.

    Where only the best `top` are asked for, those below the rank `least` may be left out.
    """
    rows, keys = layer.shape[1:]
    asking = _Words.among(readers, rows + layer.offset)
    asked = _Words.among(read, keys)
    chosen = np.flatnonzero(layer.heads == (layer.heads if head is None else head))

    def table(found: Iterator[_Found]) -> Array:
        out = np.zeros(0, LINK)
        for some in found:
            kept = _kept(asking, asked, chosen, some, by, top)
            more = np.zeros(len(kept), LINK)
            more["layer"], more["head"] = layer.number, layer.heads[some.head[kept]]
            more["query"], more["key"] = (
                asking.at[some.reader[kept], 0], asked.at[some.word[kept], 0],
            )  # fmt: skip
            for name in NUMBERS:
                more[name] = getattr(some.links, name)[kept]
            out = best(np.concatenate([out, more]), by, top)
        return out

    if top is not None and len(chosen) * rows * keys > FEW:
        limit = max(least, _guess(layer, asking, asked, chosen, by, top))
        while limit > _LEAST:
            found = table(_heavy(layer, asking, asked, limit))
            if limit <= least or np.count_nonzero(rank(found, by) >= limit) >= top:
                return found
            limit = max(least, limit / 4)
    return table(_every(layer, readers, read))


def _every(layer: Layer, readers: Sequence[Group], read: Sequence[Group]) -> Iterator[_Found]:
    """All links that may be."""
    for numbers, links in walk(layer, readers, read):
        at = head, reader, word = np.nonzero(links.allowed)
        yield _Found(head, np.array(numbers)[reader], word, Links(*(x[at] for x in links)))


def _heavy(layer: Layer, asking: _Words, asked: _Words, least: float) -> Iterator[_Found]:
    """All links of at least so much weight, and some lighter ones."""
    share = np.append(least * (1 - 1e-5) / asked.size, np.inf)[asked.of]  # -1: of no word
    for block in blocks(layer, asking.groups):
        pieces = [block.weights[:, rows - block.first] for rows in block.rows.T]
        enough = sum(pieces[1:], pieces[0]) >= (len(pieces) * share).astype(pieces[0].dtype)
        head, reader, key = np.unravel_index(np.flatnonzero(enough), enough.shape)
        places = np.stack([head, reader, asked.of[key]])
        places = np.unique(places, axis=1) if (asked.size > 1).any() else places
        for size in np.unique(asked.size):
            head, reader, word = places[:, asked.size[places[2]] == size]
            links = cells(layer, block, head[:, None], reader[:, None], asked.at[word, :size])
            links = words(links, lambda single: single.astype(np.float64).sum(axis=-1))
            yield _Found(head, np.array(block.numbers, np.int64)[reader], word, links)


def _guess(layer: Layer, asking: _Words, asked: _Words, heads: Array, by: str, top: int) -> float:
    """A rank that about `top` links reach: that of the best key of each row, taken alone."""
    weights, baseline, key = (
        array[heads, :, 0] for array in layer.top(1, by="lift" if by == "lift" else "weight")
    )
    rows = np.arange(weights.shape[-1])
    if by == "lift":
        sums, place = layer.sums, key - rows + len(rows) - 1
        along, met = (total[heads[:, None], place] for total in (sums.along, sums.met))
        weights = weights - np.maximum(baseline, others(along, met, weights, weights > 0))
    reader, word = asking.of[rows + layer.offset], asked.of[key]
    weights = weights[(key >= 0) & (reader >= 0) & (word >= 0) & (weights == weights)]
    return float(np.partition(weights, -top)[-top]) if len(weights) > top else 0.0


def _kept(
    asking: _Words, asked: _Words, heads: Array, found: _Found, by: str, top: int | None
) -> Array:
    """Which links are of these heads and not of a word to itself; only the best, if so asked."""
    pieces = asking.at[found.reader]
    own = (np.where(pieces < 0, -1, asked.of[pieces]) == found.word[:, None]).any(axis=1)
    at = np.flatnonzero(~own & np.isin(found.head, heads) & found.links.allowed)
    if top is None or len(at) <= top:
        return at
    value = (found.links.weight if by == "weight" else found.links.lift)[at]
    value = np.where(np.isnan(value), -np.inf, value)
    best_of: Array = at[value >= np.partition(value, -top)[-top]]
    return best_of
