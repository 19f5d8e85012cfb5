"""What a page carries: query, key, value and the rule of each attention, and the words.

Weights are not carried. The page rebuilds those that are looked at, as `Look` does, so a page of
512 tokens holds a few numbers a token and head instead of 512. Sums over all rows (lse, what a key
receives, what a distance gets) are carried, not added up in the browser.
"""

import base64
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from regard.core.arguments import BFLOAT16, Array
from regard.core.call import Call
from regard.core.compute import compute
from regard.core.indexing import size_in_words
from regard.core.look import Look
from regard.core.proof import Check
from regard.core.tiles import part
from regard.recording.layer import Layer
from regard.recording.words import Text, words
from regard.views.labels import visible

CELLS = 24  # a head's thumbnail has so many cells a side, at the most
PAIRS = 1 << 26  # of more pairs no thumbnails and no measures are computed
SAMPLE = 64  # rows in which float16's loss is measured, where there are more pairs than that


class Arrays:
    """Arrays as lines of base64; equal ones are kept once."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.known: dict[tuple[str, bytes], int] = {}
        self.size = 0  # of the lines, in characters

    def add(self, array: Array) -> dict[str, Any]:
        """Keep an array: what the page finds it by."""
        array = np.ascontiguousarray(array)
        if array.dtype == BFLOAT16:
            kind, array = "b2", array.view(np.uint16)
        else:
            kind = f"{array.dtype.kind}{array.dtype.itemsize}"
        if sys.byteorder == "big":
            array = array.byteswap()
        raw = array.tobytes()
        place = self.known.setdefault((kind, raw), len(self.lines))
        if place == len(self.lines):
            self.lines.append(base64.b64encode(raw).decode("ascii"))
            self.size += len(self.lines[-1]) + 1
        return {"at": place, "kind": kind, "shape": list(array.shape)}


@dataclass(frozen=True)
class Shown:
    """One attention of one text, as it comes: of a recording or of a call."""

    look: Look  # its arrays are (H, T, D) and so on: no batch axis
    name: str
    number: int
    kind: str
    heads: Array  # the model's numbers
    rows: str  # whose words the rows are, a name of `Source.texts`
    keys: str
    offset: int = 0  # the position of the first row among its words
    distances: bool = True  # rows and keys are of one sequence
    narrow: bool = False  # numbers are those of float16


@dataclass(frozen=True)
class Source:
    """Everything that could be carried, before a budget is kept."""

    model: str
    described: str
    check: Check
    layers: list[Shown]
    texts: dict[str, Text]
    never: dict[str, Array] = field(default_factory=dict)  # tokens that are not ranked
    measures: Array | None = None  # rows of `Recording.heads()`
    notes: list[str] = field(default_factory=list)
    grids: dict[str, tuple[int, int]] = field(default_factory=dict)  # of texts that are images
    picture: str = ""  # what lies beneath their patches, as an address


def carry(source: Source, budget: int, best: Sequence[tuple[int, int]]) -> tuple[Any, Arrays]:
    """The page's header, and its arrays, in `budget` bytes.

    As they are, if that is little enough; else as float16; else only some heads, those of `best`
    (layer, head) first. What was lost and left out is in the header's notes.

    Raises:
        ValueError: not even one head fits.
    """
    layers, notes = source.layers, list(source.notes)
    if expected(layers) > budget:
        layers = [replace(x, narrow=x.look.call.dtype.itemsize > 2) for x in layers]
    if expected(layers) > budget:
        layers, left = _chosen(layers, budget, best)
        notes.insert(0, f"Left out, so that the page keeps to its size: {left}.")
    if any(shown.narrow for shown in layers):
        wide, layers = layers, [_narrowed(shown) if shown.narrow else shown for shown in layers]
        loss = max(_loss(*pair) for pair in zip(wide, layers, strict=True))
        notes.insert(
            0,
            "Carried as float16, so that the page keeps to its size: weights differ from the "
            f"model's by up to {loss:.1g}.",
        )
    arrays = Arrays()
    carried = [_layer(shown, source, arrays) for shown in layers]
    return described_alone(source) | {"layers": carried, "notes": notes}, arrays


def described_alone(source: Source) -> dict[str, Any]:
    """The header without what is carried."""
    return {
        "model": visible(source.model),
        "described": source.described,
        "check": {"line": str(source.check), "verified": source.check.verified},
        "texts": {name: _text(name, source) for name in source.texts},
        "measures": _measures(source.measures),
    }


def expected(layers: Iterable[Shown]) -> int:
    """About how many characters of base64 these layers take."""
    size, dense = 0, {}
    for shown in layers:
        call = shown.look.call
        *_, heads, rows, keys = call.shape
        size += heads * (2 * rows * 8 + 2 * keys * 4 + 2 * (rows + keys) * 4)
        numbers = call.query.size + call.key.size + call.value.size
        size += numbers * (2 if shown.narrow else call.dtype.itemsize)
        for array in (call.rule.mask, call.rule.bias):
            if array is not None:
                nbytes = array.size // 8 if array.dtype == bool else array.size * 4
                dense[array.__array_interface__["data"][0]] = nbytes
    return (size + sum(dense.values())) * 4 // 3


# ------------------------------------------------------------------------------- keeping a budget


def _narrowed(shown: Shown) -> Shown:
    """The same in float16, with all sums computed again from it."""
    call = shown.look.call
    most = np.finfo(np.float16).max
    query, key, value = (
        np.clip(array, -most, most).astype(np.float16).astype(np.float32)
        for array in (call.query, call.key, call.value)
    )
    call = call._replace(query=query, key=key, value=value)
    look = Look(call, *compute(call), real_rows=shown.look.real_rows)
    return replace(shown, look=look)


def _loss(before: Shown, after: Shown) -> float:
    """How far weights have moved; of long texts in some rows."""
    *_, heads, rows, keys = before.look.call.shape
    some = slice(None)
    if heads * rows * keys > PAIRS:
        some = np.unique(np.linspace(0, rows - 1, SAMPLE).astype(int))  # type: ignore[assignment]
    moved = before.look.weights[..., some, :] - after.look.weights[..., some, :]
    return float(np.abs(moved).max(initial=0))


def _chosen(
    layers: list[Shown], budget: int, best: Sequence[tuple[int, int]]
) -> tuple[list[Shown], str]:
    """The first of `best` that fit, with all heads that share their keys."""
    kept: dict[int, set[int]] = {}
    found: list[Shown] = []
    every = [(x.number, int(head)) for x in layers for head in x.heads]
    for number, head in dict.fromkeys([*best, *every]):
        more = {n: set(heads) for n, heads in kept.items()}
        more.setdefault(number, set()).add(head)
        tried = [part for x in layers if x.number in more for part in some_heads(x, more[x.number])]
        if expected(tried) > budget:
            break
        kept, found = more, tried
    if not found:
        needed = size_in_words(expected([_some(layers[0], 0)]))
        raise ValueError(
            f"budget: one head of this text takes {needed}, more than {size_in_words(budget)}; "
            "raise budget=, or record fewer tokens"
        )
    own = {(x.number, int(head)) for x in found for head in x.heads}
    left = [pair for pair in every if pair not in own]
    some = ", ".join(f"{layer}.{head}" for layer, head in left[:12])
    more_left = f" and {len(left) - 12} more" if len(left) > 12 else ""
    return found, f"{len(left)} of {len(every)} heads (layer.head {some}{more_left})"


def some_heads(shown: Shown, heads: set[int]) -> list[Shown]:
    """A layer with the key heads that serve these query heads."""
    *_, count, _, _ = shown.look.call.shape
    each = count // shown.look.call.key.shape[-3]
    groups = sorted({int(np.flatnonzero(shown.heads == head)[0]) // each for head in heads})
    return [_some(shown, *groups)] if groups else []


def _some(shown: Shown, *groups: int) -> Shown:
    """A layer with some of its key heads, and the query heads that they serve."""
    call, look = shown.look.call, shown.look
    each = call.shape[-3] // call.key.shape[-3]
    heads = [group * each + n for group in groups for n in range(each)]
    rule = call.rule

    def cut(array: Array | None) -> Array | None:
        by_head = array is not None and array.ndim > 2 and array.shape[-3] > 1
        return array[..., heads, :, :] if array is not None and by_head else array

    rule = rule._replace(
        mask=cut(rule.mask),
        bias=cut(rule.bias),
        sinks=None if rule.sinks is None else rule.sinks[heads],
    )
    some = call._replace(
        query=call.query[heads],
        key=call.key[list(groups)],
        value=call.value[list(groups)],
        shape=(len(heads), *call.shape[-2:]),
        rule=rule,
    )
    lse = look._lse[heads]
    return replace(
        shown,
        look=Look(some, np.empty(0, some.dtype), lse, real_rows=look.real_rows),
        heads=shown.heads[heads],
    )


# ------------------------------------------------------------------------------------- the header


def _text(name: str, source: Source) -> dict[str, Any]:
    """The tokens of a text, which of them make a word, and which are the patches of an image."""
    text, grid = source.texts[name], source.grids.get(name)
    unranked = source.never.get(name, text.special)
    return {
        "tokens": [visible(token) for token in text.tokens],
        "labels": [
            _label(*one) for one in zip(text.tokens, text.pieces, text.special, strict=True)
        ],
        "special": np.flatnonzero(text.special).tolist(),
        "never": np.flatnonzero(unranked).tolist(),
        "words": [
            {"label": visible(w.text), "positions": list(w.positions), "spaced": w.spaced}
            for w in words(text)
        ],
        "grid": grid,
        "picture": source.picture if grid else "",
    }


def _label(token: str, piece: str, special: bool) -> str:
    """What a token stands for: a space that is part of it as a mark, one between words not."""
    if special or not piece:
        return visible(token)
    return visible(token if piece == f" {token}" else piece)


def _layer(shown: Shown, source: Source, arrays: Arrays) -> dict[str, Any]:
    look, call = shown.look, shown.look.call
    one = part(call, look._lse, ())
    never = source.never.get(shown.keys)
    never = source.texts[shown.keys].special if never is None else never
    said: dict[str, Any] = {
        "name": visible(shown.name),
        "number": shown.number,
        "kind": shown.kind,
        "heads": shown.heads.tolist(),
        "rows": shown.rows,
        "keys": shown.keys,
        "offset": shown.offset,
        "distances": shown.distances,
        "shape": [*call.shape, len(call.key), call.query.shape[-1], call.value.shape[-1]],
        "scale": call.rule.scale,
        "softcap": call.rule.softcap,
        "check": str(look.check()) if isinstance(look, Layer) else "",
        **{
            name: arrays.add(array.astype(np.float16) if shown.narrow else array)
            for name, array in (("query", one.query), ("key", one.key), ("value", one.value))
        },
        "sums": _sums(look, arrays),
        "without": None,
    }
    if never.any() or call.rule.sinks is not None:
        left = look.without(np.flatnonzero(never).tolist(), sink=True)
        said["without"] = _sums(left, arrays) | {"keys": np.flatnonzero(never).tolist()}
    if look.real_rows is not None and not look.real_rows.all():
        said["real"] = arrays.add(np.asarray(look.real_rows, np.uint8))
    said |= _rule(call, one, arrays)
    if np.prod(call.shape) <= PAIRS and all(call.shape):
        *_, rows, keys = call.shape
        cells = look.map(min(rows, CELLS), min(keys, CELLS), how="max")
        cells = cells[None] if call.flat else cells
        said["map"] = arrays.add(np.where(np.isnan(cells), 255, np.round(254 * cells)).astype("u1"))
    return said


def _sums(look: Look, arrays: Arrays) -> dict[str, Any]:
    """lse, and what keys and distances get from all rows together."""
    sums = look.sums
    said = {"lse": arrays.add(look._lse)}
    for name in ("received", "along"):
        said[name] = arrays.add(getattr(sums, name).astype(np.float32))
    for name in ("seen", "met"):
        count = getattr(sums, name).astype(np.int32)
        alike = len(count) and (count == count[:1]).all()
        said[name] = arrays.add(count[:1] if alike else count)
    return said


def _rule(call: Call, one: Any, arrays: Arrays) -> dict[str, Any]:
    """Who may attend to what: key ranges, and what no range says."""
    rule, (_, rows, keys) = one.rule, call.shape[-3:]
    said: dict[str, Any] = {}
    first, past = np.zeros(rows, np.int64), np.full(rows, keys, np.int64)
    for begin in (rule.first, None if rule.lower is None else np.arange(rows) + rule.lower):
        first = first if begin is None else np.maximum(first, begin)
    ends = (rule.past, rule.lengths, None if rule.upper is None else np.arange(rows) + rule.upper)
    for end in ends:
        past = past if end is None else np.minimum(past, end)
    if first.any() or (past != keys).any():
        said["first"], said["past"] = (arrays.add(x.astype(np.int32)) for x in (first, past))
    if rule.query_segments is not None:
        _, segment = np.unique(
            np.concatenate([rule.query_segments, rule.key_segments]), return_inverse=True
        )
        said["segments"] = [arrays.add(x.astype(np.int32)) for x in np.split(segment, [rows])]
    if rule.mask is not None:
        mask = np.asarray(rule.mask).reshape((1,) * (3 - rule.mask.ndim) + rule.mask.shape)
        said["mask"] = arrays.add(np.packbits(mask, axis=-1, bitorder="little"))
        said["mask"]["of"] = list(mask.shape)
    if rule.bias is not None:
        bias = np.asarray(rule.bias)
        bias = bias.view(BFLOAT16) if bias.dtype == np.uint16 else bias
        said["bias"] = arrays.add(bias.reshape((1,) * (3 - bias.ndim) + bias.shape))
    if rule.sinks is not None:
        said["sinks"] = [float(x) if np.isfinite(x) else None for x in rule.sinks]
    return said


def _measures(table: Array | None) -> list[dict[str, Any]]:
    """What each head does, a row a head; what is undefined is null."""
    if table is None:
        return []
    names = [name for name in table.dtype.names or () if name not in ("item", "query", "key")]
    return [
        {name: None if np.isnan(row[name]) else round(float(row[name]), 6) for name in names}
        for row in np.asarray(table)
    ]
