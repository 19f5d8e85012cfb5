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

    def _repr_html_(self) -> str:
        framed: str = import_module("regard.views").in_notebook(self)
        return framed


def lesson(axes: tuple[str, ...], shape: tuple[int, ...], dtype: str, size: str) -> str:
    """What a `Look` is and what can be asked of it: its `repr`."""
    where = ", ".join(axes)
    many = [name.rstrip("0123456789") + "s" for name in (*axes[:-2], "querie", "key")]
    sizes = " × ".join(f"{n} {name}" for n, name in zip(shape, many, strict=True))
    return (
        f"Look: {sizes}, {dtype}\n"
        f"  {size}\n"
        f"  every pair   .weights[{where}], likewise .baseline .by_distance (what the other\n"
        "               rows give), .scores .allowed .contribution\n"
        "  each row     .top(k) .top(k, by='lift') .entropy() .mass(keys) .sink .lse .output\n"
        "  each key     .received() .received(mean=True) .carry(x)\n"
        "  as a whole   .map(rows, columns) .distance() .check()\n"
        "  all at once  .prepare(top=, map=), for what is then asked: one pass instead of some\n"
        "  what if      .without(keys)\n"
        f"  one row      .steps(query{', head' if 'head' in axes else ''}), the whole calculation\n"
        "  names        .labels(queries=, keys=)\n"
        "  to be seen   .show(), .to_terminal() .to_html(file) .to_figure()"
    )
