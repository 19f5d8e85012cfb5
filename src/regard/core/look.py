"""`Look`: an attention call that keeps sight of its weights, which are never stored.

A weight is exp(score - lse). With query, key and one log-sum-exp a row at hand, any weight of any
row is computed again, exactly, where somebody looks: tile by tile, in memory linear in T + S.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike

from regard.core import changed, passes, summaries
from regard.core.arguments import Array, real
from regard.core.call import Call
from regard.core.compute import compute
from regard.core.indexing import (
    Tile,
    View,
    positions_of,
    refuse_over,
    size_in_words,
)
from regard.core.passes import Maps, Sums, Top
from regard.core.proof import BOUNDS, Check, differences
from regard.core.shown import Shown, lesson
from regard.core.steps import Steps, steps
from regard.core.tiles import Part


class Look(Shown):
    """One attention call, with every weight in sight. `regard.look` makes one.

    It refers to query, key, value and one log-sum-exp a row; weights are computed where they are
    asked for. Shapes: `B…` batch axes, `H` query heads, `T` queries, `S` keys; without a head
    axis where the call had none. Answers are NumPy arrays, float32, or float64 for float64.
    A position is an int, a slice, or anything with `.positions`, such as a word of a recording.

    Attributes:
        output: (B…, H, T, V), what `regard.attention` returns.
        limit: bytes; a larger answer is refused with its size. 1 GiB; settable.
        real_rows: (B…, T) booleans, False for rows of padding, or None. Such rows play no part in
            what the other rows give: `baseline`, `by_distance`, `received`, `distance`, `map`.
        removed: (B…, H, T), what `without` took away; None unless this comes from there.
        query_labels: the names of the queries, if `labels` gave them; likewise `key_labels`.
    """

    limit: int = 1 << 30

    def __init__(self, call: Call, output: Array, lse: Array, *, real_rows: Array | None = None):
        """Wrap a checked call and what `compute` returns for it: (B…, H, T, V), (B…, H, T).

        `lse` is better float64: a weight is the difference of a score and an lse, and where both
        are in the hundreds half a unit of float32 in the last place shows in every weight.
        """
        self.call = call
        self._output = output
        self._lse = lse
        self._dtype = real(call.dtype)
        self.output: Any = self._shaped(output)
        rows = (*call.batch, call.shape[-2])
        self.real_rows = None if real_rows is None else np.broadcast_to(real_rows, rows)
        self._best: Top | None = None  # what `prepare` found
        self._maps: Maps | None = None
        self.removed: Array | None = None
        self.query_labels: list[str] | None = None
        self.key_labels: list[str] | None = None

    @cached_property
    def lse(self) -> Array:
        """(B…, H, T): log-sum-exp of each row."""
        return self._shaped(self._lse.astype(self._dtype, copy=False))

    @property
    def shape(self) -> tuple[int, ...]:
        """(B…, H, T, S): the shape that all weights would have."""
        return self.call.shape[1:] if self.call.flat else self.call.shape

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes of `shape`."""
        batch = len(self.call.batch)
        items = ("item",) if batch == 1 else tuple(f"item{n}" for n in range(batch))
        names = (*items, "head", "query", "key")
        return names[1:] if self.call.flat else names

    @property
    def nbytes(self) -> int:
        """The bytes that this keeps: query, key, value, output, lse, and who may attend."""
        call = self.call
        arrays = (call.query, call.key, call.value, self._output, self._lse, *call.rule)
        arrays += (*(self._best or ()), *(self._maps or ()))
        return sum(changed.once(a).nbytes for a in arrays if isinstance(a, np.ndarray))

    def __repr__(self) -> str:
        dense = int(np.prod(self.shape)) * self._dtype.itemsize
        size = f"keeps {size_in_words(self.nbytes)}; all weights would take {size_in_words(dense)}"
        return lesson(self.axes, self.shape, str(self.call.dtype), size)

    def labels(
        self, queries: Sequence[str] | None = None, keys: Sequence[str] | None = None
    ) -> "Look":
        """Name the positions: T names for the queries, S for the keys. Returns the look itself.

        Raises ValueError where there are not as many names as positions.
        """
        rows, size = self.shape[-2:]
        for name, given, expected in (("queries", queries, rows), ("keys", keys, size)):
            if given is not None and len(given) != expected:
                raise ValueError(
                    f"{name}: expected {expected} labels, received {len(given)} "
                    f"(there are {rows} queries and {size} keys)"
                )
        self.query_labels = self.query_labels if queries is None else list(map(str, queries))
        self.key_labels = self.key_labels if keys is None else list(map(str, keys))
        return self

    # ------------------------------------------------------------------------------- every pair

    @property
    def weights(self) -> View:
        """What each query attends to: `weights[item, head, query, key]`, as NumPy indexes.

        Each row adds up to 1 (less what a sink takes), or to 0 where a row may attend nothing.
        """
        return self._view("weights", lambda part, *tile: part.tile("weights", *tile))

    @property
    def scores(self) -> View:
        """What enters the softmax: scaled, capped, biased; -inf where a row may not attend."""
        return self._view("scores", lambda part, *tile: part.tile("scores", *tile))

    @property
    def allowed(self) -> View:
        """Who may attend to what, so that "cannot" never looks like "gives nothing"."""
        return self._view("allowed", lambda part, *tile: part.tile("allowed", *tile), bool)

    @property
    def baseline(self) -> View:
        """The mean weight that a key gets from every other row of the same item and head.

        Of the rows that may see the key and are no padding; NaN where there is no other. A weight
        near its baseline says little about the query: the head gives it to whoever asks.
        """
        return self._view("baseline", lambda *tile: self._beside(summaries.baseline, *tile))

    @property
    def by_distance(self) -> View:
        """The mean weight that the other rows give at the same signed distance, key - query.

        Of the rows that may see a key there and are no padding; NaN where there is no other. A
        weight near it says little about the words: the head looks so far away whatever is there.
        """
        return self._view("by_distance", lambda *tile: self._beside(summaries.by_distance, *tile))

    @property
    def contribution(self) -> View:
        """Weight × the value's length before the output projection; not Kobayashi et al. (2020)."""
        return self._view("contribution", summaries.contribution)

    @cached_property
    def sums(self) -> Sums:
        """What all rows give together, by key and distance, and entropy: once, O(T + S) a head.

        Of shape (B…, H, …), with the head axis also where the call had none.
        """
        return passes.sums(self.call, self._lse, self.real_rows)

    def prepare(self, top: int = 0, map: tuple[int, int] | None = None) -> "Look":
        """Find what will be asked in one pass over all weights, and keep it. Returns the look.

        Each question about all weights takes a pass, but for those that `sums` answers: `received`,
        `entropy`, `distance`, `baseline`, `by_distance`. After this those answer at once, and so do
        `top` by weight for up to so many keys, and `map` of this size, of both kinds.

        Args:
            top: how many keys of each row; 0: none.
            map: (rows, columns).

        >>> import regard
        >>> query, key, value = np.random.default_rng(0).standard_normal((3, 64, 8))
        >>> seen = regard.look(query, key, value).prepare(top=8, map=(4, 4))
        >>> seen.top(3).weights.shape, seen.map(4, 4).shape
        ((64, 3), (4, 4))
        """
        if top < 0:
            raise ValueError(f"top: expected 0 or more, received {top}")
        if top:
            self._refuse_top(top, self.call.shape[-2])
        if map is not None:
            self._refuse_map(*map)
        if all(self.call.shape[-2:]):
            found = passes.together(self.call, self._lse, self.real_rows, top, map)
            self.sums, self._best, self._maps = found
        return self

    @property
    def sink(self) -> Array:
        """The weight that each row gives to its head's sink, (B…, H, T); 0 without sinks."""
        return self._answer(summaries.sink(self.call, self._lse))

    def top(self, k: int, by: Literal["weight", "lift"] = "weight", rows: Any = None) -> Top:
        """The k keys of each row that have the most weight, or that have it beyond the others'.

        Lift is the weight less the larger of `baseline` and `by_distance`: what this row adds. A
        pair that lacks either is not ranked by it. Ties go to the lower position.

        Args:
            k: how many, at least 1.
            by: "weight" or "lift".
            rows: a position or a list of them, all rows by default. An int drops the axis of rows.

        Returns:
            `Top(weights, baseline, positions)`, each (B…, H, T, k). Where a row has fewer keys to
            rank: position -1, weight 0, baseline NaN.

        Raises:
            ValueError: k below 1, another `by`, or an answer over `limit`.

        >>> import regard
        >>> query = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> regard.look(query, query, query).top(2, rows=1).positions
        array([1, 2])
        """
        if by not in ("weight", "lift"):
            raise ValueError(f"by: expected 'weight' or 'lift', received {by!r}")
        if k < 1:
            raise ValueError(f"k: expected at least 1, received {k}")
        *_, queries, keys = self.call.shape
        wanted = positions_of(slice(None) if rows is None else rows, queries, "rows")
        self._refuse_top(k, wanted.size)
        some, order = np.unique(wanted, return_inverse=True)
        known = self.call, self._lse, self.real_rows
        if by == "weight" and self._best is not None and k <= self._best.weights.shape[-1]:
            found = Top(*(array[..., some, :k] for array in self._best))
        elif by == "weight" and rows is None and "sums" not in self.__dict__ and queries and keys:
            self.sums, best, _ = passes.together(*known, k, None)
            found = cast(Top, best)
        else:
            found = summaries.top(*known, self.sums, k, by == "lift", some)
        if rows is not None:
            found = Top(*(array[..., order.reshape(wanted.shape), :] for array in found))
        return Top(*map(self._shaped, found))

    def entropy(self) -> Array:
        """-Σ w ln w over each row's keys, in nats: (B…, H, T). 0: all on one key; ln S: all alike.

        With sinks the weights of a row add up to less than 1; they are taken as they are.
        """
        return self._answer(self.sums.entropy.copy())

    def mass(self, positions: Any) -> Array:
        """The weight that each row gives to some keys together: (B…, H, T).

        Args:
            positions: a position or a list of them; each key counts once.
        """
        keys = positions_of(positions, self.call.shape[-1], "positions")
        return self._answer(summaries.mass(self.call, self._lse, keys))

    def received(self, mean: bool = False) -> Array:
        """The weight that each key gets from all rows together: (B…, H, S).

        With `mean`, divided by the rows that may see the key; NaN where none may.
        """
        received = self.sums.received.copy()
        if mean:
            received[self.sums.seen == 0] = np.nan
            received /= np.maximum(self.sums.seen, 1)
        return self._answer(received)

    def carry(self, x: ArrayLike) -> Array:
        """A number for each row, handed on to the keys by weight: Σ over rows of x · weights.

        Args:
            x: (B…, H, T), or what broadcasts to it.

        Returns:
            (B…, H, S). Carried through layer after layer this is attention rollout (Abnar and
            Zuidema 2020).
        """
        return self._answer(summaries.carry(self.call, self._lse, x))

    def distance(self, edges: ArrayLike | None = None) -> tuple[Array, Array]:
        """How the weight is shared out by signed distance, key - (query + query_offset).

        Args:
            edges: rising numbers, the edges of bins as in `numpy.histogram`: the left edge is in
                the bin, the last bin holds its right edge too. A bin each distance by default.

        Returns:
            `(edges, share)`, share (B…, H, bins): parts of all weight on keys; those of distances
            outside of the edges are in no bin. NaN where there is no weight at all.
        """
        cuts = summaries.bins(self.call, edges)
        refuse_over(self.limit, "distance()", (*self.call.shape[:-2], len(cuts) - 1), 8)
        share = summaries.distances(self.call, self.sums, np.asarray(cuts))
        return np.asarray(cuts), self._answer(share)

    def map(self, rows: int, columns: int, how: Literal["mean", "max"] = "mean") -> Array:
        """All weights in a few cells: (B…, H, rows, columns), cut at floor(i · T / rows).

        Over the pairs that may attend; NaN where a cell has none. "max" keeps a single strong link
        in sight, "mean" says what is usual.
        """
        if how not in ("mean", "max"):
            raise ValueError(f"how: expected 'mean' or 'max', received {how!r}")
        maps = self._maps
        if maps is None or maps.mean.shape[-2:] != (rows, columns):
            self._refuse_map(rows, columns)
            maps = passes.maps(self.call, self._lse, self.real_rows, (rows, columns))
        return self._answer(maps.max if how == "max" else maps.mean).copy()

    def check(self) -> Check:
        """Rebuild all weights, and compare weights · values with the output: the proof.

        Returns:
            `Check(output, relative, rows)`: the largest difference, the same over the largest
            output, and that of a row's sum from 1 - sink (from 0 where a row may attend nothing).
            Rows of padding are left out. Printed, it is one line.
        """
        sink = summaries.sink(self.call, self._lse)
        found = differences(self.call, self._lse, sink, self._output, self.real_rows)
        return Check(*found, bound=BOUNDS[self.call.dtype], renormalised=self.removed is not None)

    def without(self, positions: Any, sink: bool = False) -> "Look":
        """Mask some keys and compute all again: output, lse and weights as if they were not there.

        What the rows gave them is in `.removed`, (B…, H, T). The weights of the others grow by as
        much: they are renormalised, not the model's, and `check()` says so.

        Args:
            positions: a position or a list of them.
            sink: take the sinks away too.
        """
        keys = positions_of(positions, self.call.shape[-1], "positions")
        call = changed.without(self.call, keys, sink)
        left = Look(call, *compute(call, exact=True), real_rows=self.real_rows)
        left.limit = self.limit
        left.labels(self.query_labels, self.key_labels)
        left.removed = self.mass(positions) + (self.sink if sink else 0)
        return left

    def steps(self, query: Any, head: int = 0, item: int | tuple[int, ...] = ()) -> Steps:
        """The calculation of one row, step by step, in float64: `regard.steps` of that row.

        Args:
            query: a position that means one row.
            head: a query head.
            item: the batch item, where there are several.
        """
        return steps(**changed.row(self.call, self._lse, query, head, item))

    def _refuse_top(self, k: int, rows: int) -> None:
        # three arrays: weights and baseline, and positions of 8 bytes
        itemsize = 2 * self._dtype.itemsize + 8
        refuse_over(self.limit, f"top({k})", (*self.call.shape[:-2], rows, k), itemsize)

    def _refuse_map(self, rows: int, columns: int) -> None:
        if rows < 1 or columns < 1:
            raise ValueError(f"rows, columns: expected at least 1, received {rows} and {columns}")
        # three arrays, of 8 bytes each
        refuse_over(self.limit, "map()", (*self.call.shape[:-2], rows, columns), 24)

    def _shaped(self, array: Array) -> Array:
        """Drop the head axis where the call had none."""
        return array[0] if self.call.flat else array

    def _answer(self, array: Array) -> Array:
        """A sum as the caller gets it: in the weights' dtype, without a head axis nobody gave."""
        return self._shaped(array.astype(self._dtype, copy=False))

    def _view(self, name: str, tile: Tile, dtype: Any = None) -> View:
        return View(self, name, tile, self._dtype if dtype is None else dtype)

    def _beside(self, what: Callable[..., Array], part: Part, rows: slice, keys: slice) -> Array:
        """`summaries.baseline` or `by_distance` of one rectangle."""
        own = summaries.own(self.real_rows, part, rows, keys)
        return what(self.sums, part, rows, keys, *own)
