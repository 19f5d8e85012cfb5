"""What can be said of all weights without holding them: by the passes in the kernel, or in blocks.

What `passes` does not find walks over a call once, `blocks` by `blocks`. What is kept is linear in
queries and keys; sums are float64. Rows of padding (`real` False) count nowhere but in `mass` and
`carry`, which answer row by row.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike

from regard.core.arguments import Array
from regard.core.arguments import real as weight_dtype
from regard.core.call import Call
from regard.core.passes import Sums, Top, beside_others, others, strongest
from regard.core.tiles import Part, blocks, runs

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
    return others(received[:, None, keys], seen[:, None, keys], weights, inside)


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
    return others(along, met, weights, inside)


def contribution(part: Part, rows: slice, keys: slice) -> Array:
    """Weight times the length of the value, 0 where a row may not attend."""
    value = part.value[:, keys].astype(np.float64)
    length = np.repeat(np.linalg.norm(value, axis=-1), len(part.query) // len(value), axis=0)
    weights = part.tile("weights", rows, keys)
    with np.errstate(invalid="ignore"):
        product: Array = (weights * length[:, None]).astype(weights.dtype)
    finite = np.isfinite(length).all()
    return product if finite else np.where(part.allowed(rows, keys), product, 0)


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
        return beside_others(strong, real, sums)
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
        beside = others(chosen(received), chosen(seen), chosen(weights), chosen(inside))
        found.weights[there] = np.where(none, 0, chosen(weights))
        found.baseline[there] = np.where(none, np.nan, beside)
        found.positions[there] = np.where(none, -1, best)
    return found


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
            weights = part.tile("weights", rows, slice(first, past))
            weights = weights if len(some) == past - first else weights[..., some]
            out[part.where][:, rows] += weights.sum(axis=-1, dtype=np.float64)
    return out


def carry(call: Call, lse: Array, x: ArrayLike) -> Array:
    """A number for each row, passed on to the keys by weight: (B…, H, T) → (B…, H, S)."""
    given, shape = np.asarray(x), call.shape[1 if call.flat else 0 : -1]
    if given.dtype.kind not in "fiub":
        raise TypeError(f"x: expected real numbers, received {given.dtype}")
    try:
        given = np.broadcast_to(given, shape).reshape(call.shape[:-1])
    except ValueError:
        raise ValueError(f"x: expected shape {shape}, received {given.shape}") from None
    out = np.zeros((*call.shape[:-2], call.shape[-1]))
    for part, rows in blocks(call, lse):
        weights = part.tile("weights", rows, slice(0, call.shape[-1]))
        passed = given[part.where][:, None, rows].astype(np.float64)
        out[part.where] += (passed @ weights.astype(np.float64))[:, 0]
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
