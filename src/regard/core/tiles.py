"""A call, one item and a few rows at a time: the only place where a look asks the kernel.

`blocks` walks over a whole call in rectangles of bounded size, so that whoever sums over all
weights never holds more than one of them. `Part` is what it hands out: one batch item of a call,
with all its query heads or a single one, that can rebuild any of its rectangles.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from regard import _kernel
from regard.core.arguments import Array, bits, real
from regard.core.call import Call, Rule

# What one rectangle of weights may take. Large enough that the calls into the kernel cost nothing
# beside its work, small enough to stay near the cache.
TILE_BYTES = 2 << 20
# With fewer rows a rectangle wastes the kernel's lanes: better one head at a time, and more rows.
FEW_ROWS = 64

# How many axes each array of a rule has behind its batch axes.
_AXES = {"mask": 3, "bias": 3, "sinks": 1, "lower": 0, "upper": 0, "lengths": 0}
_AXES |= {"first": 1, "past": 1, "query_segments": 1, "key_segments": 1}


def at_item(array: Array, item: tuple[int, ...], axes: int) -> Array:
    """The view of an array at one batch item; its last `axes` axes are kept.

    Batch axes are aligned to the right, and one that is absent or of size 1 serves all items.
    """
    batch = array.shape[: max(array.ndim - axes, 0)]
    own = item[len(item) - len(batch) :]
    index: tuple[Any, ...] = tuple(i if n > 1 else 0 for i, n in zip(own, batch, strict=True))
    view: Array = array[(*index, ...)]
    return view


@dataclass(frozen=True, slots=True)
class Part:
    """One item of a call: query (H, T, D), key (G, S, D), value (G, S, V), lse (H, T).

    `where` is its place among arrays (B…, H, …): the item, then a slice of the heads.
    """

    where: tuple[Any, ...]
    query: Array
    key: Array
    value: Array
    lse: Array
    rule: Rule

    def head(self, head: int) -> "Part":
        """The same item, one query head alone (which keeps its axis, of size 1)."""
        one = slice(head, head + 1)
        group = head // (len(self.query) // len(self.key))
        shared = slice(group, group + 1)
        rule = self.rule
        rule = rule._replace(
            mask=rule.mask[..., one, :, :] if _by_head(rule.mask) else rule.mask,
            bias=rule.bias[..., one, :, :] if _by_head(rule.bias) else rule.bias,
            sinks=None if rule.sinks is None else rule.sinks[one],
        )
        query, key, value = self.query[one], self.key[shared], self.value[shared]
        return Part((*self.where[:-1], one), query, key, value, self.lse[one], rule)

    def tile(self, what: str, rows: slice, keys: slice) -> Array:
        """(heads, rows, keys) of "weights", "scores" or "allowed", rebuilt from query and key."""
        dtype = bool if what == "allowed" else real(self.query.dtype)
        shape = (len(self.query), rows.stop - rows.start, keys.stop - keys.start)
        out = np.empty(shape, dtype)
        query, key = bits(self.query), bits(self.key)
        _kernel.tile(what, query, key, self.lse, out, rows.start, keys.start, *self.rule)
        return out

    def allowed(self, rows: slice, keys: slice) -> Array:
        """Who may attend, (heads or 1, rows, keys): one head stands for all where they agree."""
        differ = _by_head(self.rule.mask) or _by_head(self.rule.bias)
        return (self if differ or not len(self.query) else self.head(0)).tile("allowed", rows, keys)


def _by_head(dense: Array | None) -> TypeGuard[Array]:
    """Whether a mask or bias says something else for each head."""
    return dense is not None and dense.ndim > 2 and dense.shape[-3] > 1


def part(call: Call, lse: Array, item: tuple[int, ...]) -> Part:
    """One batch item of a call, with all its query heads."""
    own: dict[str, Any] = {}
    for name, axes in _AXES.items():
        if (array := getattr(call.rule, name)) is not None:
            own[name] = at_item(array, item, axes)
    return Part(
        (*item, slice(0, call.shape[-3])),
        at_item(call.query, item, 3),
        at_item(call.key, item, 3),
        at_item(call.value, item, 3),
        at_item(lse, item, 2),
        call.rule._replace(**own),
    )


def blocks(
    call: Call, lse: Array, rows: Array | None = None, width: int | None = None
) -> Iterator[tuple[Part, slice]]:
    """Walk over a call: (part, rows), such that rows × `width` keys are a few MiB at the most.

    `rows`: only these, sorted; all by default. `width`: as many keys as are asked for in a row,
    all by default.
    """
    heads, queries, keys = call.shape[-3:]
    if not heads:
        return
    spans = [(0, queries)] if rows is None else [(a, b) for _, _, a, b in runs(rows)]
    row_bytes = max(1, keys if width is None else width) * real(call.dtype).itemsize
    together = heads * row_bytes * min(FEW_ROWS, queries) <= TILE_BYTES
    height = max(1, TILE_BYTES // (row_bytes * (heads if together else 1)))
    for item in np.ndindex(call.batch):
        whole = part(call, lse, item)
        for piece in [whole] if together else map(whole.head, range(heads)):
            for first, past in spans:
                for begin in range(first, past, height):
                    yield piece, slice(begin, min(begin + height, past))


def runs(values: Array, gap: int = 1) -> list[tuple[int, int, int, int]]:
    """Cut sorted numbers where the next is more than `gap` away: (from, to, first, past) each.

    `values[from:to]` are the numbers of a run, which lie in first ≤ number < past.

    >>> runs(np.array([2, 3, 4, 9]))
    [(0, 3, 2, 5), (3, 4, 9, 10)]
    """
    if not len(values):
        return []
    cuts = np.flatnonzero(np.diff(values) > gap) + 1
    begins, ends = [0, *cuts.tolist()], [*cuts.tolist(), len(values)]
    return [
        (a, b, int(values[a]), int(values[b - 1]) + 1) for a, b in zip(begins, ends, strict=True)
    ]
