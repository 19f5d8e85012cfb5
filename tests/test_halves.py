"""A head as a whole in a terminal: its numbers, what may not be attended, long texts."""

import re

import numpy as np
import pytest
from embedded import recorded

import regard
from regard.cli.main import main


def cells(said, rows):
    """The figures of a matrix that is drawn without colours, as text."""
    begin = 3  # two empty lines round a title
    lines = [line for line in said.splitlines()[begin + 1 :] if line.strip()]
    return [line.split() for line in lines[:rows]]


def test_every_cell_is_the_models_in_tenths():
    seen = recorded()
    said = seen.to_terminal("it", "cat", kind="matrix")
    assert "Layer 3 head 1: rows read, columns are read." in said
    weights = seen.layer(3).weights[0, 1]
    for n, (row, expected) in enumerate(zip(cells(said, 13), weights, strict=True)):
        assert row[1] == str(n)
        assert [int(x) for x in row[2:]] == [min(int(10 * w), 9) for w in expected]
    assert str(seen.check()) in said


def test_a_head_is_chosen():
    said = recorded().to_terminal("it", kind="matrix", layer=5, head=11)
    assert "Layer 5 head 11" in said


@pytest.mark.parametrize("colours", ["none", "standard", "256", "truecolor"])
def test_a_long_text_fits_and_shows_what_may_not_be_attended(colours):
    query, key, value = np.random.default_rng(0).standard_normal((3, 2, 101, 5)).astype("f4")
    look = regard.look(query, key, value, causal=True)
    said = look.to_terminal(kind="matrix", width=60, colours=colours)
    said = re.sub(r"\x1b\[[\d;]*m", "", said)
    assert "Each cell shows the largest weight in it." in said
    assert "Head 0: rows read" in said
    assert "·" in said
    assert ("▀" in said) == (colours in ("256", "truecolor"))
    assert max(map(len, said.splitlines())) <= 60
    if colours == "none":
        first = next(line for line in said.splitlines() if line.strip().startswith("0 "))
        most = look.map(24, 50, how="max")[0, 0]
        assert first.split()[1].rstrip("·") == "".join(
            str(min(int(10 * w), 9)) for w in most[~np.isnan(most)]
        )


def test_another_kind_is_refused():
    with pytest.raises(ValueError, match="kind"):
        recorded().to_terminal("it", kind="pie")


def test_the_command_shows_it(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["The cat sat on the mat because it was tired.", "--from", "it", "--matrix",
              "--layer", "3", "--head", "1"])  # fmt: skip
    assert ended.value.code == 0
    assert "Layer 3 head 1: rows read" in capsys.readouterr().out
