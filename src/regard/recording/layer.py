"""One attention of a model: what is kept of it, and the `Look` that shows it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from regard.core.arguments import Array
from regard.core.call import check
from regard.core.compute import compute
from regard.core.look import Look
from regard.core.proof import BOUNDS, Check
from regard.recording.rules import Options

# Up to so many pairs of row and key, every row's sum is checked; beyond, so many rows a head.
PAIRS = 1 << 26
ROWS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """What is kept of one attention: enough to rebuild every weight that the model used."""

    name: str  # where the module stands in the model
    number: int  # the model's own number of the layer
    kind: str  # encoder, decoder or cross; "encoder 2" where there is a further such sequence
    heads: Array  # (H,): the model's numbers of the query heads kept
    query: Array  # (B, H, T, D), after rotary embedding
    key: Array  # (B, G, S, D), not repeated for the heads that share it
    value: Array  # (B, G, S, V)
    lse: Array  # (B, H, T)
    options: Options  # the further arguments of `regard.attention`
    difference: float  # between the model's output and ours, at its worst
    largest: float  # the largest output

    @property
    def crosses(self) -> bool:
        """Whether the keys are of another sequence than the rows."""
        return self.kind.startswith("cross")

    @property
    def nbytes(self) -> int:
        """The bytes of query, key, value and lse."""
        return self.query.nbytes + self.key.nbytes + self.value.nbytes + self.lse.nbytes


def stacks(kind: str) -> tuple[str, str]:
    """Whose tokens the rows of a layer are, and whose its keys.

    >>> stacks("encoder"), stacks("cross 2")
    (('encoder', 'encoder'), ('decoder 2', 'encoder 2'))
    """
    base, space, number = kind.partition(" ")
    pair = ("decoder", "encoder") if base == "cross" else (base, base)
    return pair[0] + space + number, pair[1] + space + number


class Layer(Look):
    """A `Look` at one attention of a recorded model.

    Attributes:
        name: where the module stands in the model, such as "encoder.layer.3.attention.self".
        number: the model's own number of the layer.
        kind: "encoder", "decoder" or "cross"; "encoder 2" and so on where a model reads several
            sequences, such as an image and a text.
        heads: (H,), the model's numbers of the query heads; not 0..H-1 where some were left out.
    """

    def __init__(self, kept: Kept, real_rows: Array | None = None):
        """Show what was kept; `real_rows` (B…, T) is False for rows of padding."""
        self.kept = kept
        self.name, self.number, self.kind = kept.name, kept.number, kept.kind
        self.heads = kept.heads
        call = check(kept.query, kept.key, kept.value, **kept.options)
        super().__init__(call, np.empty(0, call.dtype), kept.lse, real_rows=real_rows)
        del self.output  # it isn't kept; below it is computed where somebody asks

    @cached_property
    def output(self) -> Any:
        """(B…, H, T, V): what the heads gave, computed again from what was kept."""
        return compute(self.call)[0]

    @property
    def offset(self) -> int:
        """The position among the keys of the first row; above 0 where earlier rows are missing."""
        return int(np.max(self.call.query_offset, initial=0))

    def check(self) -> Check:
        """The proof: the model's own output beside what was recorded, found during the recording.

        Returns:
            `Check(output, relative, rows)`; `rows` is looked at now: how far a row's rebuilt
            weights are from adding up to 1 - sink. Of long texts it looks at 64 rows a head.
        """
        relative = self.kept.difference / (self.kept.largest or 1.0)
        found = (self.kept.difference, relative, self._rows_apart)
        return Check(*found, bound=BOUNDS[self.call.dtype], of="the model")

    @cached_property
    def _rows_apart(self) -> float:
        *_, rows, keys = self.shape
        if not rows or not keys:
            return 0.0
        if int(np.prod(self.shape)) <= PAIRS:
            total = self.mass(slice(None))
            some: Any = slice(None)
        else:
            some = np.unique(np.linspace(0, rows - 1, ROWS).astype(int))
            total = self.weights[..., some, :].sum(axis=-1)
        lse = self.kept.lse[..., some]
        apart = np.abs(total - np.where(np.isneginf(lse), 0, 1 - self.sink[..., some]))
        if self.real_rows is not None:
            apart = np.where(self.real_rows[..., None, some], apart, 0)
        return float(apart.max(initial=0))

    def __repr__(self) -> str:
        what = f"{self.kind} attention {self.name}, layer {self.number}\n"
        return what + super().__repr__()


def differences(ours: Array, theirs: Array, lse: Array, real: Array) -> tuple[float, float]:
    """The largest difference of two outputs (B, H, T, V), and the largest number of theirs.

    Rows of padding and rows that may attend nothing are left out: libraries differ there.
    """
    if np.may_share_memory(ours, theirs):  # the model was given what our kernel computed
        return 0.0, 0.0
    rows = ~np.isneginf(lse) & real[:, None]
    wide = np.float64 if ours.dtype == np.float64 else np.float32
    ours, theirs = ours.astype(wide, copy=False), theirs.astype(wide, copy=False)
    apart = ours - theirs
    np.abs(apart, out=apart)
    if rows.all() and np.isfinite(most := apart.max(initial=0)):  # as nearly always
        return float(most), float(max(theirs.max(initial=0), -theirs.min(initial=0)))
    apart[np.isnan(ours) & np.isnan(theirs)] = 0
    apart = np.where(rows[..., None], np.where(np.isnan(apart), np.inf, apart), 0)
    largest = np.where(rows[..., None] & np.isfinite(theirs), np.abs(theirs), 0)
    return float(apart.max(initial=0)), float(largest.max(initial=0))


def chosen(heads: Sequence[int] | None, kept: Kept) -> Array:
    """The query heads that were asked for, of those there are; all of them where None were."""
    count = kept.query.shape[1]
    some = np.arange(count) if heads is None else np.array(heads)
    if some.size and not 0 <= some.min() <= some.max() < count:
        raise ValueError(f"heads: expected 0..{count - 1}, received {heads}")
    return some


def with_heads(kept: Kept, some: Array) -> Kept:
    """Only some of the query heads, each with the key head it reads."""
    group = some // (len(kept.heads) // kept.key.shape[1])
    options = dict(kept.options)
    for name in ("mask", "bias"):
        if name in options and options[name].shape[1] > 1:
            options[name] = options[name][:, some]
    if "sinks" in options:
        options["sinks"] = options["sinks"][some]
    return replace(
        kept,
        heads=some,
        query=kept.query[:, some],
        key=kept.key[:, group],
        value=kept.value[:, group],
        lse=kept.lse[:, some] if kept.lse.size else kept.lse,
        options=options,
    )


def with_dtype(kept: Kept, dtype: np.dtype[Any] | None) -> Kept:
    """Query, key and value in another dtype; None leaves them as they are."""
    if dtype is None:
        return kept
    arrays = (getattr(kept, name).astype(dtype) for name in ("query", "key", "value"))
    return replace(kept, **dict(zip(("query", "key", "value"), arrays, strict=True)))


def cut(kept: Kept, item: int, rows: Array, keys: Array, offset: int) -> Kept:
    """One item of a batch, with some of its rows and keys (sorted positions): no batch axis.

    Keys may be left out only if no row that stays may see them. `offset` is the position of the
    first row that stays.
    """
    of_rows, of_keys = _span(rows), _span(keys)
    size = kept.key.shape[-2]
    options = dict(kept.options)
    for name in ("mask", "bias"):
        if name in options:
            dense = _item(options[name], item, 3)
            dense = dense[:, of_rows] if dense.shape[1] > 1 else dense
            options[name] = dense[..., of_keys] if dense.shape[2] > 1 else dense
    first, past = bounds(kept, item)
    before = np.searchsorted(keys, np.arange(size + 1))
    for name in ("causal", "window", "ranges"):
        options.pop(name, None)
    first, past = before[first[of_rows]], before[past[of_rows]]
    if first.any() or (past < len(keys)).any():
        options["ranges"] = (first, past)
    options["query_offset"] = offset
    return replace(
        kept,
        query=kept.query[item][:, of_rows],
        key=kept.key[item % len(kept.key)][:, of_keys],
        value=kept.value[item % len(kept.value)][:, of_keys],
        lse=kept.lse[item][:, of_rows],
        options=options,
    )


def bounds(kept: Kept, item: int) -> tuple[Array, Array]:
    """The first and the past key of each row of an item, (T,) each, whatever it was said with."""
    call = check(kept.query, kept.key, kept.value, **kept.options)
    rule, rows, keys = call.rule, *call.shape[-2:]
    first, past = np.zeros(rows, np.int64), np.full(rows, keys, np.int64)
    row = np.arange(rows)
    if rule.lower is not None:
        first = np.maximum(first, row + _item(rule.lower, item, 0))
    if rule.upper is not None:
        past = np.minimum(past, row + _item(rule.upper, item, 0))
    if rule.first is not None and rule.past is not None:
        first = np.maximum(first, _item(rule.first, item, 1))
        past = np.minimum(past, _item(rule.past, item, 1))
    past = np.maximum(past, 0)
    return np.minimum(first, past), past


def reached(kept: Kept, item: int, real: Array) -> Array:
    """Which keys some real row of an item may see: (S,); `real` speaks of all positions."""
    *_, rows, keys = (*kept.query.shape[:-1], kept.key.shape[-2])
    offset = int(np.max(kept.options.get("query_offset", 0), initial=0))
    alive = real[offset : offset + rows]
    first, past = bounds(kept, item)
    steps = np.bincount(first[alive], minlength=keys + 1)
    steps = steps - np.bincount(past[alive], minlength=keys + 1)
    seen: Array = np.cumsum(steps)[:keys] > 0
    if "mask" in kept.options:
        mask = _item(kept.options["mask"], item, 3)
        mask = mask[:, alive] if mask.shape[1] > 1 else mask
        seen = seen & mask.any(axis=(0, 1))
    return seen


def _item(array: Array, item: int, axes: int) -> Array:
    """One item of an array whose last `axes` axes are not the batch's."""
    if array.ndim == axes:
        return array
    one: Array = array[item if len(array) > 1 else 0]
    return one


def _span(positions: Array) -> Any:
    """Sorted positions as a slice where they stand side by side: a view instead of a copy."""
    if len(positions) and positions[-1] - positions[0] == len(positions) - 1:
        return slice(int(positions[0]), int(positions[-1]) + 1)
    return positions
