"""Figures: every kind, as vectors with their fonts, and what no font can write."""

import warnings

import numpy as np
import pytest
from embedded import recorded

import regard
from regard.views.figure import save, to_figure

KINDS = ("words", "matrix", "heads", "lines", "calculation")


@pytest.fixture(scope="module")
def seen():
    return recorded()


def said(figure):
    return [text.get_text() for text in figure.axes[0].texts]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ground", ["light", "dark"])
def test_every_kind_is_drawn_and_nothing_is_cut_off(seen, kind, ground):
    figure = to_figure(seen, "it", "cat", kind=kind, ground=ground)
    figure.canvas.draw()
    whole = figure.bbox
    for text in figure.axes[0].texts:
        box = text.get_window_extent()
        assert box.x0 >= whole.x0
        assert box.x1 <= whole.x1
        assert box.y0 >= whole.y0
        assert box.y1 <= whole.y1
    assert any("matches the model to" in text for text in said(figure))


def test_the_numbers_are_the_models(seen):
    layer, it, tom = seen.item(0).layers[3], seen["it"].positions[0], seen["cat"].positions[0]
    weight = layer.weights[1, it, tom]
    assert f"{100 * weight:.2f} %" in said(to_figure(seen, "it", "cat", kind="calculation"))
    words = said(to_figure(seen, "it"))
    first = seen.reads("it")[0]
    assert f"{100 * first['weight']:.0f} %" in words
    assert f"{first['layer']}.{first['head']}" in words


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_files_are_vectors_with_their_fonts_and_always_the_same(seen, tmp_path, ending):
    paths = [tmp_path / f"{n}.{ending}" for n in range(2)]
    for path in paths:
        save(to_figure(seen, "it"), path)
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    if ending == "svg":
        assert b"<image" not in first
        assert b"<text" not in first  # letters are outlines: no font is needed
    if ending == "pdf":
        assert b"/FontFile2" in first


def test_a_long_text_is_drawn_in_cells(tmp_path):
    rng = np.random.default_rng(2)
    query, key, value = rng.standard_normal((3, 2, 301, 5)).astype(np.float32)
    look = regard.look(query, key, value, causal=True)
    save(to_figure(look, 300, kind="matrix", head=1), tmp_path / "long.png")
    with pytest.raises(ValueError, match="lines"):
        to_figure(look, kind="lines")


@pytest.mark.parametrize("kind", KINDS)
def test_a_look_is_drawn_too(kind):
    query, key, value = np.random.default_rng(2).standard_normal((3, 5, 7)).astype(np.float32)
    look = regard.look(query, key, value).labels(list("abcde"), list("vwxyz"))
    assert said(to_figure(look, 2, kind=kind))


def test_characters_without_a_glyph_have_a_stand_in_and_one_warning(tmp_path):
    names = ["注意", "機構", "मन", "hello", "$x$", "a_b^c", "\ue000\ue001"]
    query, key, value = np.random.default_rng(4).standard_normal((3, 7, 5)).astype(np.float32)
    look = regard.look(query, key, value).labels(names, names)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        figure = to_figure(look, 3)
        save(figure, tmp_path / "foreign.png")
    ours = [w for w in heard if "no font here has" in str(w.message)]
    assert len(ours) == len(heard) == 1
    assert "drawn as □" in str(ours[0].message)
    assert "$x$" in said(figure)


def test_what_makes_no_sense_is_refused(seen):
    with pytest.raises(ValueError, match="kind"):
        to_figure(seen, kind="pie")
    with pytest.raises(ValueError, match="ground"):
        to_figure(seen, ground="unknown")
    with pytest.raises(KeyError):
        to_figure(seen, "dog")
