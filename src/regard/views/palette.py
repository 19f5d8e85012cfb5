"""One palette for every view: blue above what the others give, orange below it.

Shades are mixed in OKLab (Björn Ottosson, 2020), whose distances are even to the eye, from the
ground that a view is drawn on to one of two poles of the same lightness and chroma. Blue and
orange stay apart in the common forms of colour blindness, and strength shows as distance from the
ground, so that one sign survives grey print too.
"""

from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ground = Literal["light", "dark", "unknown"]


class Inks(NamedTuple):
    """The colours of a view on one ground, each as #rrggbb."""

    ground: str
    text: str  # also on a shade, where that is `unknown`'s
    quiet: str
    above: str
    below: str
    good: str
    bad: str
    least: float = 0.0  # how far from the ground the faintest shade starts


# "unknown" is a terminal of which nobody says whether it is light or dark. What stands out from
# both is colour, not lightness: its shades go from a grey to the poles at one lightness, on which
# white can be read, and which can be read as text on white and on black.
INKS: dict[Ground, Inks] = {
    "light": Inks("#ffffff", "#16181d", "#666b74", "#2d6ec1", "#ad5000", "#1f7a37", "#b3261e"),
    "dark": Inks("#16181d", "#e9e9e6", "#9a9fa8", "#6db0ff", "#f5914f", "#5cc377", "#ff7b72"),
    "unknown": Inks(
        "#737579", "#ffffff", "#737579", "#2274d6", "#b85503", "#258d48", "#c8433c", least=0.25
    ),
}

ABOVE, BELOW = 0.55, 0.8  # powers by which small values are drawn out

_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


@lru_cache(maxsize=4096)
def shade(value: float, ground: Ground = "light") -> str:
    """The colour of a value from -1 (orange) through 0 (the ground) to 1 (blue), as #rrggbb.

    >>> shade(0.0), shade(1.0), shade(-1.0)
    ('#ffffff', '#2d6ec1', '#ad5000')
    """
    inks = INKS[ground]
    share = inks.least + (1.0 - inks.least) * min(abs(value), 1.0) if value else 0.0
    start, pole = to_lab(inks.ground), to_lab(inks.above if value > 0 else inks.below)
    return from_lab(start + (pole - start) * share)


def tone(value: float) -> float:
    """How far from the ground a weight or a lift is shaded, from -1 to 1.

    Small values are drawn out: those above more, as they are what one looks for. Most words give
    a little less than the others give, which is to stay quiet.

    >>> round(tone(0.31), 2), round(tone(-0.31), 2), tone(1.0), tone(0.0)
    (0.53, -0.39, 1.0, 0.0)
    """
    return float(value**ABOVE) if value > 0 else 0.0 - float(abs(value) ** BELOW)


def ink(value: float, ground: Ground = "light") -> str:
    """The colour in which text reads best on the shade of a value.

    >>> ink(1.0), ink(0.1)
    ('#ffffff', '#000000')
    """
    if ground == "unknown":
        return INKS[ground].text
    return max("#000000", "#ffffff", key=lambda ink: contrast(ink, shade(value, ground)))


def contrast(one: str, other: str) -> float:
    """The WCAG 2 contrast of two colours, from 1 to 21."""
    weights = np.array([0.2126, 0.7152, 0.0722])
    low, high = sorted((float(_linear(one) @ weights), float(_linear(other) @ weights)))
    return (high + 0.05) / (low + 0.05)


def to_lab(colour: str) -> NDArray[np.float64]:
    """A colour #rrggbb as OKLab (lightness, green to red, blue to yellow)."""
    lab: NDArray[np.float64] = _LAB @ np.cbrt(_LMS @ _linear(colour))
    return lab


def from_lab(lab: NDArray[np.float64]) -> str:
    """OKLab as #rrggbb; what a screen cannot show is cut to what it can."""
    linear = np.clip(np.linalg.solve(_LMS, np.linalg.solve(_LAB, lab) ** 3), 0.0, 1.0)
    curved = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(255 * float(part)):02x}" for part in curved)


def _linear(colour: str) -> NDArray[np.float64]:
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
