"""What is shown, decided once: words, rows, order, scale, sentences, and what was left out.

The drawings (terminal, page, figure) take a scene and only draw it: none of them ranks, rounds a
number to another meaning, or leaves something out by itself.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import isnan
from typing import Any, Literal

import numpy as np

from regard.core.arguments import Array
from regard.core.proof import Check
from regard.recording.links import rank
from regard.recording.recording import By, Recording
from regard.recording.words import Word
from regard.views.answer import Answer, answer
from regard.views.asked import whole
from regard.views.labels import short, visible

HONEST = "Weights say where a head reads, not why the model answers."
LEGEND = (
    "others: what the other tokens give it on average · as far: what they give at the same "
    "distance · lift: the weight beyond the larger of the two"
)
LONGEST = 60  # letters of a word in a heading or a note
LONG = 300  # a text of more words is shown only around those that are listed,
AROUND = 8  # with so many words on either side
SCALES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Spot:
    """A word where it stands in the text, or a gap where words are left out."""

    label: str
    positions: tuple[int, ...] = ()
    kind: Literal["word", "pinned", "special", "gap"] = "word"  # pinned: what is asked about
    spaced: bool = True  # written apart from the word before
    shade: float = NAN  # -1 to 1; NaN: nothing to shade


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the ranked list: a word, a link of two words, or a head."""

    label: str
    place: str
    weight: float
    baseline: float  # what the other rows give this key
    by_distance: float  # what they give as far away
    layer: int | None  # None: one call alone
    head: int

    @property
    def reference(self) -> float:
        """The larger of what the others give; NaN where there are no such others."""
        return float(np.maximum(self.baseline, self.by_distance))

    @property
    def lift(self) -> float:
        """What this row adds to what the others give."""
        return self.weight - self.reference


@dataclass(frozen=True, slots=True)
class Scene:
    """One finding in one text: drawn as a page, in a terminal, or as a figure."""

    model: str
    title: tuple[tuple[str, bool], ...]  # a sentence in parts; True: a word of the text
    finding: str  # in which head, and what the others give as far away
    words: tuple[Spot, ...]
    heading: str
    names: tuple[str, str]  # what label and place of a row are; empty where all rows have one
    rows: tuple[Row, ...]
    more: str  # how many rows were left out
    scale: float  # the weight at the end of a bar
    check: Check
    notes: tuple[str, ...]
    grid: tuple[int, int] | None = None  # the last words are patches, in so many rows and columns
    picture: Array | None = None  # what lies beneath the patches, (height, width) bytes


def scene(
    seen: Recording,
    source: Word | str | None = None,
    target: Word | str | None = None,
    *,
    by: By = "lift",
    layer: int | None = None,
    head: int | None = None,
    top: int = 10,
) -> Scene:
    """Decide what is shown of a recording: of one text, where it has several.

    Args:
        seen: the recording.
        source: the word that reads. With it alone: what it reads, one line a word, its best head.
        target: the word that is read. With it alone: which words read it. With both: in which
            heads. With neither: the strongest links, one line for two words.
        by: rank by "lift", the weight beyond what other rows give, or by the bare "weight".
        layer: only this layer.
        head: only this head.
        top: how many lines at the most.

    Raises:
        KeyError: no such word, or several.
        ValueError: no such layer or head, or the words are the same or of different texts.
    """
    top = whole("top", top)
    found = answer(seen, source, target, by=by, layer=layer, head=head, top=top)
    text = _Text(seen, found)
    comparable = ~np.isnan(rank(text.links, "lift"))
    ranked = text.links if by == "weight" else text.links[comparable]
    listed = ranked[:top]
    rows = tuple(text.row(link) for link in listed)
    shaded = ranked
    if text.kind == "head" and found.source and len(listed):
        where = int(listed[0]["layer"]), int(listed[0]["head"])
        shaded = text.own(seen.reads(found.source, by, "word", *where))
    spots = text.spots(shaded, by)
    left = len(ranked) - len(rows) if text.kind != "link" else 0
    return Scene(
        model=described(seen),
        title=text.title(listed),
        finding=_finding(listed),
        words=tuple(spots) if text.grid else _near(spots, listed),
        heading=text.heading(by, layer, head),
        names={"head": ("", ""), "word": ("word", "at"), "link": ("link", "at")}[text.kind],
        rows=rows,
        more=f"and {left} more {text.kind}{'s' * (left > 1)}" if left else "",
        scale=scale_of(rows),
        check=seen.check(),
        notes=tuple(_notes(seen, text, text.links[~comparable], by)),
        grid=text.grid,
    )


