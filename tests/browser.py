"""A real browser for the tests of the page: Debian's Chromium, started once."""

import shutil
from contextlib import contextmanager

import pytest
from playwright.sync_api import sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def started():
    """A running browser."""
    if not CHROMIUM:
        pytest.skip("needs Chromium: apt-get install chromium")
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opened:
    """A page that is open, and what it asked for and complained of."""

    def __init__(self, page):
        self.page, self.path = page, None
        self.requests, self.said, self.errors = [], [], []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(self, path, hash=""):
        """Open a file, and wait until it is drawn."""
        self.page.mouse.move(0, 0)
        self.page.goto("about:blank")  # else another hash of the same file would open nothing
        self.path = path
        for heard in (self.requests, self.said, self.errors):
            heard.clear()
        self.page.goto(f"file://{path}{hash}")
        self.page.wait_for_function("document.querySelector('#sentence').textContent")
        self.settle()
        return self

    def settle(self):
        """Wait until what was asked for is drawn."""
        self.page.evaluate(
            "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def text(self, selector):
        return self.page.locator(selector).first.inner_text()

    def sentence(self):
        self.settle()
        return self.text("#sentence")

    def word(self, n):
        return self.page.locator(f"#text .word[data-n='{n}']")

    def quiet(self):
        """It asked for nothing but itself, and no script complained."""
        assert {url.split("#")[0] for url in self.requests} <= {f"file://{self.path}"}
        assert self.said == []
        assert self.errors == []
