"""Two recordings side by side: the same text with a word changed, another model, another dtype.

Words are aligned first: what both texts share, and stretches of as many words that stand for each
other. A link is compared where both texts have both of its words. The change of a head is how far
its rows moved: half the sum of the differences of a row's weights (0: nothing, 1: everything).
"""

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np

from regard.core.arguments import Array
from regard.recording.layer import Layer
from regard.recording.links import Group, Links, walk
from regard.recording.recording import Recording
from regard.recording.words import Word

_PLACES, _SIDES = "layer head query key query2 key2", ("weight", "baseline", "by_distance", "lift")
CHANGE = np.dtype(
    [
        *((name, np.int64) for name in _PLACES.split()),
        *((name, np.float64) for name in _SIDES),
        *((f"{name}2", np.float64) for name in _SIDES),
    ]
)
MOVED = np.dtype([("layer", np.int64), ("head", np.int64), ("moved", np.float64)])


class Compared(NamedTuple):
    """What changed between two recordings.

    Attributes:
        before: the first recording, one text of it.
        after: the second.
        words: pairs of words that stand for each other, as they are in the two texts.
        links: (layer, head, query, key, query2, key2, weight, …, weight2, …), the largest change
            of weight first; those of `after` end in 2. Positions are of the texts without padding.
        heads: (layer, head, moved), the most moved first.
    """

    before: Recording
    after: Recording
    words: list[tuple[Word, Word]]
    links: Array
    heads: Array


def compare(
    before: Recording,
    after: Recording,
    source: Word | str | None = None,
    target: Word | str | None = None,
    *,
    item: int = 0,
    top: int = 100,
) -> Compared:
    """Compare two recordings, link by link and head by head.

    Args:
        before: the recording that words are looked up in.
        after: the other one.
        source: only links from this word.
        target: only links to this word.
        item: which text of each.
        top: so many links, at the most.

    Raises:
        ValueError: the two have no layer and head, or no words, in common; or a word that is asked
            about has no counterpart.
        KeyError: no such word, or several.
    """
    ends = [before[w] if isinstance(w, str) else w for w in (source, target)]
    item = next((word.item for word in ends if word is not None), item)
    one, other = before.item(item), after.item(min(item, after.run.items - 1))
    pairs = aligned(one.words(), other.words())
    if not pairs:
        raise ValueError("the two texts have no words in common")
    readers, read = (_among(one, before, pairs, word) for word in ends)
    layers = [(x, y) for x in _own(one) for y in _own(other) if x.number == y.number]
    found, moved = [np.zeros(0, CHANGE)], [np.zeros(0, MOVED)]
    for x, y in layers:
        shared = np.intersect1d(x.heads, y.heads)
        if len(shared):
            found.append(_changes(x, y, shared, pairs, readers, read, top))
            moved.append(_moved(x, y, shared, pairs))
    if len(found) == 1:
        raise ValueError("the two recordings have no layer and head in common")
    links, heads = np.concatenate(found), np.concatenate(moved)
    order = np.argsort(-np.abs(links["weight2"] - links["weight"]), kind="stable")
    return Compared(
        one, other, pairs, links[order[:top]], heads[np.argsort(-heads["moved"], kind="stable")]
    )


def aligned(words: Sequence[Word], others: Sequence[Word]) -> list[tuple[Word, Word]]:
    """Words that stand for each other: equal ones, and stretches of as many that differ.

    >>> a = [Word(text, 0, (n,)) for n, text in enumerate("it was tired .".split())]
    >>> b = [Word(text, 0, (n,)) for n, text in enumerate("it was soft .".split())]
    >>> [(x.text, y.text) for x, y in aligned(a, b)]
    [('it', 'it'), ('was', 'was'), ('tired', 'soft'), ('.', '.')]
    """
    texts = [[word.text.casefold() for word in side] for side in (words, others)]
    pairs: list[tuple[Word, Word]] = []
    for what, a, b, c, d in SequenceMatcher(None, texts[0], texts[1], autojunk=False).get_opcodes():
        if what == "equal" or (what == "replace" and b - a == d - c):
            pairs += zip(words[a:b], others[c:d], strict=True)
    return pairs


