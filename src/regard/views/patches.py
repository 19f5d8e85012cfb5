"""An image's patches as the grid that they are, in a terminal and on a sheet; its picture.

The last tokens of such a text are the patches, row by row; those before them belong to no place.
"""

import base64
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import numpy as np
from rich.text import Text

from regard.core.arguments import Array
from regard.views.palette import INKS, Ground, ink, shade, tone
from regard.views.pen import MARGIN, Pen
from regard.views.scene import Spot, points
from regard.views.sheet import MARGIN as EDGE
from regard.views.sheet import WIDTH, Sheet

Grid = tuple[int, int]  # rows, columns
LARGEST = 1024  # pixels a side that are kept of a picture
LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # of red, green and blue (BT.601)
PALE = 0.5  # how strong a picture is beneath its shades
FAINT = 0.04  # shades below this only make an image restless
SIDE = 24.0  # points a cell, at the most
EVERY = 5  # of many rows and columns so manieth are numbered
MANY = 16


def apart(words: tuple[Spot, ...], grid: Grid) -> tuple[tuple[Spot, ...], list[tuple[Spot, ...]]]:
    """What stands before the patches, and the patches row by row."""
    rows, columns = grid
    before = len(words) - rows * columns
    return words[:before], [words[before + r * columns :][:columns] for r in range(rows)]


def numbered(n: int, count: int, most: int = MANY) -> str:
    """The number of a row or column, where it is written: of more than `most` not of each."""
    return str(n) if count <= most or n % EVERY == 0 else ""


def in_terminal(rows: list[tuple[Spot, ...]], pen: Pen) -> Iterator[Text] | None:
    """The patches as lines; None where there is no room for them."""
    count = len(rows[0])
    side = len(MARGIN) + 4
    for wide in (2, 1) if pen.shades else (5, 2):
        if side + wide * count <= pen.width:
            return _lines(rows, wide, pen)
    return None


def _lines(rows: list[tuple[Spot, ...]], wide: int, pen: Pen) -> Iterator[Text]:
    count = len(rows[0])
    if wide > 1:
        top = "".join(f"{numbered(n, count, 5 * wide):>{wide}}" for n in range(count))
        yield Text(MARGIN + " " * 4) + pen.quiet(top)
    for n, spots in enumerate(rows):
        line = Text(MARGIN) + pen.quiet(f"{numbered(n, len(rows)):>3} ")
        for spot in spots:
            line.append_text(_cell(spot, wide, pen))
        yield line


def _cell(spot: Spot, wide: int, pen: Pen) -> Text:
    if spot.kind == "pinned":
        return pen.write({1: "X", 2: "[]"}.get(wide, f"{'[]':>{wide}}"), "bold")
    value = 0.0 if np.isnan(spot.shade) or abs(spot.shade) < FAINT else spot.shade
    if not pen.shades:  # figures, or tenths where there is little room
        tenths = "-" if value <= -0.05 else str(min(round(10 * value), 9)) if value >= 0.05 else "."
        return pen.write(f"{points(spot.shade) if wide > 2 else tenths:>{wide}}")
    return Text(" " * wide, f"on {shade(round(tone(value), 2), pen.ground)}")


