"""Takes the gallery's pictures of pages, in Chromium (run it: python docs/gallery/pages.py)."""

import shutil
import sys
import tempfile
from pathlib import Path

import image
from playwright.sync_api import sync_playwright
from seen import SENTENCE, seen

from regard.recording.compare import compare
from regard.views.page import compared_to_html


def draw(folder: Path) -> None:
    """Write pictures of a page, light and dark, wide and narrow; of a comparison; of an image."""
    recording, soft = seen(), seen(SENTENCE.replace("tired", "soft"))
    with tempfile.TemporaryDirectory() as made, sync_playwright() as player:
        page, both, house = (Path(made) / f"{name}.html" for name in ("page", "both", "house"))
        recording.to_html(page, "it", "cat")
        image.seen().to_html(house, "3,2", image=image.picture())
        compared_to_html(compare(recording, soft, "it"), both)
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = player.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, file, width, scheme, scale in (
            ("page", page, 1240, "light", 1),
            ("page-dark", page, 1240, "dark", 2),
            ("page-narrow", page, 320, "light", 2),
            ("compare", both, 1240, "light", 1),
            ("page-image", house, 1240, "light", 1),
        ):
            size = {"width": width, "height": 900}
            window = browser.new_page(viewport=size, color_scheme=scheme, device_scale_factor=scale)
            window.goto(file.as_uri())
            window.locator("#cells").wait_for()
            window.wait_for_timeout(300)
            window.screenshot(path=folder / f"{name}.png", full_page=True)
        browser.close()


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
