"""The overview of heads, and a single look: what they show, and how a terminal draws it."""

import re
from dataclasses import replace

import numpy as np
import pytest
from embedded import recorded
from rich.cells import cell_len

import regard
from regard.views import terminal
from regard.views.looking import look_scene
from regard.views.overview import MEASURES, measured, overview
from regard.views.scene import percent

NAN = float("nan")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORFGBG", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def seen():
    return recorded()


@pytest.mark.parametrize("measure", MEASURES)
def test_every_measure_sorts_the_heads(seen, measure):
    shown = overview(seen, measure, top=72)
    table = seen.heads()
    values = [row.measures[measure] for row in shown.rows]
    assert values == sorted(table[measure].tolist(), reverse=True)
    assert {(row.layer, row.head) for row in shown.rows} == set(np.ndindex(6, 12))
    assert (shown.layers, shown.heads) == (tuple(range(6)), tuple(range(12)))
    shares = np.array(shown.shares)
    assert shares.max() == 1.0
    assert np.allclose(shares * table[measure].max(), table[measure].reshape(6, 12))
    assert measured(measure, values[0]) in shown.title


def test_the_heaviest_link_is_in_words(seen):
    shown = overview(seen, "heaviest", top=72)
    by_head = {(row.layer, row.head): row.link for row in shown.rows}
    assert by_head[2, 8] == "the → mat"
    assert shown.rows[0].link.count(" → ") == 1


def test_a_layer_alone_and_what_is_left_out(seen):
    shown = overview(seen, layer=3, top=5)
    assert {row.layer for row in shown.rows} == {3}
    assert shown.more == "and 7 more heads"
    assert len(shown.layers) == 6  # the map keeps all
    assert overview(seen, layer=3, top=12).more == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"sort": "beauty"}, "sort: expected one of selectivity, .*'beauty'"),
        ({"layer": 6}, "layer"),
    ],
)
def test_refusals(seen, arguments, said):
    with pytest.raises(ValueError, match=said):
        overview(seen, **arguments)


@pytest.mark.parametrize("width", [36, 40, 61, 80, 100, 131, 200])
@pytest.mark.parametrize("colours", ["none", "truecolor"])
def test_no_line_is_wider_than_the_screen(seen, width, colours):
    text = terminal.to_terminal(overview(seen, top=7), width, colours)
    lines = re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()
    assert max(map(cell_len, lines)) <= max(width, 36)
    assert any(re.search(r"^ +0 +2 .*2\.46 .*tired → was", line) for line in lines)


def test_the_map_in_colours_and_without(seen):
    shown = overview(seen, top=3)
    plain = terminal.to_terminal(shown, 100).splitlines()
    assert plain[4].split() == ["head", *map(str, range(12))]
    for number, line in enumerate(plain[5:11]):
        digits = [min(int(10 * share), 9) for share in shown.shares[number]]
        assert line.split() == ["layer", str(number), *map(str, digits)]
    shaded = terminal.to_terminal(shown, 100, "truecolor").splitlines()[5:11]
    assert all("\x1b[48;2;" in line for line in shaded)


def test_a_map_with_heads_that_are_not_there(seen):
    shown = overview(seen, top=1)
    shares = ((NAN, *shown.shares[0][1:]), *shown.shares[1:])
    text = terminal.to_terminal(replace(shown, shares=shares), 100)
    assert text.splitlines()[5].split()[:3] == ["layer", "0", "–"]


def test_numbers():
    assert measured("selectivity", 0.4957) == "0.50"
    assert measured("distance", 3.14) == "3.1"
    assert measured("previous", 0.12) == "12 %"
    assert measured("entropy", NAN) == "–"


# ------------------------------------------------------------------ a look


def look(**options):
    query, key, value = np.random.default_rng(0).standard_normal((3, 2, 5, 7, 3))
    return regard.look(query, key, value, **options)


def test_a_query_of_a_look():
    given = look()
    shown = look_scene(given, 4, item=1, top=9)
    weights, baseline, by_distance = (
        view[1, :, 4] for view in (given.weights, given.baseline, given.by_distance)
    )
    lift = weights - np.maximum(baseline, by_distance)
    assert [row.lift for row in shown.rows] == pytest.approx(sorted(np.nanmax(lift, 0))[::-1])
    for row in shown.rows:
        key = int(row.place)
        assert row.label == f"key {key}"
        assert row.head == np.nanargmax(lift[:, key])
        assert row.weight == weights[row.head, key]
    first = shown.rows[0]
    assert shown.title[-1][0] == (
        f" {percent(first.weight)}; the others give it {percent(first.baseline)}."
    )
    assert shown.words == ()
    assert shown.check.verified


def test_one_head_by_weight_and_labels():
    given = look(causal=True).labels(queries=list("abcdefg"), keys=list("abcdefg"))
    shown = look_scene(given, 3, head=2, by="weight")
    assert {row.head for row in shown.rows} == {2}
    assert {row.label for row in shown.rows} == set("abcd")  # the others cannot be seen
    assert [row.weight for row in shown.rows] == sorted(given.weights[0, 2, 3, :4])[::-1]
    assert [spot.label for spot in shown.words] == list("abcdefg")
    assert all(np.isnan(spot.shade) for spot in shown.words[4:])


def test_the_last_query_unless_it_is_said_which():
    assert look_scene(look()).title[0] == ("query 6", True)
    assert look_scene(look(), -2).title[0] == ("query 5", True)


def test_a_look_without_heads():
    query, key, value = np.random.default_rng(0).standard_normal((3, 5, 2))
    shown = look_scene(regard.look(query, key, value))
    assert shown.finding == ""
    assert "layer" not in terminal.to_terminal(shown)
    alone = look_scene(regard.look(query[:1], key, value))
    assert alone.title[-1][0] == " has nothing to read that could be compared."


@pytest.mark.parametrize("arguments", [{"query": 7}, {"head": 5}, {"item": 2}, {"query": -8}])
def test_a_look_has_no_such_place(arguments):
    with pytest.raises(IndexError):
        look_scene(look(), **arguments)


def test_they_show_themselves(seen, capsys):
    look().show(4)
    assert "“query 4”" in capsys.readouterr().out
    seen.show("it")
    assert "“it” gives “tired” 77 %" in capsys.readouterr().out
    assert "“it” gives “cat” 49 %" in seen.to_terminal("it", "cat")
    assert "\x1b[" in seen.to_terminal("it", colours="256")
    assert "in layer 3 head 1" in seen.to_terminal("it", layer=3, head=1)
    assert "“query 4”" in look().to_terminal(4, width=60)
