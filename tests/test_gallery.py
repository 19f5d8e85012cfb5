"""The gallery is what its programs draw; a changed picture is written beside the old one."""

import importlib
import shutil
from pathlib import Path

import numpy as np
import pytest
from browser import CHROMIUM
from embedded import CAT, recorded
from PIL import Image

GALLERY = Path(__file__).parent.parent / "docs" / "gallery"
FIGURES = ("words", "words-dark", "heads", "matrix", "lines", "calculation")
IMAGES = ("image", "image-dark")
PAGES = ("page", "page-dark", "page-narrow", "compare", "page-image")


def small(path):
    """A picture in little: letters of another font look much the same in it."""
    with Image.open(path) as image:
        size = image.size
        return size, np.asarray(image.convert("RGB").resize((48, 64), Image.Resampling.BOX), float)


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Run a program of the gallery, with the recordings that this process has already."""
    monkeypatch.syspath_prepend(GALLERY)
    monkeypatch.setattr("seen.seen", lambda text=CAT: recorded(text))

    def run(program):
        importlib.import_module(program).draw(tmp_path)
        return tmp_path

    return run


def compare(folder, names):
    changed = []
    for name in names:
        (size, old), (new_size, new) = small(GALLERY / f"{name}.png"), small(folder / f"{name}.png")
        near = abs(size[1] - new_size[1]) < 0.06 * size[1] and size[0] == new_size[0]
        if not near or np.abs(old - new).mean() > 4:
            shutil.copy(folder / f"{name}.png", GALLERY / f"{name}.changed.png")
            changed.append(name)
    assert changed == []


def test_figures(drawn):
    compare(drawn("figures"), FIGURES)


def test_images(drawn):
    compare(drawn("image"), IMAGES)


def test_pages(drawn):
    if not CHROMIUM:
        pytest.skip("needs Chromium: apt-get install chromium")
    compare(drawn("pages"), PAGES)
