"""A scene drawn with characters: from true colour on a wide screen down to a pipe of plain ASCII.

Colour never carries a number alone: a bar or a figure stands beside it. Token text becomes rich
Text objects, never markup, after `labels.visible` has taken from it what a terminal would obey.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from .palette import INKS, Ground, ink, shade
from .scene import HONEST, Row, Scene, Spot

# For consoles that cannot write a character: what stands in for it, as wide as it is.
STAND_INS = str.maketrans(
    {
        "━": "#", "╸": "#", "╾": "#", "─": ".", "┃": "|", "╋": "|", "╂": "|", "╊": "|", "✓": "+",
        "✗": "x", "·": "-", "→": ">", "×": "x", "“": '"', "”": '"', "–": "-", "−": "-", "…": "~",
        "␣": "_", "⇥": ">", "↵": "/", "⟨": "<", "⟩": ">", "█": "#", "▀": "^", "▄": "_",
    }
)  # fmt: skip
