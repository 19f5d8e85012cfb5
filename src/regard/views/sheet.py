"""A sheet for figures, in points (1/72 inch), that grows downwards: text and boxes.

Text has the size it says and is never cut off. Characters that no font here has get a stand-in, and
one warning.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from regard.views.palette import Ground, Inks
from regard.views.scene import Scene

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 432.0  # six inches, a page's text
MARGIN = 14.0
STAND_IN = "□"


@dataclass
class Sheet:
    """A figure in points that grows downwards; `y` is how far it is filled."""

    inks: Inks
    ground: Ground
    y: float = MARGIN
    missing: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "figures need matplotlib: pip install 'regard[plot]'"
            ) from error
        self.figure = Figure(figsize=(WIDTH / 72, 4), facecolor=self.inks.ground)
        self.canvas = FigureCanvasAgg(self.figure)
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()
        self.axes.set_xlim(0, WIDTH)

    def text(self, x: float, y: float, text: str, size: float = 9, **how: Any) -> Any:
        """Write text whose baseline is at y."""
        how.setdefault("color", self.inks.text)
        # A dollar sign is a dollar sign, no formula.
        shown = self.axes.text(
            x, y, self.spelt(text), fontsize=size, parse_math=False, clip_on=False, **how
        )
        return shown

    def width(self, text: str, size: float, weight: str = "normal") -> float:
        """How wide text is, in points."""
        return _width(self.spelt(text), size, weight)

    def spelt(self, text: str) -> str:
        """The text with stand-ins for characters that no font has."""
        lost = {c for c in text if not c.isspace() and not _has(c)}
        self.missing |= lost
        return "".join(STAND_IN if c in lost else c for c in text)

    def paragraph(self, parts: Sequence[tuple[str, dict[str, Any]]], size: float) -> None:
        """Text of several colours, broken at spaces."""
        x, line = MARGIN, self.y + size
        for text, how in parts:
            for n, word in enumerate(text.split(" ")):
                space = self.width(" ", size) if n and x > MARGIN else 0
                wide = self.width(word, size, how.get("weight", "normal"))
                if x + space + wide > WIDTH - MARGIN and x > MARGIN:
                    x, line, space = MARGIN, line + 1.35 * size, 0
                self.text(x + space, line, word, size, **how)
                x += space + wide
        self.y = line + 0.6 * size

    def box(self, x: float, y: float, w: float, h: float, colour: str, **how: Any) -> None:
        """A rectangle, round where `rounded` is given."""
        from matplotlib.patches import FancyBboxPatch, Rectangle

        rounded = how.pop("rounded", 0)
        style: dict[str, Any] = {"facecolor": colour, "edgecolor": "none", "linewidth": 0} | how
        patch = (
            FancyBboxPatch((x, y), w, h, boxstyle=f"round,pad=0,rounding_size={rounded}", **style)
            if rounded
            else Rectangle((x, y), w, h, **style)
        )
        self.axes.add_patch(patch)

    def done(self, shown: Scene) -> "Figure":
        """The figure, as high as it is filled."""
        self.y += 4
        mark = "✓" if shown.check.verified else "✗"
        colour = self.inks.good if shown.check.verified else self.inks.bad
        self.text(MARGIN, self.y + 7, f"{mark} {shown.check}", 7, color=colour)
        self.text(WIDTH - MARGIN, self.y + 7, shown.model, 7, color=self.inks.quiet, ha="right")
        height = self.y + 7 + MARGIN
        self.figure.set_size_inches(WIDTH / 72, height / 72)
        self.axes.set_ylim(height, 0)
        if self.missing:
            some = " ".join(sorted(self.missing)[:12])
            warnings.warn(
                f"no font here has {some}{' …' if len(self.missing) > 12 else ''}; "
                f"drawn as {STAND_IN}",
                stacklevel=4,
            )
        return self.figure


@lru_cache(maxsize=1)
def _fonts() -> list[set[int]]:
    """Which characters the fonts in use have."""
    from matplotlib import font_manager

    paths = font_manager.fontManager._find_fonts_by_props(font_manager.FontProperties())
    return [set(font_manager.get_font(path).get_charmap()) for path in paths]


def _has(char: str) -> bool:
    return any(ord(char) in font for font in _fonts())


@lru_cache(maxsize=4096)
def _width(text: str, size: float, weight: str) -> float:
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    if not text.strip():
        return 0.32 * size * len(text)
    path = TextPath((0, 0), text + "|", size=size, prop=FontProperties(weight=weight), usetex=False)
    bar = TextPath((0, 0), "|", size=size, prop=FontProperties(weight=weight))
    return float(path.get_extents().x1 - bar.get_extents().x1)
