"""What can be said of all weights without holding them: sums over rectangles of bounded size.

Sums, maps and the strongest keys of all rows are one pass in the kernel each; the rest walks over a
call once, `blocks` by `blocks`. What is kept is linear in queries and keys; sums are float64. Rows
of padding (`real` False) count nowhere but in `mass`, `carry` and `entropy`, which answer row by
row.
"""

from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike

from regard import _kernel
from regard.core.arguments import Array, bits
from regard.core.arguments import real as weight_dtype
from regard.core.call import Call
from regard.core.tiles import Part, blocks, runs


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


def sums(
    call: Call,
    lse: Array,
    real: Array | None,
    same: tuple[Array, Array, Array] | None = None,
    best: tuple[Array, Array] | None = None,
) -> Sums:
    """One pass over all weights, in the kernel; each head is summed in one order.

    `same`: an id for each row (B…, T) and each key (B…, S), int64 and not negative, and an array
    (B…, H, 2) that is given the weight that rows have on keys of their own id, and on the keys
    right behind such ones. `best`: arrays that are given what `strongest` returns.
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
    _kernel.sums(
        query, key, lse, real, out.received, out.seen, out.along, out.met, out.entropy,
        row_ids, key_ids, together, weights, positions, *call.rule,
    )  # fmt: skip
    return out


# ------------------------------------------------------------- a weight beside the other rows'


def own(real: Array | None, part: Part, rows: slice, keys: slice) -> tuple[Array, Array]:
    """Weights, and whether they are among those that were summed up: allowed, and no padding."""
    inside = part.allowed(rows, keys)
    if real is not None:
        inside &= real[part.where[:-1]][rows, None]
    return part.tile("weights", rows, keys), inside


def baseline(
    sums: Sums, part: Part, rows: slice, keys: slice, weights: Array, inside: Array
) -> Array:
    """What the other rows give the same key, on average; NaN where no other row may see it."""
    received, seen = sums.received[part.where], sums.seen[part.where]
    return _others(received[:, None, keys], seen[:, None, keys], weights, inside)


def by_distance(
    sums: Sums, part: Part, rows: slice, keys: slice, weights: Array, inside: Array
) -> Array:
    """What the other rows give at the same distance, on average; NaN where none can."""
    # One row further down, the same distance is one place further to the left.
    last = part.query.shape[-2] - rows.stop
    ends = slice(last + keys.start, last + keys.stop + rows.stop - rows.start - 1)
    along, met = (
        sliding_window_view(total[part.where][:, ends], keys.stop - keys.start, axis=-1)[:, ::-1]
        for total in (sums.along, sums.met)
    )
    return _others(along, met, weights, inside)


def contribution(part: Part, rows: slice, keys: slice) -> Array:
    """Weight times the length of the value, 0 where a row may not attend."""
    value = part.value[:, keys].astype(np.float64)
    length = np.repeat(np.linalg.norm(value, axis=-1), len(part.query) // len(value), axis=0)
    weights = part.tile("weights", rows, keys)
    with np.errstate(invalid="ignore"):
        product: Array = (weights * length[:, None]).astype(weights.dtype)
    finite = np.isfinite(length).all()
    return product if finite else np.where(part.allowed(rows, keys), product, 0)


def _others(total: Array, count: Array, weights: Array, inside: Array) -> Array:
    """The mean without one's own weight, where that was counted; NaN where nothing is left."""
    mean, count = total - np.where(inside, weights, 0), count - inside
    # What is left of a sum of weights can't be below 0, only its last bit can.
    np.maximum(mean, 0, out=mean)
    np.divide(mean, count, out=mean, where=count > 0)
    mean[count == 0] = np.nan
    return mean.astype(weights.dtype, copy=False)


def top(
    call: Call,
    lse: Array,
    real: Array | None,
    sums: Sums,
    k: int,
    by_lift: bool,
    rows: Array,
) -> Top:
    """The k keys of some rows that have the most weight, or the most beyond the others'."""
    if len(rows) == call.shape[-2] and rows.size and call.shape[-1]:
        strong = strongest(call, lse, k, real, sums if by_lift else None)
        return _beside_others(strong, real, sums)
    *lead, _, keys = call.shape
    shape = (*lead, len(rows), k)
    dtype = weight_dtype(call.dtype)
    found = Top(np.zeros(shape, dtype), np.full(shape, np.nan, dtype), np.full(shape, -1))
    every = slice(0, keys)
    for part, block in blocks(call, lse, rows):
        weights, inside = own(None, part, block, every)
        rank = np.where(inside, np.where(np.isnan(weights), np.inf, weights), -np.inf)
        if real is not None:
            inside = inside & real[part.where[:-1]][block, None]
        if by_lift:
            given = (sums, part, block, every, weights, inside)
            lift = weights - np.maximum(baseline(*given), by_distance(*given))
            rank = np.where(np.isnan(lift) | np.isneginf(rank), -np.inf, lift)
        best = _largest(rank, k)
        at = slice(*np.searchsorted(rows, [block.start, block.stop]))
        there = (*part.where, at, slice(0, best.shape[-1]))
        none = np.isneginf(np.take_along_axis(rank, best, -1))

        def chosen(array: Array, best: Array = best) -> Array:
            return np.take_along_axis(np.broadcast_to(array, (*best.shape[:2], keys)), best, -1)

        received, seen = (total[part.where][:, None] for total in (sums.received, sums.seen))
        beside = _others(chosen(received), chosen(seen), chosen(weights), chosen(inside))
        found.weights[there] = np.where(none, 0, chosen(weights))
        found.baseline[there] = np.where(none, np.nan, beside)
        found.positions[there] = np.where(none, -1, best)
    return found


