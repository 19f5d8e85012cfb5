"""What the kernel finds in one pass over all weights: sums, the keys that stand out, maps.

Weights are rebuilt tile by tile from lse and none is kept. Rows of padding (`real` False) count
nowhere but in `entropy` and in each row's own keys.
"""

import math
from typing import NamedTuple

import numpy as np

from regard import _kernel
from regard.core.arguments import Array, bits
from regard.core.arguments import real as weight_dtype
from regard.core.call import Call


class Top(NamedTuple):
    """The keys that stand out in each row, the best first; all three (B…, H, T, k).

    `baseline` is what the other rows give the same key on average, NaN where no other row may see
    it. Where a row has fewer keys to rank, `positions` is -1, `weights` 0 and `baseline` NaN.

    >>> import regard
    >>> table = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> regard.look(table, table, table).top(1).positions[:, 0]
    array([0, 1, 2])
    """

    weights: Array
    baseline: Array
    positions: Array


class Sums(NamedTuple):
    """What all real rows of an item and head give together, float64 and int64.

    A weight of row i on key j is counted in `received` at j and in `along` at j - i + T - 1;
    `seen` and `met` count the pairs that were added up there, those that may attend.
    """

    received: Array  # (B…, H, S)
    seen: Array  # (B…, H, S)
    along: Array  # (B…, H, T + S - 1)
    met: Array  # (B…, H, T + S - 1)
    entropy: Array  # (B…, H, T), of every row: -Σ w ln w, in nats


class Maps(NamedTuple):
    """The weights of the pairs that may attend, cell by cell: (B…, H, rows, columns), float64."""

    mean: Array
    max: Array


def sums(
    call: Call,
    lse: Array,
    real: Array | None,
    same: tuple[Array, Array, Array] | None = None,
    best: tuple[Array, Array] | None = None,
    cells: tuple[Array, Array, Array] | None = None,
) -> Sums:
    """One pass over all weights, in the kernel; each head is summed in one order.

    `same`: an id for each row (B…, T) and each key (B…, S), int64 and not negative, and an array
    (B…, H, 2) that is given the weight that rows have on keys of their own id, and on the keys
    right behind such ones. `best`: arrays that are given what `strongest` returns. `cells`: arrays
    that are given sums, largest weights and counts of a map's cells.
    """
    *lead, queries, keys = call.shape
    distances = max(0, queries + keys - 1)
    out = Sums(
        received=np.zeros((*lead, keys)),
        seen=np.zeros((*lead, keys), np.int64),
        along=np.zeros((*lead, distances)),
        met=np.zeros((*lead, distances), np.int64),
        entropy=np.zeros((*lead, queries)),
    )
    query, key = bits(call.query), bits(call.key)
    row_ids, key_ids, together = same or (None, None, None)
    weights, positions = best or (None, None)
    total, largest, count = cells or (None, None, None)
    _kernel.sums(
        query, key, lse, real, out.received, out.seen, out.along, out.met, out.entropy,
        row_ids, key_ids, together, weights, positions, total, largest, count, *call.rule,
    )  # fmt: skip
    return out


def together(
    call: Call, lse: Array, real: Array | None, k: int, cells: tuple[int, int] | None
) -> tuple[Sums, Top | None, Maps | None]:
    """In one pass the sums, the k keys of each row with the most weight (unless 0), and maps.

    There must be queries and keys.
    """
    best = _room(call, k) if k else None
    maps = _cells(call, cells) if cells else None
    found = sums(call, lse, real, best=best, cells=maps)
    top = beside_others(best, real, found) if best else None
    return found, top, _pooled(*maps) if maps else None


def beside_others(best: tuple[Array, Array], real: Array | None, sums: Sums) -> Top:
    """Weights and positions of all rows' keys, with what the other rows give them."""
    weights, positions = best
    found, *lead, keys = positions >= 0, *sums.seen.shape
    heads = np.arange(math.prod(lead)).reshape(*lead, 1, 1)
    # By number in the whole array: several times as fast as NumPy's indexing along an axis.
    at = np.maximum(positions, 0) + heads * keys
    given, times = sums.received.take(at), sums.seen.take(at)
    counted = found if real is None else found & real[..., None, :, None]
    beside = np.where(found, others(given, times, weights, counted), np.nan)
    return Top(weights, beside.astype(weights.dtype), positions)


def others(total: Array, count: Array, weights: Array, inside: Array) -> Array:
    """The mean without one's own weight, where that was counted; NaN where nothing is left."""
    mean, count = total - np.where(inside, weights, 0), count - inside
    # What is left of a sum of weights can't be below 0, only its last bit can.
    np.maximum(mean, 0, out=mean)
    np.divide(mean, count, out=mean, where=count > 0)
    mean[count == 0] = np.nan
    return mean.astype(weights.dtype, copy=False)


def strongest(
    call: Call, lse: Array, k: int, real: Array | None = None, beyond: Sums | None = None
) -> tuple[Array, Array]:
    """The k largest weights of every row and the keys that get them, (B…, H, T, k) each.

    `beyond`: the largest beyond what the other rows give, of which those count that are `real`.
    """
    weights, positions = _room(call, k)
    query, key = bits(call.query), bits(call.key)
    real_rows, received, seen, along, met = (real, *beyond[:4]) if beyond else (None,) * 5
    _kernel.top(
        query, key, lse, real_rows, received, seen, along, met, weights, positions, *call.rule
    )
    return weights, positions


def _room(call: Call, k: int) -> tuple[Array, Array]:
    """Arrays for weights and positions of k keys for every row."""
    shape = (*call.shape[:-1], k)
    return np.empty(shape, weight_dtype(call.dtype)), np.empty(shape, np.int64)


def maps(call: Call, lse: Array, real: Array | None, cells: tuple[int, int]) -> Maps:
    """The weights pooled into (rows, columns) cells, cut at floor(i · T / rows)."""
    total, largest, count = _cells(call, cells)
    query, key = bits(call.query), bits(call.key)
    _kernel.map(query, key, lse, real, total, largest, count, *call.rule)
    return _pooled(total, largest, count)


def _cells(call: Call, cells: tuple[int, int]) -> tuple[Array, Array, Array]:
    """Arrays for sums, largest weights and counts of a map's cells."""
    shape = (*call.shape[:-2], *cells)
    return np.zeros(shape), np.full(shape, -np.inf), np.zeros(shape, np.int64)


def _pooled(total: Array, largest: Array, count: Array) -> Maps:
    """Means and largest weights; NaN where a cell has no pair that may attend."""
    np.divide(total, count, out=total, where=count > 0)
    total[count == 0] = largest[count == 0] = np.nan
    return Maps(total, largest)
