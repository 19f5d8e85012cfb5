"""A scene drawn with characters: from true colour on a wide screen down to a pipe of plain ASCII.

Colour never carries a number alone: a bar or a figure stands beside it. Token text becomes rich
Text objects, never markup, after `labels.visible` has taken from it what a terminal would obey.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from math import isnan
from typing import Literal

from rich.console import Console
from rich.text import Text

from regard.core.proof import Check
from regard.views import patches
from regard.views.overview import Overview, measured
from regard.views.palette import ink, shade, tone
from regard.views.pen import MARGIN, Column, Pen, cut, fit, ground, table, wrapped
from regard.views.scene import NAN, Row, Scene, Spot, percent, points

Colours = Literal["truecolor", "256", "standard", "none"]

# The measures of an overview, in the order in which they go where there is no room.
SPARE = (
    "induction", "same_token", "first", "next", "previous", "itself", "heaviest", "distance",
    "entropy", "special", "selectivity",
)  # fmt: skip
FAINT = 0.075  # shades below this only make a text restless


def show(shown: Scene | Overview, console: Console | None = None) -> None:
    """Print a view, by default to standard output, with what colours and characters that has."""
    write(lambda pen: draw(shown, pen), console)


def write(lines: Callable[[Pen], Iterator[Text]], console: Console | None = None) -> None:
    """Print lines that are drawn with what the console has."""
    console = console or Console(highlight=False, markup=False, emoji=False)
    shades = console.color_system in ("truecolor", "256") and not console.no_color
    pen = Pen(max(console.width, 32), shades, ground(os.environ), console.encoding)
    for line in lines(pen):
        if not pen.shades:  # a shade may stand on a space
            line.rstrip()
        console.print(line, soft_wrap=True)


def to_terminal(shown: Scene | Overview, width: int = 80, colours: Colours = "none") -> str:
    """The same as text, with escape sequences where colours are asked for."""
    return written(lambda pen: draw(shown, pen), width, colours)


def written(
    lines: Callable[[Pen], Iterator[Text]], width: int = 80, colours: Colours = "none"
) -> str:
    """Lines as text."""
    system = None if colours == "none" else colours
    console = Console(
        file=StringIO(), width=width, color_system=system, force_terminal=system is not None,
        no_color=False, highlight=False, markup=False, emoji=False, legacy_windows=False,
    )  # fmt: skip
    write(lines, console)
    file: StringIO = console.file  # type: ignore[assignment]
    return file.getvalue()


def draw(shown: Scene | Overview, pen: Pen) -> Iterator[Text]:
    """The lines of a view."""
    yield Text()
    yield from _finding(shown, pen) if isinstance(shown, Scene) else _heads(shown, pen)
    if shown.more:
        yield from wrapped(pen.quiet(shown.more), pen)
    yield Text()
    for note in shown.notes:
        yield from wrapped(pen.quiet(note), pen)
    yield Text()
    yield from proof(shown.check, shown.model, pen)
    yield Text()


def proof(check: Check, model: str, pen: Pen) -> Iterator[Text]:
    """Whether these are the weights that the model used, and which model it is."""
    mark, style = ("✓", pen.inks.good) if check.verified else ("✗", f"bold {pen.inks.bad}")
    yield from wrapped(pen.write(f"{mark} {check}", style), pen)
    yield from wrapped(pen.quiet(model), pen)


def _finding(scene: Scene, pen: Pen) -> Iterator[Text]:
    yield from wrapped(title(scene.title, pen), pen)
    if scene.finding:
        yield from wrapped(pen.quiet(scene.finding), pen)
    if scene.words:
        yield Text()
        yield from text(scene, pen)
    if scene.rows:
        yield Text()
        yield from wrapped(pen.write(scene.heading, "bold"), pen)
        yield from table(columns(scene, pen), pen)


def _heads(shown: Overview, pen: Pen) -> Iterator[Text]:
    yield from wrapped(pen.write(shown.title, "bold"), pen)
    yield from wrapped(pen.quiet(shown.finding), pen)
    yield Text()
    yield from heat(shown, pen)
    yield Text()
    yield from table(measures(shown, pen), pen)


def heat(shown: Overview, pen: Pen) -> Iterator[Text]:
    """Layers by heads, shaded; where colours cannot, in tenths of the largest."""
    wide = 3 if len(shown.heads) * 3 + 10 <= pen.width else 2
    side = max(len(f"layer {shown.layers[-1]}"), 8)
    top = Text(MARGIN) + pen.quiet("head".rjust(side))
    for head in shown.heads:
        top.append_text(pen.quiet(f"{head if wide > 2 or head % 5 == 0 else '':>{wide}}"[:wide]))
    yield top
    for layer, shares in zip(shown.layers, shown.shares, strict=True):
        line = Text(MARGIN) + pen.quiet(f"layer {layer}".rjust(side)) + Text(" ")
        for share in shares:
            if isnan(share):
                line.append_text(pen.quiet("–".rjust(wide)))
            elif pen.shades:
                line.append(" " * wide, f"on {shade(round(tone(share), 2), pen.ground)}")
            else:
                line.append_text(pen.write(str(min(int(10 * share), 9)).rjust(wide)))
        yield line


def measures(shown: Overview, pen: Pen) -> list[Column]:
    """The columns of an overview: what it is sorted by first, the others while there is room."""
    rows, own = shown.rows, shown.measure
    most = max((row.measures[own] for row in rows if not isnan(row.measures[own])), default=1.0)

    def column(name: str, spare: int = 0) -> Column:
        style = "bold" if name == own else pen.inks.quiet
        cells = [pen.write(measured(name, row.measures[name]), style) for row in rows]
        return Column(name.replace("_token", ""), cells, spare=spare)

    def bars(width: int) -> list[Text]:
        return [
            bar(Row("", "", row.measures[own], NAN, NAN, 0, 0), most or 1.0, width, pen)
            for row in rows
        ]

    others = [name for name in SPARE if name != own]
    return [
        Column("layer", [pen.write(str(row.layer)) for row in rows]),
        Column("head", [pen.write(str(row.head)) for row in rows]),
        Column("", bars=bars, spare=len(others)),
        column(own),
        *(column(name, spare) for spare, name in enumerate(others, 1)),
        Column("its heaviest link", [pen.quiet(cut(row.link, 24)) for row in rows], left=True),
    ]


def title(parts: Sequence[tuple[str, bool]], pen: Pen) -> Text:
    """The finding's sentence, the text's words in quotes and colour."""
    line = Text()
    for part, word in parts:
        shown = f"“{cut(part, pen.width // 2)}”" if word else part
        line.append_text(pen.write(shown, f"bold {pen.inks.above}" if word else "bold"))
    return line


def text(scene: Scene, pen: Pen) -> Iterator[Text]:
    """The words: as a text, or as the patches of an image where there is room for them."""
    if scene.grid:
        before, rows = patches.apart(scene.words, scene.grid)
        lines = patches.in_terminal(rows, pen)
        if lines is not None:
            yield from sentence(before, pen) if before else ()
            yield from lines
            return
    yield from sentence(scene.words, pen)


def sentence(words: Sequence[Spot], pen: Pen) -> Iterator[Text]:
    """The text as text, its words shaded; where colours cannot, with figures under the words."""
    above, below = Text(MARGIN), Text(MARGIN)
    for i, spot in enumerate(words):
        word = _word(spot, i + 1 == len(words) or words[i + 1].spaced, pen)
        figure = Text() if pen.shades else _figure(spot, word.cell_len, pen)
        room = max(word.cell_len, figure.cell_len)
        apart = " " if spot.spaced and not pen.shades else ""
        if above.cell_len > len(MARGIN):
            if above.cell_len + len(apart) + room > pen.width:
                yield from [above] if pen.shades else [above, below]
                above, below = Text(MARGIN), Text(MARGIN)
            else:
                above.append(apart)
                below.append(apart)
        above.append_text(fit(word, room, True, pen))
        below.append_text(fit(figure, room, True, pen))
    yield from [above] if pen.shades else [above, below]


def _word(spot: Spot, last: bool, pen: Pen) -> Text:
    label = pen.write(cut(spot.label, pen.width - 6))
    if pen.shades:
        label = Text.assemble(" " if spot.spaced else "", label, " " if last else "")
    if spot.kind == "pinned":
        label.stylize("bold reverse")
    elif spot.kind in ("special", "gap"):
        label.stylize(pen.inks.quiet)
    elif pen.shades and abs(spot.shade) >= FAINT:
        value = round(tone(spot.shade), 2)
        label.stylize(f"{ink(value, pen.ground)} on {shade(value, pen.ground)}")
    return label


def _figure(spot: Spot, width: int, pen: Pen) -> Text:
    if spot.kind == "pinned":
        return pen.write("^" * width)
    return Text() if isnan(spot.shade) else pen.quiet(points(spot.shade))


def columns(scene: Scene, pen: Pen) -> list[Column]:
    """The columns of a ranked list."""
    rows = scene.rows
    label, place = scene.names
    layered = [row for row in rows if row.layer is not None]
    heads = [Column("head", [pen.quiet(str(row.head)) for row in rows])]
    if layered:
        heads.insert(0, Column("layer", [pen.quiet(str(row.layer)) for row in layered]))
    named = [
        Column(label, [pen.write(cut(row.label, pen.width // 3)) for row in rows], left=True),
        Column(place, [pen.quiet(row.place) for row in rows]),
    ]
    numbers = [
        Column(
            percent(scene.scale),  # where a bar ends
            bars=lambda width: [bar(row, scene.scale, width, pen) for row in rows],
            spare=3,
        ),
        Column("weight", [pen.write(percent(row.weight), "bold") for row in rows]),
        Column("others", [pen.quiet(percent(row.baseline)) for row in rows]),
        Column("as far", [pen.quiet(percent(row.by_distance)) for row in rows], spare=2),
        Column("lift", [pen.quiet(points(row.lift)) for row in rows], spare=1),
    ]
    return named + numbers + heads if label else heads + numbers


def bar(row: Row, scale: float, width: int, pen: Pen) -> Text:
    """The weight as a bar and what the others give as a tick; what goes beyond it in colour."""
    full = round(min(row.weight / scale, 1.0) * 2 * width)
    tick = -1 if isnan(row.reference) else min(int(row.reference / scale * width), width - 1)
    drawn = Text()
    for i in range(width):
        filled = min(max(full - 2 * i, 0), 2)  # half columns
        if i == tick:
            drawn.append_text(pen.write("╂╊╋"[filled], "bold"))
        elif filled and i > tick:
            drawn.append_text(pen.write("─╾━"[filled], pen.inks.above))
        elif filled < 2 and i < tick:
            drawn.append_text(pen.write("─╾━"[filled], pen.inks.below))
        else:
            drawn.append_text(pen.quiet("─╾━"[filled]))
    return drawn
