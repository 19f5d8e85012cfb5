"""Draws the gallery's figures (run it: python docs/gallery/figures.py)."""

import sys
from pathlib import Path

from seen import seen

from regard.views.figure import save


def draw(folder: Path) -> None:
    """Write each kind of figure."""
    recording = seen()
    save(recording.to_figure("it"), folder / "words.png")
    save(recording.to_figure("it", ground="dark"), folder / "words-dark.png")
    for kind in ("heads", "matrix", "lines", "calculation"):
        save(recording.to_figure("it", "cat", kind=kind), folder / f"{kind}.png")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