class _Text:
    """A text as it is shown: without padding, positions counted from 0, words as labels."""

    def __init__(self, seen: Recording, found: Answer) -> None:
        one = seen.item(found.item)
        self.places = one.run.places[one.run.main]
        self.grid = one.run.tokens[one.run.main].grid
        self.kind: Literal["word", "head", "link"] = "link"
        if found.source or found.target:
            self.kind = "head" if found.source and found.target else "word"
        self.source = self._own(found.source) if found.source else None
        self.target = self._own(found.target) if found.target else None
        self.links = self.own(found.links)
        self.words = [self._own(word) for word in seen.words(found.item)]
        tokens = seen.texts[found.item]
        self.special = {
            n: visible(tokens.tokens[p]) for n, p in enumerate(self.places) if tokens.special[p]
        }
        unranked = seen.special(found.item)[self.places]
        self.first = [w for w in self.words if unranked[list(w.positions)].any()]
        asked = [word for word in (self.source, self.target) if word]
        self.labels = {w.positions[0]: visible(w.text) for w in [*self.words, *asked]}

    def _own(self, word: Word) -> Word:
        positions = np.searchsorted(self.places, word.positions)
        return replace(word, item=0, positions=tuple(positions.tolist()))

    def own(self, links: Array) -> Array:
        """Links with this text's positions."""
        links = links.copy()
        for name in ("query", "key"):
            links[name] = np.searchsorted(self.places, links[name])
        return links

    def ends(self, link: Any) -> tuple[str, str]:
        """The words that a link joins: which reads, which is read."""
        return self.labels[int(link["query"])], self.labels[int(link["key"])]

    def row(self, link: Any) -> Row:
        """A line of the list."""
        query, key = int(link["query"]), int(link["key"])
        source, target = self.ends(link)
        label, place = {
            "head": ("", ""),
            "word": (target, str(key)) if self.source else (source, str(query)),
            "link": (f"{source} → {target}", f"{query} → {key}"),
        }[self.kind]
        weight, baseline, by_distance, layer, head = (
            link[name].item() for name in ("weight", "baseline", "by_distance", "layer", "head")
        )
        return Row(label, place, weight, baseline, by_distance, layer, head)

    def title(self, listed: Array) -> tuple[tuple[str, bool], ...]:
        """What the first line of the list says, as a sentence."""
        if not len(listed):
            reader, read = (
                (self.labels[word.positions[0]] if word else "", True)
                for word in (self.source, self.target)
            )
            if self.source and self.target:
                return (reader, (" cannot see ", False), read, (" in any head.", False))
            if self.source:
                return (reader, (" has no other word to read.", False))
            if self.target:
                return (("No other word can read ", False), read, (".", False))
            return (("There are no two words that can be linked.", False),)
        source, target = self.ends(listed[0])
        given = f" {percent(listed[0]['weight'])}"
        beside = f"; the others give it {percent(listed[0]['baseline'])}."
        if isnan(listed[0]["baseline"]):
            beside = "; there are no others to compare it with."
        return ((source, True), (" gives ", False), (target, True), (given + beside, False))

    def heading(self, by: By, layer: int | None, head: int | None) -> str:
        """What the list is."""
        source, target = (
            word and f"“{short(self.labels[word.positions[0]], LONGEST)}”"
            for word in (self.source, self.target)
        )
        if source and target:
            what = f"Heads in which {source} reads {target}"
        elif source:
            what = f"What {source} reads"
        elif target:
            what = f"Which words read {target}"
        else:
            what = "The strongest links"
        what += "" if layer is None else f" in layer {layer}"
        what += "" if head is None else f"{' in' if layer is None else ''} head {head}"
        return what + (", beyond what the others give" if by == "lift" else ", by weight alone")

    def spots(self, links: Array, by: By) -> list[Spot]:
        """The words and special tokens in their order, each shaded by its best link."""
        at = "query" if self.kind == "word" and self.target else "key"
        shades: dict[int, float] = {}
        for link, value in zip(links, rank(links, by), strict=True):
            shades.setdefault(int(link[at]), float(value))
        pinned = {p for w in (self.source or self.target,) if w for p in w.positions}
        spots = [Spot(label, (n,), "special") for n, label in self.special.items()]
        for word in self.words:
            asked = bool(pinned & set(word.positions))
            spots.append(
                Spot(
                    visible(word.text),
                    word.positions,
                    "pinned" if asked else "word",
                    word.spaced,
                    NAN if asked else shades.get(word.positions[0], NAN),
                )
            )
        return sorted(spots, key=lambda spot: spot.positions)


