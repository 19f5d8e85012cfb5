"""Two recordings side by side: which links and which heads changed most."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from regard.core.proof import Check
from regard.recording.compare import Compared
from regard.recording.words import Word
from regard.views.labels import short, visible
from regard.views.pen import Column, Pen, table, wrapped
from regard.views.scene import HONEST, LONGEST, Row, described, percent, points, scale_of
from regard.views.terminal import bar, title

HEADS = 8  # heads that are named at the end


@dataclass(frozen=True, slots=True)
class Change:
    """One link, before and after."""

    label: str
    place: str
    before: Row
    after: Row


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed between two recordings, decided once."""

    models: tuple[str, ...]
    title: tuple[tuple[str, bool], ...]
    finding: str
    difference: str  # what is not the same in the second
    rows: tuple[Change, ...]
    heads: str
    checks: tuple[Check, ...]
    notes: tuple[str, ...]


def changes(compared: Compared, top: int = 10) -> Changes:
    """Decide what is shown of a comparison."""
    labels = [
        {w[side].positions[0]: short(visible(w[side].text), LONGEST) for w in compared.words}
        for side in (0, 1)
    ]
    rows = tuple(_change(link, *labels) for link in compared.links[:top])
    differs = difference(compared)
    sentence: tuple[tuple[str, bool], ...] = (("Nothing changed that could be compared.", False),)
    finding = ""
    if rows:
        first = compared.links[0]
        source, target = labels[0][int(first["query"])], labels[0][int(first["key"])]
        sentence = (
            (source, True),
            (" gives ", False),
            (target, True),
            (f" {percent(first['weight'])}; {differs}, {percent(first['weight2'])}.", False),
        )
        finding = (
            f"Layer {first['layer']} head {first['head']}. The others give it "
            f"{percent(first['baseline'])}, and {percent(first['baseline2'])} {differs}."
        )
    moved = ", ".join(
        f"{head['layer']}.{head['head']} ({percent(head['moved'])})"
        for head in compared.heads[:HEADS]
        if head["moved"] > 0.005
    )
    return Changes(
        models=tuple(dict.fromkeys(described(x) for x in (compared.before, compared.after))),
        title=sentence,
        finding=finding,
        difference=differs,
        rows=rows,
        heads=f"Heads whose rows moved most: {moved}." if moved else "No head moved.",
        checks=(compared.before.check(), compared.after.check()),
        notes=tuple(_notes(compared)),
    )


def _change(link: Any, before: dict[int, str], after: dict[int, str]) -> Change:
    names = []
    for end in ("query", "key"):
        old, new = before[int(link[end])], after[int(link[f"{end}2"])]
        names.append(old if old == new else f"{old}/{new}")
    sides = [
        Row(
            "", "", float(link[f"weight{n}"]), float(link[f"baseline{n}"]),
            float(link[f"by_distance{n}"]), int(link["layer"]), int(link["head"]),
        )
        for n in ("", "2")
    ]  # fmt: skip
    place = f"{link['query']} → {link['key']}"
    return Change(" → ".join(names), place, sides[0], sides[1])


def difference(compared: Compared) -> str:
    """What the second has that the first has not, in words."""
    swapped = [
        f"“{short(visible(new.text), LONGEST)}” for “{short(visible(old.text), LONGEST)}”"
        for old, new in compared.words
        if old.text.casefold() != new.text.casefold()
    ]
    if swapped:
        return f"with {' and '.join(swapped[:3])}{' and more' if len(swapped) > 3 else ''}"
    if compared.before.model != compared.after.model:
        return f"in {visible(compared.after.model)}"
    return "in the second recording"


def alone(compared: Compared) -> Iterator[str]:
    """Which words of one text stand for none of the other."""
    for side, one in enumerate((compared.before, compared.after)):
        paired = {p for pair in compared.words for p in pair[side].positions}
        lone: list[Word] = [w for w in one.words() if not set(w.positions) & paired]
        if lone:
            some = ", ".join(short(visible(word.text), LONGEST) for word in lone[:8])
            more = f" and {len(lone) - 8} more" if len(lone) > 8 else ""
            other = "second" if side == 0 else "first"
            yield f"Without a counterpart in the {other} text: {some}{more}."


def _notes(compared: Compared) -> Iterator[str]:
    yield from alone(compared)
    yield (
        "before, after: the weight in the two recordings; others: what the other tokens give it "
        "on average in the first · moved: half the sum of the differences of a row's weights"
    )
    yield HONEST


def draw(shown: Changes, pen: Pen) -> Iterator[Text]:
    """The lines of a comparison in a terminal."""
    yield Text()
    yield from wrapped(title(shown.title, pen), pen)
    if shown.finding:
        yield from wrapped(pen.quiet(shown.finding), pen)
    if shown.rows:
        yield Text()
        yield from wrapped(pen.write("The links that changed most", "bold"), pen)
        yield from table(_columns(shown, pen), pen)
    yield Text()
    yield from wrapped(pen.write(shown.heads), pen)
    yield Text()
    for note in shown.notes:
        yield from wrapped(pen.quiet(note), pen)
    yield Text()
    for check, name in zip(shown.checks, ("first", "second"), strict=True):
        mark, style = ("✓", pen.inks.good) if check.verified else ("✗", f"bold {pen.inks.bad}")
        yield from wrapped(pen.write(f"{mark} {name}: {check}", style), pen)
    for model in shown.models:
        yield from wrapped(pen.quiet(model), pen)
    yield Text()


def _columns(shown: Changes, pen: Pen) -> list[Column]:
    rows = shown.rows
    scale = scale_of([side for row in rows for side in (row.before, row.after)])

    def bars(width: int) -> list[Text]:
        # The bar is the weight after; the tick is where it was.
        after = (Row("", "", r.after.weight, r.before.weight, r.before.weight, 0, 0) for r in rows)
        return [bar(row, scale, width, pen) for row in after]

    return [
        Column("link", [pen.write(row.label) for row in rows], left=True),
        Column("at", [pen.quiet(row.place) for row in rows], spare=2),
        Column(percent(scale), bars=bars, spare=3),
        Column("before", [pen.quiet(percent(row.before.weight)) for row in rows]),
        Column("after", [pen.write(percent(row.after.weight), "bold") for row in rows]),
        Column("change", [pen.write(points(row.after.weight - row.before.weight)) for row in rows]),
        Column("others", [pen.quiet(percent(row.before.baseline)) for row in rows], spare=1),
        Column("head", [pen.quiet(f"{r.before.layer}.{r.before.head}") for r in rows]),
    ]


def as_json(compared: Compared, top: int = 100) -> dict[str, Any]:
    """One object of plain values: the links and heads that changed most."""
    labels = [{w[side].positions[0]: w[side].text for w in compared.words} for side in (0, 1)]
    numbers = ("weight", "baseline", "by_distance", "weight2", "baseline2", "by_distance2")
    return {
        "models": [compared.before.model, compared.after.model],
        "words": [[old.text, new.text] for old, new in compared.words],
        "links": [
            {
                "layer": int(link["layer"]),
                "head": int(link["head"]),
                "from": labels[0][int(link["query"])],
                "to": labels[0][int(link["key"])],
                "positions": [int(link[name]) for name in ("query", "key", "query2", "key2")],
                **{n: None if link[n] != link[n] else float(link[n]) for n in numbers},
            }
            for link in compared.links[:top]
        ],
        "heads": [
            {"layer": int(h["layer"]), "head": int(h["head"]), "moved": float(h["moved"])}
            for h in compared.heads
        ],
    }
