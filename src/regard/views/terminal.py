"""A scene drawn with characters: from true colour on a wide screen down to a pipe of plain ASCII.

Colour never carries a number alone: a bar or a figure stands beside it. Token text becomes rich
Text objects, never markup, after `labels.visible` has taken from it what a terminal would obey.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from math import isnan
from typing import Literal, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from regard.views.palette import INKS, Ground, Inks, ink, shade
from regard.views.scene import Row, Scene, Spot, percent, points

# What stands in for a character that a console cannot write.
STAND_INS = dict(zip("━╸╾─┃╋╂╊✓✗·→×“”–−…␣⇥↵⟨⟩", '###.||||+x*>x""--~_>/<>', strict=True))
STAND_INS |= dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", [*"0123456789", "^-"], strict=True))

MARGIN = "  "
BAR = 10, 50  # the shortest and the longest bar
FAINT = 0.075  # shades below this only make a text restless
Colours = Literal["truecolor", "256", "standard", "none"]


@dataclass(frozen=True, slots=True)
class Pen:
    """What a terminal can show, and how to write on it."""

    width: int
    shades: bool  # 256 colours or more; else figures stand under the words
    ground: Ground
    encoding: str

    @property
    def inks(self) -> Inks:
        """The colours that can be read on this ground."""
        return INKS[self.ground]

    def write(self, text: str, style: str = "") -> Text:
        """The text in characters that the terminal has."""
        return Text(spell(text, self.encoding), style, end="")

    def quiet(self, text: str) -> Text:
        """The same, for what is read second."""
        return self.write(text, self.inks.quiet)


def spell(text: str, encoding: str) -> str:
    """The text in characters of an encoding: stand-ins, or numbers, for those that it lacks.

    >>> spell("“cat” ━ 注", "cp1252"), spell("“cat” ━ 注", "utf-8")
    ('“cat” # <6CE8>', '“cat” ━ 注')
    """

    def one(char: str) -> str:
        try:
            char.encode(encoding)
        except UnicodeEncodeError:
            return STAND_INS.get(char) or f"<{ord(char):04X}>"
        return char

    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(map(one, text))
    return text


def show(scene: Scene, console: Console | None = None) -> None:
    """Print a scene, by default to standard output, with what colours and characters that has."""
    console = console or Console(highlight=False, markup=False, emoji=False)
    shades = console.color_system in ("truecolor", "256") and not console.no_color
    pen = Pen(max(console.width, 32), shades, ground(os.environ), console.encoding)
    for line in draw(scene, pen):
        line.rstrip()
        console.print(line, soft_wrap=True)


def to_terminal(scene: Scene, width: int = 80, colours: Colours = "none") -> str:
    """The same as text, with escape sequences where colours are asked for."""
    system = None if colours == "none" else colours
    console = Console(
        file=StringIO(), width=width, color_system=system, force_terminal=system is not None,
        no_color=False, highlight=False, markup=False, emoji=False, legacy_windows=False,
    )  # fmt: skip
    show(scene, console)
    written: StringIO = console.file  # type: ignore[assignment]
    return written.getvalue()


def ground(environment: Mapping[str, str]) -> Ground:
    """Light or dark, where the terminal says so: COLORFGBG is `text;background`, such as 15;0."""
    colour = environment.get("COLORFGBG", "").rpartition(";")[2]
    if not colour.isdigit():
        return "unknown"
    return "dark" if int(colour) < 7 or int(colour) == 8 else "light"


def draw(scene: Scene, pen: Pen) -> Iterator[Text]:
    """The lines of a scene."""
    yield Text()
    yield from wrapped(title(scene.title, pen), pen)
    if scene.finding:
        yield from wrapped(pen.quiet(scene.finding), pen)
    yield Text()
    yield from sentence(scene.words, pen)
    if scene.rows:
        yield Text()
        yield from wrapped(pen.write(scene.heading, "bold"), pen)
        yield from table(columns(scene, pen), pen)
        if scene.more:
            yield from wrapped(pen.quiet(scene.more), pen)
    yield Text()
    for note in scene.notes:
        yield from wrapped(pen.quiet(note), pen)
    yield Text()
    good = scene.check.verified
    mark, style = ("✓", pen.inks.good) if good else ("✗", f"bold {pen.inks.bad}")
    yield from wrapped(pen.write(f"{mark} {scene.check}", style), pen)
    yield from wrapped(pen.quiet(scene.model), pen)
    yield Text()


def wrapped(text: Text, pen: Pen) -> Iterator[Text]:
    """A paragraph, broken at spaces."""
    line = Text(MARGIN)
    for word in text.split(" "):
        if line.cell_len > len(MARGIN):
            if line.cell_len + 1 + word.cell_len > pen.width:
                yield line
                line = Text(MARGIN)
            else:
                line.append(" ")
        line.append_text(word)
    yield line


def title(parts: Sequence[tuple[str, bool]], pen: Pen) -> Text:
    """The finding's sentence, the text's words in quotes and colour."""
    line = Text()
    for part, word in parts:
        shown = f"“{_cut(part, pen.width // 2)}”" if word else part
        line.append_text(pen.write(shown, f"bold {pen.inks.above}" if word else "bold"))
    return line


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
        above.append_text(_fit(word, room, True, pen))
        below.append_text(_fit(figure, room, True, pen))
    yield from [above] if pen.shades else [above, below]


def _word(spot: Spot, last: bool, pen: Pen) -> Text:
    label = pen.write(_cut(spot.label, pen.width - 6))
    if pen.shades:
        label = Text.assemble(" " if spot.spaced else "", label, " " if last else "")
    if spot.kind == "pinned":
        label.stylize("bold reverse")
    elif spot.kind in ("special", "gap"):
        label.stylize(pen.inks.quiet)
    elif pen.shades and abs(spot.shade) >= FAINT:
        value = round(spot.shade, 2)
        label.stylize(f"{ink(value, pen.ground)} on {shade(value, pen.ground)}")
    return label


def _figure(spot: Spot, width: int, pen: Pen) -> Text:
    if spot.kind == "pinned":
        return pen.write("^" * width)
    return Text() if isnan(spot.shade) else pen.quiet(points(spot.shade))


class Column(NamedTuple):
    """A column of a table."""

    title: str
    cells: Sequence[Text] = ()
    left: bool = False
    spare: int = 0  # where there is no room, 1 goes first; 0 stays
    bars: Callable[[int], Sequence[Text]] | None = None  # cells as wide as there is room


def table(columns: Sequence[Column], pen: Pen) -> Iterator[Text]:
    """Columns side by side, as many as there is room for."""
    gap = "  " if pen.width >= 60 else " "
    kept = list(columns)

    def width(column: Column) -> int:
        cells = max((cell.cell_len for cell in column.cells), default=BAR[0] if column.bars else 0)
        return max(cell_len(column.title), cells)

    def room() -> int:
        gaps = len(gap) * (len(kept) - (pen.width < 60))  # the last is the right margin
        return pen.width - len(MARGIN) - gaps - sum(map(width, kept))

    for column in sorted((column for column in columns if column.spare), key=lambda c: c.spare):
        if room() < 0:
            kept.remove(column)
    cells: list[Sequence[Text]] = []
    for column in kept:
        wide = width(column)
        if column.bars:
            wide = min(wide + max(room(), 0), BAR[1])
        elif column.left:
            wide += min(room(), 0)
        parts = column.bars(wide) if column.bars else column.cells
        heading = pen.quiet(column.title)
        cells.append([_fit(cell, wide, column.left, pen) for cell in (heading, *parts)])
    for line in zip(*cells, strict=True):
        yield Text(MARGIN) + Text(gap).join(line)


def columns(scene: Scene, pen: Pen) -> list[Column]:
    """The columns of a ranked list."""
    rows = scene.rows
    label, place = scene.names
    heads = [
        Column("layer", [pen.quiet(str(row.layer)) for row in rows]),
        Column("head", [pen.quiet(str(row.head)) for row in rows]),
    ]
    named = [
        Column(label, [pen.write(_cut(row.label, pen.width // 3)) for row in rows], left=True),
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


def _cut(text: str, width: int) -> str:
    """The text in so many columns; what is cut shows as an ellipsis."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def _fit(text: Text, width: int, left: bool, pen: Pen) -> Text:
    """The text in exactly so many columns."""
    if text.cell_len > width:
        text = pen.write(_cut(text.plain, width), str(text.style))
    pad = " " * (width - text.cell_len)
    return text + pad if left else Text.assemble(pad, text)
