"""What a page opens with: the strongest link there is, or the one that was asked about."""

from typing import Any

import numpy as np

from regard.core.arguments import Array
from regard.recording.words import words
from regard.views.carried import PAIRS, SAMPLE, Shown, Source

CANDIDATES = 8  # keys a row that are looked at; special tokens and the row itself may be among them

Places = list[int] | None
Link = tuple[float, int, int, int, int]  # lift, layer, head, row's position, key


def opening(
    source: Source, reader: Places = None, read: Places = None
) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """Where the page begins, and the heads with the strongest links, the best first.

    Tokens are compared here, not words, so that one pass over the weights is enough. Of long texts
    it looks at some rows a head; the page itself compares words.
    """
    main = source.layers[0].kind
    found: list[Link] = []
    for shown in source.layers:
        if shown.kind == main:
            found += _strongest(source, shown, reader, read)
    found.sort(key=lambda link: -link[0])
    best = list(dict.fromkeys((layer, head) for _, layer, head, _, _ in found))
    start: dict[str, Any] = {"kind": main}
    first = next((link for link in found if np.isfinite(link[0])), None)
    if first:
        _, layer, head, row, key = first
        start |= {"layer": layer, "head": head, "from": [row], "to": [key]}
    for name, asked, text in (
        ("from", reader, source.layers[0].rows),
        ("to", read, source.layers[0].keys),
    ):
        if asked:
            start[name] = asked
        elif name in start:
            start[name] = _word(source, text, start[name][0])
    if read and not reader:
        start["direction"] = "read_by"
    return start, best


def _word(source: Source, text: str, position: int) -> list[int]:
    """All pieces of the word that a token is of."""
    for word in words(source.texts[text]):
        if position in word.positions:
            return list(word.positions)
    return [position]


def _strongest(source: Source, shown: Shown, reader: Places, read: Places) -> list[Link]:
    """In each head of a layer the link of the most lift, between different, ordinary tokens."""
    look = shown.look
    heads, rows, keys = look.call.shape
    if not (heads and rows and keys):
        return []
    never = _unranked(source, shown.rows)
    some = np.arange(rows)
    if reader:
        some = np.array([p - shown.offset for p in reader if 0 <= p - shown.offset < rows], int)
    else:
        some = some[~never[some + shown.offset]]
        if len(some) * keys * heads > PAIRS:
            some = some[np.unique(np.linspace(0, len(some) - 1, SAMPLE).astype(int))]
    if not len(some):
        return []
    barred = _unranked(source, shown.keys)
    if read:
        barred = ~np.isin(np.arange(keys), read)
    itself = shown.rows == shown.keys
    lift, key = _lifts(shown, some, read)
    lift = np.where((key < 0) | barred[key] | np.isnan(lift), -np.inf, lift)
    if itself:
        own = key == (some + shown.offset)[:, None]
        own |= np.isin(key, reader) if reader else False
        lift[own] = -np.inf
    flat = lift.reshape(heads, -1)
    best = flat.argmax(axis=-1)
    each = lift.shape[-1]
    return [
        (
            float(flat[h, at]),
            shown.number,
            int(shown.heads[h]),
            int(some[at // each]) + shown.offset,
            int(key.reshape(heads, -1)[h, at]),
        )
        for h, at in enumerate(best)
    ]


def _lifts(shown: Shown, some: Array, read: Places) -> tuple[Array, Array]:
    """Lift and key of what stands out in some rows, or of the keys that are asked about."""
    look, (heads, rows, _) = shown.look, shown.look.call.shape
    head = np.arange(heads)[:, None, None]
    if read:
        key = np.broadcast_to(np.array(read), (heads, len(some), len(read)))
        weight = np.where(
            look.allowed[:, some][..., read], look.weights[:, some][..., read], np.nan
        )
    else:
        few = some if len(some) < rows // 4 else None  # all rows are one pass in the kernel
        top = look.top(CANDIDATES, by="lift" if shown.distances else "weight", rows=few)
        key, weight = (array if few is not None else array[:, some] for array in top[::-2])
        weight = np.where(key < 0, np.nan, weight)
    sums = look.sums
    place = key - some[:, None] + rows - 1
    beside = _mean(sums.received[head, key], sums.seen[head, key], weight)
    if shown.distances:
        beside = np.maximum(beside, _mean(sums.along[head, place], sums.met[head, place], weight))
    return weight - beside, key


def _mean(total: Array, count: Array, own: Array) -> Array:
    """What the other rows give on average; NaN where there are none."""
    others = np.where(count > 1, count - 1.0, np.nan)
    found: Array = np.maximum(total - own, 0) / others
    return found


def _unranked(source: Source, text: str) -> Array:
    never = source.never.get(text)
    return source.texts[text].special if never is None else never
