"""An image's patches are drawn as the grid that they are, in every view."""

import re

import numpy as np
import pytest
import transformers as hf
from browser import Opened, started
from PIL import Image
from test_images import VISION, WIDE, recorded

import regard
from regard.views.figure import to_figure
from regard.views.page import to_html
from regard.views.patches import picture

ROWS, COLUMNS = 3, 5
IMAGE = np.random.default_rng(5).random((12, 20, 3))


@pytest.fixture(scope="module")
def seen():
    return recorded(
        hf.ViTModel(hf.ViTConfig(**VISION)), pixel_values=WIDE, interpolate_pos_encoding=True
    )


@pytest.fixture(scope="module")
def page(seen, tmp_path_factory):
    path = to_html(seen, tmp_path_factory.mktemp("image") / "image.html", "1,2:2", image=IMAGE)
    with started() as browser:
        yield Opened(browser.new_page(viewport={"width": 1240, "height": 900})).open(path)


def test_patches_stand_where_they_are(page, seen):
    assert page.text("#words-title") == "The image"
    boxes = [page.word(1 + n).bounding_box() for n in range(ROWS * COLUMNS)]
    lefts, tops = ([round(box[side]) for box in boxes] for side in ("x", "y"))
    assert len(set(lefts[:COLUMNS])) == COLUMNS
    assert lefts == lefts[:COLUMNS] * ROWS
    assert tops == [top for top in tops[::COLUMNS] for _ in range(COLUMNS)]
    assert sorted(set(tops)) == tops[::COLUMNS]
    assert all(abs(box["width"] - box["height"]) < 1 for box in boxes)
    start = page.word(0).bounding_box()
    assert start["y"] + start["height"] < tops[0]
    under = page.page.locator(".patches img").bounding_box()
    assert [round(under["x"]), round(under["y"])] == [lefts[0], tops[0]]
    assert round(under["x"] + under["width"]) == round(boxes[-1]["x"] + boxes[-1]["width"])


def test_the_hand_and_the_keys_move_among_patches(page, seen):
    look, press = seen.item(1), page.page.keyboard.press
    page.word(1 + 2 * COLUMNS + 1).hover()
    assert page.sentence().startswith("“2,1” gives")
    page.page.mouse.move(5, 5)
    assert page.sentence().startswith("“1,2” gives")
    page.word(1 + 2).click()
    page.page.mouse.move(5, 5)
    assert page.sentence().startswith("“0,2” gives")
    weight = float(page.page.get_attribute("#sentence", "data-weight"))
    best = look.reads("0,2")[0]
    assert weight == pytest.approx(best["weight"], abs=1e-6)
    press("ArrowDown")
    press("Enter")
    assert page.sentence().startswith("“1,2” gives")
    press("ArrowRight")
    press("Enter")
    assert page.sentence().startswith("“1,3” gives")
    page.word(1).click(modifiers=["Control"])
    page.page.mouse.move(5, 5)
    assert page.sentence().startswith("“1,3” gives “0,0”")
    page.quiet()


def test_a_saved_view_has_the_picture(page):
    svg = page.page.evaluate("regard.picture('words')")
    assert 'href="data:image/png;base64,' in svg
    assert svg.count("<rect") >= 2
    page.quiet()


def test_the_terminal_draws_rows_and_columns(seen):
    plain = regard.views.to_terminal(seen, "1,2:2")
    line = next(x for x in plain.splitlines() if re.match(r" +0( +1)( +2)( +3)( +4)$", x))
    after = plain.splitlines()[plain.splitlines().index(line) + 1 :][:ROWS]
    assert [x.split()[0] for x in after] == ["0", "1", "2"]
    assert [len(x.split()) for x in after] == [1 + COLUMNS] * ROWS
    assert after[1].split()[3] == "[]"
    narrow = regard.views.to_terminal(seen, "1,2:2", width=32)
    assert "[]" in narrow
    shaded = regard.views.to_terminal(seen, "1,2:2", colours="truecolor")
    assert shaded.count("\x1b[48;2;") >= ROWS * COLUMNS - 2


def test_show_in_a_terminal_leaves_the_picture_out(seen, capsys):
    seen.show("1,2:2", image=IMAGE)
    with_picture = capsys.readouterr().out
    seen.show("1,2:2")
    assert with_picture == capsys.readouterr().out != ""


def test_a_figure_lays_patches_over_the_picture(seen):
    axes = to_figure(seen, "1,2:2", image=IMAGE).axes[0]
    (under,) = axes.images
    left, right, bottom, top = under.get_extent()
    assert (right - left) / (bottom - top) == pytest.approx(COLUMNS / ROWS)
    assert not to_figure(seen, "1,2:2").axes[0].images
    numbers = [text.get_text() for text in axes.texts if text.get_fontsize() == 6.5]
    assert [n for n in numbers if n.isdigit()] == [*"01234", *"012"]


def test_pictures_of_every_form_are_one():
    bytes_ = np.round(255 * IMAGE).astype(np.uint8)
    expected = picture(IMAGE)
    assert expected.shape == IMAGE.shape[:2]
    for form in (bytes_, Image.fromarray(bytes_), IMAGE.astype(np.float32)):
        assert np.abs(picture(form).astype(int) - expected).max() <= 1
    grey = IMAGE[..., 0]
    assert np.array_equal(picture(grey), np.round(255 * grey.astype(np.float32)).astype(np.uint8))


@pytest.mark.parametrize(
    ("image", "error", "says"),
    [
        (np.zeros((3, 12, 20)), ValueError, "move its channels to the end"),
        (np.zeros(7), ValueError, r"\(height, width, 3\), received \(7,\)"),
        (np.zeros((0, 20, 3)), ValueError, "height, width, 3"),
        (np.zeros((12, 20, 3), int), TypeError, "uint8"),
        (np.full((12, 20, 3), 1.5), ValueError, "0 to 1"),
        (np.full((12, 20, 3), np.nan), ValueError, "0 to 1"),
        ("cat.png", ValueError, "image"),
    ],
)
def test_what_is_no_picture_is_refused(seen, image, error, says):
    for draw in (to_figure, to_html):
        with pytest.raises(error, match=says):
            draw(seen, image=image)


def test_a_picture_needs_patches():
    query = np.random.default_rng(0).random((3, 2, 7, 5)).astype(np.float32)
    look = regard.look(*query)
    for draw in (to_figure, to_html):
        with pytest.raises(ValueError, match="no grid of patches"):
            draw(look, image=IMAGE)