def sums_and_top(call: Call, lse: Array, real: Array | None, k: int) -> tuple[Sums, Top]:
    """The sums, and the k keys of all rows that have the most weight, in one pass."""
    best = _room(call, k)
    together = sums(call, lse, real, best=best)
    return together, _beside_others(best, real, together)


def _beside_others(best: tuple[Array, Array], real: Array | None, sums: Sums) -> Top:
    """Weights and positions of all rows' keys, with what the other rows give them."""
    weights, positions = best
    found, at = positions >= 0, np.maximum(positions, 0)
    given, times = (
        np.take_along_axis(total[..., None, :], at, -1) for total in (sums.received, sums.seen)
    )
    counted = found if real is None else found & real[..., None, :, None]
    beside = np.where(found, _others(given, times, weights, counted), np.nan)
    return Top(weights, beside.astype(weights.dtype), positions)


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


def _largest(rank: Array, k: int) -> Array:
    """Positions of the k largest (or all, where there are fewer), ties to the lower position."""
    size = rank.shape[-1]
    k = min(k, size)
    if k == 0:
        return np.empty((*rank.shape[:-1], 0), np.intp)
    least = np.partition(rank, size - k, axis=-1)[..., size - k, None]
    above, tied = rank > least, rank == least
    free = k - above.sum(axis=-1, keepdims=True)
    chosen = above | (tied & (tied.cumsum(axis=-1, dtype=np.int32) <= free))
    positions = np.nonzero(chosen)[-1].reshape(*rank.shape[:-1], k)
    order = np.argsort(-np.take_along_axis(rank, positions, -1), axis=-1, kind="stable")
    return np.take_along_axis(positions, order, -1)


# ---------------------------------------------------------------------------- row by row, summed


def sink(call: Call, lse: Array) -> Array:
    """The weight that each row gives to its head's sink: (B…, H, T); 0 without sinks."""
    logits = call.rule.sinks
    if logits is None:
        return np.zeros(lse.shape)
    with np.errstate(invalid="ignore"):
        taken = np.exp(logits[:, None] - lse)
    return np.where(np.isneginf(logits)[:, None], 0, taken)


def mass(call: Call, lse: Array, keys: Array) -> Array:
    """The weight that each row gives to these keys together: (B…, H, T)."""
    out = np.zeros(call.shape[:-1])
    wanted = np.unique(keys)
    for begin, end, first, past in runs(wanted, gap=64):
        some = wanted[begin:end] - first
        for part, rows in blocks(call, lse, width=past - first):
            weights = part.tile("weights", rows, slice(first, past))[..., some]
            out[part.where][:, rows] += weights.sum(axis=-1, dtype=np.float64)
    return out


def carry(call: Call, lse: Array, x: Array) -> Array:
    """A number for each row, passed on to the keys by weight: (B…, H, T) → (B…, H, S)."""
    out = np.zeros((*call.shape[:-2], call.shape[-1]))
    for part, rows in blocks(call, lse):
        weights = part.tile("weights", rows, slice(0, call.shape[-1]))
        given = x[part.where][:, None, rows].astype(np.float64)
        out[part.where] += (given @ weights.astype(np.float64))[:, 0]
    return out


def bins(call: Call, edges: ArrayLike | None) -> range | Array:
    """The edges of bins of distances; by default each distance of any item has one."""
    if edges is None:
        *_, queries, keys = call.shape
        offsets = np.asarray(call.query_offset)
        if not (queries and keys and offsets.size):
            return range(1)
        return range(1 - queries - int(offsets.max()), keys - int(offsets.min()) + 1)
    cuts = np.asarray(edges)
    if cuts.ndim != 1 or len(cuts) < 2 or not (np.diff(cuts) > 0).all():
        raise ValueError(f"edges: expected two or more rising numbers, received {edges!r}")
    return cuts


def distances(call: Call, sums: Sums, edges: Array) -> Array:
    """Shares of all weight by distance key - (row + query_offset), in bins as NumPy's histogram."""
    *lead, queries, _ = call.shape
    share = np.full((*lead, len(edges) - 1), np.nan)
    offsets = np.broadcast_to(np.asarray(call.query_offset), call.batch)
    for item in np.ndindex(call.batch):
        along = sums.along[item]
        first = 1 - queries - int(offsets[item])
        distance = np.arange(first, first + along.shape[-1])
        bins = np.searchsorted(edges, distance, side="right") - 1
        bins[distance == edges[-1]] -= 1  # the last bin holds its right edge too
        within = (bins >= 0) & (bins < len(edges) - 1)
        for head, weights in enumerate(along):
            if total := weights.sum():
                counted = np.bincount(bins[within], weights[within], len(edges) - 1)
                share[(*item, head)] = counted / total
    return share


def pooled(call: Call, lse: Array, real: Array | None, cells: tuple[int, int], how: str) -> Array:
    """The mean or the largest weight of the pairs that may attend, cell by cell, in the kernel."""
    shape = (*call.shape[:-2], *cells)
    total = np.full(shape, -np.inf if how == "max" else 0.0)
    count = np.zeros(shape, np.int64)
    query, key = bits(call.query), bits(call.key)
    _kernel.map(query, key, lse, real, total, count, how == "max", *call.rule)
    if how == "mean":
        np.divide(total, count, out=total, where=count > 0)
    total[count == 0] = np.nan
    return total