def on_sheet(sheet: Sheet, rows: list[tuple[Spot, ...]], picture: Array | None) -> None:
    """The patches as squares, shaded over the picture where there is one."""
    count, beside = len(rows[0]), 16.0
    side = min(SIDE, (WIDTH - 2 * EDGE - beside) / count)
    left, top = EDGE + beside, sheet.y + 6
    if picture is not None:
        extent = (left, left + count * side, top + len(rows) * side, top)
        sheet.axes.imshow(picture, extent=extent, aspect="auto", cmap="gray", vmin=0, vmax=255,
                          alpha=PALE, zorder=0.5)  # fmt: skip
        sheet.axes.set_xlim(0, WIDTH)
    how: dict[str, Any] = {"color": sheet.inks.quiet}
    for n in range(count):
        x = left + (n + 0.5) * side
        sheet.text(x, top - 3, numbered(n, count), 6.5, ha="center", **how)
    for n, spots in enumerate(rows):
        y = top + n * side
        sheet.text(left - 4, y + side / 2 + 2.4, numbered(n, len(rows)), 6.5, ha="right", **how)
        for m, spot in enumerate(spots):
            _square(sheet, spot, left + m * side, y, side, picture is not None)
    for n, spots in enumerate(rows):  # above the lines of its neighbours
        for m, spot in enumerate(spots):
            if spot.kind == "pinned":
                sheet.box(
                    left + m * side, top + n * side, side, side, "none",
                    edgecolor=sheet.inks.text, linewidth=1.6,
                )  # fmt: skip
    sheet.y = top + len(rows) * side + 10


def _square(sheet: Sheet, spot: Spot, x: float, y: float, side: float, pictured: bool) -> None:
    value = 0.0 if np.isnan(spot.shade) or abs(spot.shade) < FAINT else tone(spot.shade)
    if pictured:
        sheet.box(x, y, side, side, veil(value, sheet.ground))
    else:
        edge = {"edgecolor": sheet.inks.quiet, "linewidth": 0.2}
        sheet.box(x, y, side, side, shade(value, sheet.ground), **edge)
    if side >= 17 and abs(spot.shade) >= 0.1:
        colour = sheet.inks.text if pictured else ink(value, sheet.ground)
        sheet.text(x + side / 2, y + side / 2 + 2.4, points(spot.shade), 6.5, ha="center",
                   color=colour)  # fmt: skip


def veil(value: float, ground: Ground) -> str:
    """The pole of a value as #rrggbbaa, the stronger the less can be seen through it.

    >>> veil(0.5, "light"), veil(0.0, "light")
    ('#2d6ec180', '#ad500000')
    """
    inks = INKS[ground]
    return f"{inks.above if value > 0 else inks.below}{round(255 * min(abs(value), 1)):02x}"


def picture(image: Any) -> Array:
    """A picture as (height, width) bytes: grey, as shades of two colours lie over it.

    Args:
        image: (height, width, 3) or (height, width), bytes or floats from 0 to 1; or an image of
            Pillow.

    Raises:
        TypeError: neither bytes nor floats.
        ValueError: another shape, or numbers beyond 0 to 1.
    """
    if hasattr(image, "convert"):
        image = image.convert("RGB")
    array = np.asarray(image)
    if array.ndim == 2:
        array = array[..., None].repeat(3, -1)
    if array.ndim != 3 or array.shape[-1] != 3 or 0 in array.shape:
        raise ValueError(
            f"image: expected shape (height, width, 3), received {np.shape(image)}"
            + ("; move its channels to the end" if array.ndim == 3 and len(array) == 3 else "")
        )
    if array.dtype == np.uint8:
        array = array / 255
    if array.dtype.kind != "f":
        raise TypeError(f"image: expected uint8, or floats from 0 to 1, received {array.dtype}")
    if not (array.min() >= 0 and array.max() <= 1):
        raise ValueError(
            f"image: expected floats from 0 to 1, received {array.min():.3g} to {array.max():.3g}; "
            "give the picture as it was before the model's own scale"
        )
    grey: Array = np.round(255 * (array.astype(np.float32) @ LUMA)).astype(np.uint8)
    return grey


def expect_grid(grid: object) -> None:
    """Refuse a picture where there are no patches to lay it under."""
    if not grid:
        raise ValueError("image: what was recorded has no grid of patches to lay it under")


def as_address(array: Array) -> str:
    """A picture as a PNG in a `data:` address."""
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("image= needs Pillow: pip install pillow") from error
    image, file = Image.fromarray(array), BytesIO()
    image.thumbnail((LARGEST, LARGEST))
    image.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
