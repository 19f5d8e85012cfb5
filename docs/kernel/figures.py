"""Draws the figures of docs/kernel.md (run it: python docs/kernel/figures.py).

What they say is computed here: the online softmax from its scores, the tiles from who may attend.
"""

import html
import math
import sys
from pathlib import Path

import numpy as np

import regard
from regard.views.palette import INKS, shade

INK = INKS["light"]
FRAME, GRID = "#c9ccd1", "#e9eaec"
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"


class Picture:
    """An SVG of one width, so that all figures have one scale on the page."""

    def __init__(self, height: int, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 840 {height}" width="840" '
            f'height="{height}" font-family="{FONT}" font-size="13" fill="{INK.text}" role="img">',
            f"<title>{html.escape(title)}</title>",
            f'<rect width="840" height="{height}" fill="{INK.ground}"/>',
        ]

    def box(self, x: float, y: float, w: float, h: float, fill: str, line: str = FRAME) -> None:
        """Draw a rectangle."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" fill="{fill}" '
            f'stroke="{line}"/>'
        )

    def text(self, x: float, y: float, words: str, *, at: str = "start", **style: str) -> None:
        """Write words, which end or have their middle at x, or start there."""
        said = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{at}"{said}>{html.escape(words)}</text>'
        )

    def arrow(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """Draw an arrow from one point to another."""
        angle = math.atan2(to_y - y, to_x - x)
        left, right = angle + math.pi - 0.4, angle + math.pi + 0.4
        head = [(to_x + 8 * math.cos(a), to_y + 8 * math.sin(a)) for a in (left, right)]
        (ax, ay), (bx, by) = head
        self.parts.append(
            f'<path d="M{x:g} {y:g}L{to_x:g} {to_y:g}M{ax:.1f} {ay:.1f}L{to_x:g} {to_y:g}'
            f'L{bx:.1f} {by:.1f}" fill="none" stroke="{INK.quiet}" stroke-width="1.4"/>'
        )

    def write(self, path: Path) -> None:
        """Write the file."""
        path.write_text("\n".join([*self.parts, "</svg>", ""]), encoding="utf-8")


def grid(
    picture: Picture, x: float, y: float, rows: int, columns: int, size: float, **lit: object
) -> None:
    """Cells; `lit` are those of `row`, of `column`, or of both, in blue or in orange."""
    row, column = lit.get("row"), lit.get("column")
    for i in range(rows):
        for j in range(columns):
            on = (row is None or i == row) and (column is None or j == column)
            on = on and (row, column) != (None, None)
            fill = shade(float(lit.get("value", 0.6))) if on else INK.ground  # type: ignore[arg-type]
            picture.box(x + j * size, y + i * size, size, size, fill)


def lanes() -> Picture:
    """One number of a key, times one row of queries, into one row of scores."""
    picture = Picture(286, "One number of a key times a vector of queries")
    size, top = 18, 62
    grid(picture, 40, top, 8, 6, size, row=2, column=3, value=-0.75)
    picture.text(40 + 3 * size, 30, "keys, as they lie", at="middle", font_weight="600")
    picture.text(40 + 3 * size, 49, "one row a key, D numbers", at="middle", fill=INK.quiet)
    picture.text(181, top + 2.72 * size, "×", at="middle", font_size="18")
    grid(picture, 220, top, 6, 12, size, row=3, value=0.6)
    picture.text(220 + 6 * size, 30, "queries, turned", at="middle", font_weight="600")
    picture.text(220 + 6 * size, 49, "one lane a query; turned once", at="middle", fill=INK.quiet)
    picture.arrow(456, top + 2.5 * size, 530, top + 2.5 * size)
    picture.text(493, top + 2.1 * size, "add to", at="middle", fill=INK.quiet)
    grid(picture, 550, top, 8, 12, size, row=2, value=0.9)
    picture.text(550 + 6 * size, 30, "scores, turned", at="middle", font_weight="600")
    picture.text(550 + 6 * size, 49, "in registers: a row a key", at="middle", fill=INK.quiet)
    for n in range(4):
        x = 550 + (1.5 + 3 * n) * size
        picture.arrow(x, top + 8 * size + 6, x, top + 8 * size + 26)
    picture.text(550 + 6 * size, 256, "the largest, the sum, a mask: straight down,", at="middle")
    picture.text(550 + 6 * size, 274, "for all queries at once", at="middle")
    picture.text(40, 238, "The orange number is copied into every lane and")
    picture.text(40, 256, "multiplied with the blue row.")
    picture.text(40, 274, "No key is moved; no lane looks at another.", fill=INK.quiet)
    return picture


def softmax() -> Picture:
    """The online softmax of one row over three blocks of two keys, with its numbers."""
    blocks = [([1.0, 0.2], [10.0, 20.0]), ([2.5, -0.3], [30.0, 0.0]), ([0.4, 1.9], [20.0, 10.0])]
    picture = Picture(250, "The online softmax, block by block")
    heads = ["", "scores", "values", "peak", "old parts ×", "sum", "output so far"]
    places = [40, 175, 300, 415, 520, 640, 795]
    for head, x in zip(heads, places, strict=True):
        picture.text(x, 34, head, at="end" if x > 40 else "start", font_weight="600")
    peak, total, output = -math.inf, 0.0, 0.0
    for n, (scores, values) in enumerate(blocks):
        y = 48 + n * 40
        now = max(peak, *scores)
        shrink = math.exp(peak - now)
        shares = [math.exp(score - now) for score in scores]
        total = total * shrink + sum(shares)
        output = output * shrink + sum(a * b for a, b in zip(shares, values, strict=True))
        moved = now > peak and n > 0
        picture.box(30, y, 780, 32, shade(0.12) if moved else INK.ground, GRID)
        cells = [
            f"block {n + 1}",
            ", ".join(f"{score:g}" for score in scores),
            ", ".join(f"{value:g}" for value in values),
            f"{now:g}",
            f"{shrink:.3f}" if n else "–",
            f"{total:.3f}",
            f"{output:.3f}",
        ]
        for cell, x in zip(cells, places, strict=True):
            picture.text(x, y + 21, cell, at="end" if x > 40 else "start")
        peak = now
    all_scores, all_values = (np.concatenate([b[n] for b in blocks]) for n in (0, 1))
    whole = float(regard.combine(regard.softmax(all_scores), all_values))
    assert abs(output / total - whole) < 1e-12
    picture.text(795, 192, f"output / sum = {output:.3f} / {total:.3f} = {output / total:.3f}",
                 at="end", font_weight="600")  # fmt: skip
    picture.text(795, 212, f"softmax of all six scores at once gives {whole:.3f}", at="end",
                 fill=INK.quiet)  # fmt: skip
    picture.text(795, 232, f"lse = peak + log(sum) = {peak + math.log(total):.3f}", at="end",
                 fill=INK.quiet)  # fmt: skip
    picture.text(40, 192, "Where the peak rises (blue), what is there shrinks", fill=INK.quiet)
    picture.text(40, 212, "by exp(old peak - new peak). No score is kept.", fill=INK.quiet)
    return picture


def tiles() -> Picture:
    """Which tiles of 64 keys by 48 queries are left out, computed whole, or masked."""
    size, keys, rows = 768, 64, 48
    zeros = np.zeros((size, 1))
    segments = np.repeat([0, 1, 2], [200, 330, 238])
    rules = {
        "causal": {"causal": True},
        "window of 128": {"window": (127, 0)},
        "three packed segments": {"segments": segments},
    }
    colours = [INK.ground, shade(0.75), shade(0.3)]
    picture = Picture(362, "Which tiles are computed")
    for n, (name, rule) in enumerate(rules.items()):
        left, top, unit = 40 + n * 268, 50, 224 / size
        allowed = regard.look(zeros, zeros, zeros, **rule).allowed[...]
        counts = [0, 0, 0]
        for i in range(0, size, rows):
            for j in range(0, size, keys):
                cell = allowed[i : i + rows, j : j + keys]
                kind = 1 if cell.all() else 2 if cell.any() else 0
                counts[kind] += 1
                picture.box(left + j * unit, top + i * unit, keys * unit, rows * unit,
                            colours[kind], GRID if kind == 0 else INK.ground)  # fmt: skip
        picture.box(left, top, 224, 224, "none", INK.quiet)
        picture.text(left, 34, name, font_weight="600")
        done = counts[1] + counts[2]
        picture.text(left, 296, f"{done} of {sum(counts)} tiles, {counts[2]} of them masked",
                     fill=INK.quiet)  # fmt: skip
    legend = ["left out", "computed whole, without a mask", "computed with a mask"]
    for x, colour, words in zip((40, 136, 392), colours, legend, strict=True):
        picture.box(x, 320, 16, 16, colour)
        picture.text(x + 24, 333, words)
    picture.text(800, 333, "queries down, keys across", at="end", fill=INK.quiet)
    return picture


FIGURES = {"lanes": lanes, "softmax": softmax, "tiles": tiles}


def draw(folder: Path) -> None:
    """Write all of them."""
    for name, figure in FIGURES.items():
        figure().write(folder / f"{name}.svg")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
