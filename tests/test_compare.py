"""Two recordings side by side: what is aligned, what changed, and what is said of it."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from embedded import BANK, CAT, eager, recorded

from regard.cli.main import app
from regard.recording.compare import aligned, compare
from regard.recording.words import Word
from regard.views import compared, terminal

SOFT = CAT.replace("tired", "soft")


@pytest.fixture(scope="module")
def both():
    return compare(recorded(CAT), recorded(SOFT), top=10_000)


def words(text):
    return [Word(word, 0, (n,)) for n, word in enumerate(text.split())]


@pytest.mark.parametrize(
    ("one", "other", "pairs"),
    [
        ("it was tired", "it was soft", [(0, 0), (1, 1), (2, 2)]),
        ("a b c d", "a x y d", [(0, 0), (1, 1), (2, 2), (3, 3)]),
        ("a b c", "a b very c", [(0, 0), (1, 1), (2, 3)]),
        ("A B", "a b", [(0, 0), (1, 1)]),
        ("a b c", "x", []),
    ],
)
def test_words_that_stand_for_each_other_are_aligned(one, other, pairs):
    found = aligned(words(one), words(other))
    assert [(x.positions[0], y.positions[0]) for x, y in found] == pairs


def test_every_change_is_that_of_eager_attention(both):
    before, after = eager(CAT), eager(SOFT)
    assert len(both.links) == 72 * 11 * 10
    for link in both.links[::97]:
        at = int(link["layer"]), int(link["head"])
        assert link["weight"] == pytest.approx(before[(*at, link["query"], link["key"])], abs=2e-6)
        assert link["weight2"] == pytest.approx(
            after[(*at, link["query2"], link["key2"])], abs=2e-6
        )
    change = np.abs(both.links["weight2"] - both.links["weight"])
    assert (np.diff(change) <= 0).all()
    moved = 0.5 * np.abs(after - before)[:, :, 1:-1].sum(-1).mean(-1)
    for head in both.heads:
        # Special tokens are taken together, so it is at most that of all tokens apart.
        assert head["moved"] <= moved[head["layer"], head["head"]] + 1e-6


def test_what_it_gives_cat_falls(both):
    shown = compared.changes(compare(recorded(CAT), recorded(SOFT), "it", "cat"))
    said = "".join(part for part, _ in shown.title)
    assert said == "it gives cat 49 %; with “soft” for “tired”, 15 %."
    assert shown.finding.startswith("Layer 3 head 1.")
    assert all(check.verified for check in shown.checks)


def test_the_same_text_twice_changes_nothing():
    found = compare(recorded(CAT), recorded(CAT))
    assert not found.heads["moved"].any()
    assert (found.links["weight"] == found.links["weight2"]).all()


def test_words_without_a_counterpart_are_named():
    shown = compared.changes(compare(recorded(CAT), recorded(CAT.replace("cat", "old grey cat"))))
    assert "Without a counterpart in the first text: old, grey." in shown.notes
    with pytest.raises(ValueError, match="no counterpart"):
        compare(recorded(CAT.replace("cat", "old grey cat")), recorded(CAT), "grey")
    with pytest.raises(ValueError, match="no words in common"):
        compare(recorded("Hello."), recorded("你好 吗 很 好"))


def test_it_is_drawn_on_every_width(both):
    shown = compared.changes(both)
    for width in (32, 60, 100):
        pen = terminal.Pen(width, False, "unknown", "utf-8")
        lines = [line.plain.rstrip() for line in compared.draw(shown, pen)]
        assert max(map(len, lines)) <= width


def command(*arguments):
    return CliRunner().invoke(app, ["compare", *arguments])


def test_the_command(tmp_path):
    done = command(CAT, "--swap", "tired=soft", "--from", "it", "--html", str(tmp_path / "x.html"))
    assert done.exit_code == 0, done.output
    assert "“it” gives “cat” 49 %; with “soft” for “tired”, 15 %." in done.output
    assert (tmp_path / "x.html").stat().st_size > 100_000
    done = command(CAT, "--with", BANK, "--json")
    found = json.loads(done.stdout)
    assert found["links"]
    assert found["words"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([CAT], "nothing to compare"),
        ([CAT, "--swap", "dog=cow"], "'dog' is no word of the text"),
        ([CAT, "--swap", "tired"], "expected OLD=NEW"),
        ([CAT, "--swap", "tired=soft", "--with", "x"], "give one of them"),
        ([CAT, "--with", " "], "the text is empty"),
        ([CAT, "--swap", "tired=soft", "--html", "/no/where/x.html"], "cannot be written"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, message):
    done = command(*arguments)
    assert done.exit_code == 2
    assert message in done.output
