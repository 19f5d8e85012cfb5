"""What a terminal can show, and how to write on it: letters, colours, lines, columns."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from regard.views.palette import INKS, Ground, Inks

# What stands in for a character that a console cannot write.
STAND_INS = dict(zip("━╸╾─┃╋╂╊✓✗·→×“”–−…␣⇥↵⟨⟩", '###.||||+x*>x""--~_>/<>', strict=True))
STAND_INS |= dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", [*"0123456789", "^-"], strict=True))

MARGIN = "  "
BAR = 10, 50  # the shortest and the longest bar


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


def ground(environment: Mapping[str, str]) -> Ground:
    """Light or dark, where the terminal says so: COLORFGBG is `text;background`, such as 15;0."""
    colour = environment.get("COLORFGBG", "").rpartition(";")[2]
    if not colour.isdigit():
        return "unknown"
    return "dark" if int(colour) < 7 or int(colour) == 8 else "light"


def wrapped(text: Text, pen: Pen) -> Iterator[Text]:
    """A paragraph, broken at spaces."""
    line = Text(MARGIN)
    for word in _unbroken(text):
        if line.cell_len > len(MARGIN):
            if line.cell_len + 1 + word.cell_len > pen.width:
                yield line
                line = Text(MARGIN)
            else:
                line.append(" ")
        line.append_text(word)
    yield line


def _unbroken(text: Text) -> Iterator[Text]:
    """The words of a text, a number together with its percent sign."""
    before: Text | None = None
    for word in text.split(" "):
        if before is not None and word.plain.startswith("%"):
            before = Text(" ").join((before, word))
            continue
        if before is not None:
            yield before
        before = word
    if before is not None:
        yield before


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
        cells.append([fit(cell, wide, column.left, pen) for cell in (heading, *parts)])
    for line in zip(*cells, strict=True):
        yield Text(MARGIN) + Text(gap).join(line)


def cut(text: str, width: int) -> str:
    """The text in so many columns; what is cut shows as an ellipsis."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def fit(text: Text, width: int, left: bool, pen: Pen) -> Text:
    """The text in exactly so many columns."""
    if text.cell_len > width:
        text = pen.write(cut(text.plain, width), str(text.style))
    pad = " " * (width - text.cell_len)
    return text + pad if left else Text.assemble(pad, text)
