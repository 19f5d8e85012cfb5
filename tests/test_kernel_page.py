"""docs/kernel.md: its figures are what its program draws, and the files that it names are there."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_figures_are_what_their_program_draws(tmp_path):
    spec = importlib.util.spec_from_file_location("figures", ROOT / "docs/kernel/figures.py")
    figures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figures)
    figures.draw(tmp_path)
    for name in figures.FIGURES:
        drawn, kept = ((at / f"{name}.svg").read_text() for at in (tmp_path, ROOT / "docs/kernel"))
        assert drawn == kept, "draw it again: python docs/kernel/figures.py"


def test_the_files_of_the_table_are_there():
    table = (ROOT / "docs/kernel.md").read_text().split("| file | idea |")[1].split("\n\n")[0]
    named = set(re.findall(r"`(\w+\.(?:h|cpp))`", table))
    there = {path.name for path in (ROOT / "kernel").glob("*.*") if path.suffix in {".h", ".cpp"}}
    assert named
    assert named <= there
