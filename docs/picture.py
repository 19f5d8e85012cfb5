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

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parent / "it.svg"
SENTENCE = "The cat sat on the mat because it was tired."
WIDTH = 88

# Rich's own frame fetches a font from the network; this one takes what the reader has.
FRAME = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {terminal_width} {terminal_height}" \
role="img" aria-label="{title}">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, \
monospace; line-height: {line_height}px; }}
{styles}
</style>
<defs>{lines}</defs>
<rect width="{terminal_width}" height="{terminal_height}" rx="8" fill="#0f1117"/>
<g transform="translate({terminal_x}, 18)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


def printed() -> str:
    """What the command writes to a terminal of this width, colours included."""
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    environment |= {"COLUMNS": str(WIDTH), "FORCE_COLOR": "1", "COLORTERM": "truecolor"}
    command = [sys.executable, "-m", "regard", SENTENCE, "--from", "it"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return f'$ regard "{SENTENCE}" --from it\n{done.stdout}'


def words(svg: str) -> list[str]:
    """What a picture says, word by word."""
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    return " ".join(html.unescape(text) for text in texts).split()


def draw() -> str:
    """The picture of what the command prints now."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(printed().rstrip()))
    return console.export_svg(title="regard", code_format=FRAME, unique_id="regard")


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
    print(f"wrote {PICTURE}")