def _near(spots: Sequence[Spot], listed: Array) -> tuple[Spot, ...]:
    """All of a text, or of a long one what stands around the words that are listed."""
    if len(spots) <= LONG:
        return tuple(spots)
    shown = {int(n) for name in ("query", "key") for n in listed[name]}
    close: set[int] = set()
    for i, spot in enumerate(spots):
        if spot.kind == "pinned" or shown & set(spot.positions):
            close.update(range(i - AROUND, i + AROUND + 1))
    kept: list[Spot] = []
    for near, group in groupby(range(len(spots)), key=close.__contains__):
        numbers = list(group)
        if near:
            kept += [spots[i] for i in numbers]
        else:
            kept.append(Spot(f"… {len(numbers)} more …", kind="gap"))
    return tuple(kept)


def _finding(listed: Array) -> str:
    """In which head the first line is, and what the others give as far away."""
    if not len(listed):
        return ""
    first = listed[0]
    away = int(first["key"] - first["query"])
    where = f"{abs(away)} token{'s' * (abs(away) > 1)} {'on' if away > 0 else 'back'}"
    if isnan(first["by_distance"]):
        beside = f"No other token has one {where}."
    else:
        beside = f"To whatever stands {where}, the others give {percent(first['by_distance'])}."
    return f"Layer {first['layer']} head {first['head']}. {beside}"


def described(seen: Recording) -> str:
    """The model and its size, and that of the text."""
    own = [layer for layer in seen.layers if layer.kind == seen.run.main]
    heads = " or ".join(map(str, sorted({len(layer.heads) for layer in own})))
    tokens = len(seen.texts[0])
    texts = f"{len(seen.texts)} texts of {tokens}" if len(seen.texts) > 1 else str(tokens)
    return f"{visible(seen.model)} · {len(own)} layers × {heads} heads · {texts} tokens"


def scale_of(rows: Iterable[Row]) -> float:
    """A round weight that no bar and no tick goes beyond."""
    most = max((np.fmax(row.weight, row.reference) for row in rows), default=1.0)
    return next((scale for scale in SCALES if scale >= most), 1.0)


def _notes(seen: Recording, text: _Text, alone: Array, by: By) -> Iterator[str]:
    """What was left out and why, and how to read the numbers."""
    kept = list(dict.fromkeys(text.special.values()))
    if kept:
        yield f"Not ranked: {', '.join(kept)} (special tokens)."
    if text.first:
        first = short(visible(text.first[0].text), LONGEST)
        yield f"Not ranked: {first} (it stands where other texts have a start token)."
    if by == "lift" and len(alone):
        words = list(dict.fromkeys(short(text.row(link).label, LONGEST) for link in alone))
        some = ", ".join(words[:8]) + (f" and {len(words) - 8} more" if len(words) > 8 else "")
        yield f"Not ranked: {some} (in some heads nothing to compare with)."
    others = [layer for layer in seen.layers if layer.kind != seen.run.main]
    if others:
        kinds = " and ".join(sorted({layer.kind for layer in others}))
        yield f"Not shown here: {len(others)} more attentions ({kinds})."
    for name, reason in seen.unrecorded.items():
        yield f"Not recorded: {name} ({reason})."
    if seen.run.stopped:
        yield seen.run.stopped
    yield LEGEND
    yield HONEST


def percent(weight: float) -> str:
    """A weight as people read it.

    >>> percent(0.4915), percent(0.001), percent(0.0), percent(NAN)
    ('49 %', '<1 %', '0 %', '–')
    """
    if isnan(weight):
        return "–"
    shown = f"{100 * weight:.0f}"
    return "<1 %" if shown == "0" and weight > 0 else f"{shown} %"


def points(lift: float) -> str:
    """A difference of weights in points of a hundred.

    >>> points(0.311), points(-0.13), points(0.001), points(NAN)
    ('+31', '−13', '0', '–')
    """
    if isnan(lift):
        return "–"
    return f"{round(100 * lift):+d}".replace("-", "−") if abs(lift) >= 0.005 else "0"
