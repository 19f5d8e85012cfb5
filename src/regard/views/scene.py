"""What is shown, decided once: words, rows, order, scale, sentences, and what was left out.

The drawings (terminal, page, figure) take a scene and only draw it: none of them ranks, rounds a
number to another meaning, or leaves something out by itself.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

Measure = Literal["lift", "weight"]
Part = Literal["", "from", "to"]

HONEST = "Weights say where a head reads, not why the model answers."


@dataclass(frozen=True, slots=True)
class Spot:
    """A word where it stands in the text; `part` says whether the finding is about it."""

    label: str
    positions: tuple[int, ...]
    special: bool = False
    spaced: bool = True  # written apart from the word before
    shade: float = float("nan")  # -1 to 1; NaN: nothing to shade
    part: Part = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the ranked list: a word, a link of two words, or a head."""

    label: str
    place: str
    weight: float
    baseline: float  # what the other rows give this key
    by_distance: float  # what they give as far away
    layer: int
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
    title: tuple[tuple[str, Part], ...]  # a sentence, and which of its words are the finding's
    finding: str
    words: tuple[Spot, ...]
    heading: str
    names: tuple[str, str]  # what label and place of a row are
    rows: tuple[Row, ...]
    measure: Measure
    scale: float  # the weight at the end of a bar
    check: str
    verified: bool
    notes: tuple[str, ...] = ()  # what was left out, and what to know
