"""Draws README's picture from what the real command prints (run it: python docs/picture.py).

The test of the documentation runs the command again and compares the picture's words with it.
"""

import html
import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.color import parse_rgb_hex
from rich.console import CONSOLE_SVG_FORMAT, Console
from rich.terminal_theme import SVG_EXPORT_THEME, TerminalTheme
from rich.text import Text

from regard.views.palette import INKS

PICTURE = Path(__file__).parent / "it.svg"
SENTENCE = "The cat sat on the mat because it was tired."
WIDTH = 88
FONTS = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"

# Rich's frame of a terminal, but with the reader's own font: a picture fetches nothing.
FRAME = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
FRAME = FRAME.replace("Fira Code, monospace", FONTS).replace(
    "font-family: arial", "font-family: sans-serif"
)


def printed() -> str:
    """What the command writes to a terminal of this width, colours included."""
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environment |= {
        "COLUMNS": str(WIDTH),
        "FORCE_COLOR": "1",
        "COLORTERM": "truecolor",
        "COLORFGBG": "15;0",
    }
    command = [sys.executable, "-m", "regard", SENTENCE, "--from", "it"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return f'$ regard "{SENTENCE}" --from it\n{done.stdout}'


def drawn() -> str:
    """What the picture says, without its spaces."""
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", PICTURE.read_text(encoding="utf-8"))
    return "".join(html.unescape("".join(texts)).split())


def said() -> str:
    """What the command says now, likewise."""
    return "".join(Text.from_ansi(printed()).plain.split())


def theme() -> TerminalTheme:
    """A terminal of the dark ground that the views know."""
    ground, text = (
        parse_rgb_hex(colour[1:]) for colour in (INKS["dark"].ground, INKS["dark"].text)
    )
    dark = TerminalTheme(ground, text, [(0, 0, 0)] * 8)
    dark.ansi_colors = SVG_EXPORT_THEME.ansi_colors
    return dark


def draw() -> str:
    """The picture of what the command prints now."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(printed().rstrip()))
    return console.export_svg(title="", theme=theme(), code_format=FRAME, unique_id="regard")


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    print(f"wrote {PICTURE}")
