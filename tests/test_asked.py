"""Wrong questions to the views: an error that names the argument, before anything is drawn."""

import numpy as np
import pytest
from embedded import recorded

import regard
from regard.views.page import to_html


@pytest.fixture(scope="module")
def look():
    return regard.look(*np.random.default_rng(0).random((3, 2, 3, 4)).astype(np.float32))


CASES = [
    ("to_terminal", (7,), {}, IndexError, "query: expected a position below 3, received 7"),
    ("to_terminal", ("a",), {}, TypeError, "query: expected a position, received 'a'"),
    ("to_terminal", (), {"head": 9}, IndexError, "head: expected a position below 2"),
    ("to_terminal", (), {"by": "size"}, ValueError, "by: expected one of lift, weight"),
    ("to_terminal", (), {"top": -1}, ValueError, "top: expected at least 0"),
    ("to_terminal", (), {"width": 0}, ValueError, "width: expected at least 1"),
    ("to_terminal", (), {"colours": "many"}, ValueError, "colours: expected one of none"),
    ("to_terminal", (), {"kind": "page"}, ValueError, "kind: expected one of words, matrix"),
    ("to_figure", ("a",), {}, TypeError, "query: expected a position"),
    ("to_figure", (0, 5), {}, IndexError, "target: expected a position below 3"),
    ("to_figure", (), {"ground": "blue"}, ValueError, "ground: expected one of light, dark"),
    ("to_html", (None, 3), {}, IndexError, "source: expected a position below 3"),
    ("to_html", (None, 0, 1.5), {}, TypeError, "target: expected a position"),
    ("to_html", (), {"item": 1}, IndexError, "item: expected a position below 1"),
    ("to_html", (), {"layers": 0}, TypeError, "layers: expected a list of numbers"),
    ("to_html", (), {"budget": "small"}, TypeError, "budget: expected a whole number"),
    ("to_html", (), {"budget": 1e5}, ValueError, "budget: the page takes .* without any numbers"),
]


@pytest.mark.parametrize(("view", "what", "how", "error", "says"), CASES)
def test_a_look(look, view, what, how, error, says):
    with pytest.raises(error, match=says):
        getattr(look, view)(*what, **how)


@pytest.mark.parametrize("view", ["to_terminal", "to_figure", "to_html"])
def test_nothing_to_show(view):
    for shape in ((2, 0, 4), (0, 3, 4)):
        query = np.ones(shape, np.float32)
        key = np.ones((shape[0], 3, 4), np.float32)
        with pytest.raises(ValueError, match="nothing to show"):
            getattr(regard.look(query, key, key), view)()


@pytest.mark.parametrize(
    ("what", "how", "error", "says"),
    [
        ((8,), {}, TypeError, "source: expected a word, such as 'it'"),
        (("it", 2), {}, TypeError, "target: expected a word"),
        (("zebra",), {}, KeyError, "no word of the text"),
        (("it",), {"top": 2.5}, TypeError, "top: expected a whole number"),
    ],
)
def test_a_recording(what, how, error, says):
    seen = recorded()
    for view in (seen.to_terminal, seen.to_figure):
        with pytest.raises(error, match=says):
            view(*what, **how)
    if "top" not in how:
        with pytest.raises(error, match=says):
            to_html(seen, None, *what)
