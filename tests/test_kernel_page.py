"""docs/kernel.md: its figures are what its program draws; its table names the files there are."""

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


def test_every_file_has_its_idea_in_the_table():
    table = (ROOT / "docs/kernel.md").read_text().split("| file | idea |")[1].split("\n\n")[0]
    named = set(re.findall(r"`(\w+\.(?:h|cpp))`", table))
    there = {path.name for path in (ROOT / "kernel").glob("*.*") if path.suffix in {".h", ".cpp"}}
    own = {name for name in there if name.replace(".h", ".cpp") in there}  # said with its .cpp
    assert named <= there
    assert there - named - own == set()
