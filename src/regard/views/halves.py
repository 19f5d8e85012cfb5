"""One head as a whole in a terminal: a cell for each pair of words, half blocks for long texts.

A letter is about twice as high as wide. So a short text has cells of two letters, with the words
beside them; of a long one each letter shows two rows, and each cell the largest weight in it.
"""

from collections.abc import Iterator

import numpy as np
from rich.text import Text

from regard.core.arguments import Array
from regard.views.chosen import Link
from regard.views.palette import shade, tone
from regard.views.pen import MARGIN, Pen, cut, wrapped
from regard.views.scene import HONEST, Scene
from regard.views.terminal import proof

NAMED = 32  # rows that are named
NAME = 14  # letters of a name
TALL = 48  # cells of a long text from top to bottom, at the most


def draw(shown: Scene, link: Link, pen: Pen) -> Iterator[Text]:
    """The lines of a head's matrix; rows read, columns are read."""
    rows, keys = link.look.call.shape[-2:]
    side = max(min(NAME, max(map(len, link.rows), default=0)) + 5, 8)
    named = rows <= NAMED and len(MARGIN) + side + 2 * keys < pen.width
    yield Text()
    yield from wrapped(
        pen.write(f"{link.name.capitalize()}: rows read, columns are read.", "bold"), pen
    )
    yield Text()
    if named:
        yield from _named(link, side, pen)
    else:
        yield from _long(link, rows, keys, pen)
    yield Text()
    tenths = "" if pen.shades else "Figures are tenths. "
    largest = "" if named else "Each cell shows the largest weight in it. "
    barred = not named or not link.matrix(link.look.allowed).all()
    said = f"{largest}{tenths}{'· may not attend. ' if barred else ''}{HONEST}"
    yield from wrapped(pen.quiet(said), pen)
    yield Text()
    yield from proof(shown.check, shown.model, pen)
    yield Text()


def _named(link: Link, side: int, pen: Pen) -> Iterator[Text]:
    values = np.where(link.matrix(link.look.allowed), link.matrix(link.look.weights), np.nan)
    top = Text(MARGIN + " " * side)
    for n in range(values.shape[1]):
        top.append_text(pen.quiet(f"{n if n % 5 == 0 else '':>2}"))
    yield top
    for n, (name, row) in enumerate(zip(link.rows, values, strict=True)):
        label = f"{cut(name, NAME)} {n} ".rjust(side)
        line = Text(MARGIN) + (pen.write(label, "bold") if n == link.query else pen.quiet(label))
        for value in row:
            line.append_text(_cell(float(value), pen))
        yield line


def _cell(value: float, pen: Pen) -> Text:
    if np.isnan(value):
        return pen.quiet(" ·")
    if pen.shades:
        return Text("  ", f"on {shade(round(tone(value), 2), pen.ground)}")
    tenths = min(int(10 * value), 9)
    return pen.write(f" {tenths}", "bold") if tenths else pen.quiet(" 0")


def _long(link: Link, rows: int, keys: int, pen: Pen) -> Iterator[Text]:
    across = min(keys, pen.width - len(MARGIN) - 8)
    down = min(rows, max(1, round(rows / keys * across)), TALL if pen.shades else TALL // 2)
    index = () if link.look.call.flat else (link.at,)
    pooled = link.look.map(down, across, how="max")
    values: Array = pooled[(*(0,) * len(link.look.call.batch), *index)]
    for n in range(0, down, 2 if pen.shades else 1):
        line = Text(MARGIN) + pen.quiet(f"{n * rows // down} ".rjust(8))
        lower = values[n + 1] if n + 1 < down else np.full(across, np.nan)
        for pair in zip(values[n], lower, strict=True):
            line.append_text(_pair(*pair, pen) if pen.shades else _cell(float(pair[0]), pen)[1:])
        yield line


def _pair(upper: float, lower: float, pen: Pen) -> Text:
    """Two cells in one letter; what may not be attended has no ground."""
    above, below = (
        None if np.isnan(v) else shade(round(tone(float(v)), 2), pen.ground) for v in (upper, lower)
    )
    if above is None:
        return pen.quiet("·") if below is None else Text("▄", below)
    return Text("▀", above if below is None else f"{above} on {below}")
