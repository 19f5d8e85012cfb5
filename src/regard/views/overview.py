"""All heads of a model on one text: which to look at first."""

from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np

from regard.core.proof import Check
from regard.recording.recording import Recording
from regard.views.labels import visible
from regard.views.scene import HONEST, described, percent

# What heads can be sorted by: what is said of the first, and what the measure is.
MEASURES = {
    "selectivity": (
        "is the most selective",
        "how far a row's weights are from the head's average; 0: every word reads alike",
    ),
    "entropy": (
        "spreads its weight the widest",
        "how widely a row spreads its weight, in nats; 0: all on one token",
    ),
    "first": ("gives the first token the most", "the share of weight on the first token"),
    "special": ("gives special tokens the most", "the share of weight on special tokens"),
    "itself": (
        "gives the most to the token itself",
        "the share of weight that tokens give themselves",
    ),
    "previous": ("gives the most to the token before", "the share of weight one token back"),
    "next": ("gives the most to the token after", "the share of weight one token on"),
    "same_token": (
        "gives the most to the same token elsewhere",
        "the share of weight on the same token elsewhere in the text",
    ),
    "induction": (
        "gives the most to what follows the same token elsewhere",
        "the share of weight on tokens right behind the same token elsewhere in the text",
    ),
    "distance": ("reads from the farthest", "how far away the weight is on average, in tokens"),
    "heaviest": (
        "has the heaviest link",
        "the largest weight between different tokens that are not special",
    ),
}


@dataclass(frozen=True, slots=True)
class HeadRow:
    """What one head does: its measures, and its heaviest link in words."""

    layer: int
    head: int
    measures: dict[str, float]
    link: str


@dataclass(frozen=True, slots=True)
class Overview:
    """Heads by one measure: a map of all, and a list of those that have most of it."""

    model: str
    title: str
    finding: str
    measure: str
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    shares: tuple[tuple[float, ...], ...]  # a row a layer: of the largest; NaN: no such head
    rows: tuple[HeadRow, ...]
    more: str
    check: Check
    notes: tuple[str, ...]


def overview(
    seen: Recording, sort: str = "selectivity", *, layer: int | None = None, top: int = 20
) -> Overview:
    """Decide what is shown of the heads of a recording.

    Args:
        seen: the recording.
        sort: a name of `MEASURES`; heads that have most of it come first.
        layer: list only the heads of this layer.
        top: how many are listed at the most.

    Raises:
        ValueError: no such measure or layer.
    """
    if sort not in MEASURES:
        raise ValueError(f"sort: expected one of {', '.join(MEASURES)}, received {sort!r}")
    main = [layer.kind == seen.run.main for layer in seen.layers]
    table = seen.heads()[np.repeat(main, [len(layer.heads) for layer in seen.layers])]
    layers, heads = (tuple(int(n) for n in np.unique(table[name])) for name in ("layer", "head"))
    if layer is not None and layer not in layers:
        raise ValueError(f"layer: expected one of {list(layers)}, received {layer}")
    shares = np.full((len(layers), len(heads)), np.nan)
    most = np.nanmax(table[sort], initial=0.0) or 1.0
    shares[np.searchsorted(layers, table["layer"]), np.searchsorted(heads, table["head"])] = (
        table[sort] / most
    )
    wanted = table if layer is None else table[table["layer"] == layer]
    value = wanted[sort]
    order = np.lexsort((wanted["head"], wanted["layer"], -np.where(np.isnan(value), -1, value)))
    rows = tuple(_row(seen, wanted[i]) for i in order[:top])
    left = len(wanted) - len(rows)
    first, (said, meaning) = rows[0], MEASURES[sort]
    return Overview(
        model=described(seen),
        title=f"Layer {first.layer} head {first.head} {said}: "
        f"{measured(sort, first.measures[sort])}.",
        finding=f"{sort.replace('_', ' ')}: {meaning}.",
        measure=sort,
        layers=layers,
        heads=heads,
        shares=tuple(map(tuple, shares.tolist())),
        rows=rows,
        more=f"and {left} more heads" if left else "",
        check=seen.check(),
        notes=(HONEST,),
    )


def _row(seen: Recording, row: Any) -> HeadRow:
    link = "–"
    if row["query"] >= 0:
        pieces = seen.texts[int(row["item"])].pieces
        source, target = (visible(pieces[int(row[end])].strip(" ")) for end in ("query", "key"))
        link = f"{source} → {target}"
    measures = {name: float(row[name]) for name in MEASURES}
    return HeadRow(int(row["layer"]), int(row["head"]), measures, link)


def measured(measure: str, value: float) -> str:
    """A measure as people read it: a share as a percentage, others as numbers.

    >>> measured("selectivity", 0.4957), measured("previous", 0.12), measured("distance", 3.14)
    ('0.50', '12 %', '3.1')
    """
    if isnan(value):
        return "–"
    if measure in ("selectivity", "entropy"):
        return f"{value:.2f}"
    return f"{value:.1f}" if measure == "distance" else percent(value)
