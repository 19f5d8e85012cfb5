"""What a page opens with: the strongest link there is, or the one that was asked about."""

from typing import Any

import numpy as np

from regard.core.arguments import Array
from regard.recording.words import words
from regard.views.carried import PAIRS, SAMPLE, Shown, Source

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
    some = np.arange(rows)
    if reader:
        some = np.array([p - shown.offset for p in reader if 0 <= p - shown.offset < rows], int)
    elif rows * keys * heads > PAIRS:
        some = np.unique(np.linspace(0, rows - 1, SAMPLE).astype(int))
    lift = _lift(look, some, shown.distances)
    itself = shown.rows == shown.keys
    lift[..., _unranked(source, shown.keys)] = -np.inf
    if not reader:
        of_rows = _unranked(source, shown.rows)
        lift[:, of_rows[some + shown.offset]] = -np.inf
    if itself:
        lift[:, some[:, None] + shown.offset == np.arange(keys)] = -np.inf
    for group in (reader, read):
        if group and itself:
            inside = np.isin(np.arange(keys), group)
            lift[:, np.isin(some + shown.offset, group)[:, None] & inside] = -np.inf
    if read:
        other = np.ones(keys, bool)
        other[read] = False
        lift[..., other] = -np.inf
    flat = np.where(np.isnan(lift), -np.inf, lift).reshape(heads, -1)
    if not flat.size:
        return []
    at = flat.argmax(axis=-1)
    return [
        (
            float(flat[h, a]), shown.number, int(shown.heads[h]),
            int(some[a // keys]) + shown.offset, int(a % keys),
        )
        for h, a in enumerate(at)
    ]  # fmt: skip


def _lift(look: Any, some: Array, distances: bool) -> Array:
    """Weights beyond what the other rows give, (heads, some, S)."""
    weights = look.weights[:, some]
    beside = look.baseline[:, some]
    if distances:
        beside = np.maximum(beside, look.by_distance[:, some])
    lift: Array = np.where(look.allowed[:, some], weights - beside, -np.inf)
    return lift


def _unranked(source: Source, text: str) -> Array:
    never = source.never.get(text)
    return source.texts[text].special if never is None else never