def _own(one: Recording) -> list[Layer]:
    return [layer for layer in one.layers if layer.kind == one.run.main]


def _among(
    one: Recording, whole: Recording, pairs: list[tuple[Word, Word]], word: Word | None
) -> list[int]:
    """The numbers of the pairs that are meant; all where no word is asked about."""
    if word is None:
        return list(range(len(pairs)))
    places = one.run.places[one.run.main]
    asked = set(np.searchsorted(places, word.positions).tolist())
    found = [n for n, (x, _) in enumerate(pairs) if asked & set(x.positions)]
    if not found:
        raise ValueError(f"{word.text!r} has no counterpart in the other text")
    return found


def _changes(
    x: Layer,
    y: Layer,
    shared: Array,
    pairs: list[tuple[Word, Word]],
    readers: list[int],
    read: list[int],
    top: int,
) -> Array:
    """The links of one layer in both recordings, those that changed most."""
    sides = []
    for layer, side in ((x, 0), (y, 1)):
        own = [pairs[n][side].positions for n in readers]
        others = [pairs[n][side].positions for n in read]
        sides.append(_together(layer, own, others, np.searchsorted(layer.heads, shared)))
    first, second = sides
    same = np.array(readers)[:, None] == np.array(read)
    fits = first["allowed"] & second["allowed"] & ~same
    change = np.where(fits, np.abs(second["weight"] - first["weight"]), -1.0)
    flat = np.argsort(-change, axis=None, kind="stable")[: max(top, 1)]
    flat = flat[change.reshape(-1)[flat] >= 0]
    h, i, j = np.unravel_index(flat, change.shape)
    out = np.zeros(len(flat), CHANGE)
    out["layer"], out["head"] = x.number, shared[h]
    for side, ending in ((0, ""), (1, "2")):
        firsts = np.array([pair[side].positions[0] for pair in pairs])
        out[f"query{ending}"] = firsts[np.array(readers)[i]]
        out[f"key{ending}"] = firsts[np.array(read)[j]]
        for name in _SIDES:
            out[f"{name}{ending}"] = sides[side][name][h, i, j]
    return out


def _together(
    layer: Layer, readers: list[Group], read: list[Group], heads: Array
) -> dict[str, Array]:
    """Weight, what the others give and lift of every link, (heads, readers, read) each."""
    shape = (len(heads), len(readers), len(read))
    out = {name: np.full(shape, np.nan) for name in _SIDES}
    out["allowed"] = np.zeros(shape, bool)
    for some, links in walk(layer, readers, read):
        for name in (*_SIDES, "allowed"):
            out[name][:, some] = getattr(links, name)[heads]
    return out


def _moved(x: Layer, y: Layer, shared: Array, pairs: list[tuple[Word, Word]]) -> Array:
    """How far the rows of each head moved, on average over the words that both have."""
    groups = [[pair[side].positions for pair in pairs] for side in (0, 1)]
    weights = []
    for layer, own in zip((x, y), groups, strict=True):
        heads = np.searchsorted(layer.heads, shared)
        found = np.zeros((len(shared), len(own), len(own)))
        for some, links in walk(layer, own, own):
            found[:, some] = _plain(links)[heads]
        weights.append(found)
    rest = [1 - found.sum(axis=-1) for found in weights]  # special tokens, and words without a pair
    moved = np.abs(weights[1] - weights[0]).sum(axis=-1) + np.abs(rest[1] - rest[0])
    out = np.zeros(len(shared), MOVED)
    out["layer"], out["head"], out["moved"] = x.number, shared, moved.mean(axis=-1) / 2
    return out


def _plain(links: Links) -> Array:
    found: Array = np.where(links.allowed, links.weight, 0.0)
    return found
