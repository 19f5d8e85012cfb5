"""What a `Look` and a `Recording` share: they show themselves, by the views above them.

This is the one place below the views that calls them, by name and only when somebody asks.
"""

from importlib import import_module
from typing import Any


class Shown:
    """Something that the views can show; `regard.views` says what each takes."""

    def show(self, *what: Any, **how: Any) -> Any:
        """Show it where you are: in a notebook, else in the terminal."""
        return import_module("regard.views").show(self, *what, **how)

    def to_terminal(self, *what: Any, **how: Any) -> Any:
        """What `show` prints in a terminal, as text."""
        return import_module("regard.views").to_terminal(self, *what, **how)

    def to_html(self, *what: Any, **how: Any) -> Any:
        """Write one HTML file, which opens from disk without a network."""
        return import_module("regard.views").to_html(self, *what, **how)

    def to_figure(self, *what: Any, **how: Any) -> Any:
        """Draw a matplotlib figure."""
        return import_module("regard.views").to_figure(self, *what, **how)
