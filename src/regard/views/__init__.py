"""Views: scene and overview decide what is shown; terminal, page and figure draw it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.core.look import Look
from regard.recording.recording import Recording

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.text import Text

    from regard.views.pen import Pen
    from regard.views.scene import Scene


def show(seen: Recording | Look, *what: Any, **how: Any) -> None:
    """Show a recording or a look where you are.

    In a notebook that is the page, in a frame of its own; else what `to_terminal` writes.
    `show("browser")` writes the page to a temporary file and opens it; `show(kind="matrix")`
    prints one head as a whole. A terminal draws patches of an image without `image=`, the picture.
    """
    from regard.views import notebook, terminal

    if what[:1] == ("browser",):
        notebook.open_in_browser(seen, *what[1:], **how)
    elif notebook.here() and "kind" not in how:
        notebook.display(seen, *what, **how)
    else:
        how.pop("image", None)
        terminal.write(_lines(seen, *what, **how))


def to_terminal(
    seen: Recording | Look, *what: Any, width: int = 80, colours: Any = "none", **how: Any
) -> str:
    """What `show` prints, as text.

    Args:
        seen: a recording, or a look.
        what: of a recording, the words as in `regard.views.scene.scene`: which reads, which is
            read; of a look, the position of the query.
        width: in columns.
        colours: "none", "standard", "256" or "truecolor".
        how: `by`, `layer`, `head`, `top`; `kind="matrix"` shows all weights of one head.
    """
    from regard.views import terminal
    from regard.views.asked import one_of, whole

    one_of("colours", colours, ("none", "standard", "256", "truecolor"))
    width = whole("width", width, 1)
    return terminal.written(_lines(seen, *what, **how), width, colours)


def to_html(seen: Recording | Look, *what: Any, **how: Any) -> str | Path:
    """Write one HTML file that opens without a network; see `regard.views.page.to_html`."""
    from regard.views import page

    return page.to_html(seen, *what, **how)


def to_figure(seen: Recording | Look, *what: Any, **how: Any) -> "Figure":
    """Draw a matplotlib figure; see `regard.views.figure.to_figure`."""
    from regard.views import figure

    return figure.to_figure(seen, *what, **how)


def in_notebook(seen: Recording | Look) -> str:
    """The page in a frame of its own, as a notebook shows it; see `regard.views.notebook`."""
    from regard.views import notebook

    return notebook.framed(seen)


def _lines(
    seen: Recording | Look, *what: Any, kind: str = "words", **how: Any
) -> "Callable[[Pen], Iterator[Text]]":
    from regard.views import halves, terminal
    from regard.views.asked import one_of
    from regard.views.chosen import Link

    one_of("kind", kind, ("words", "matrix"))
    shown = _scene(seen, *what, **how)
    if kind == "words":
        return lambda pen: terminal.draw(shown, pen)
    source, target, *_ = *what, None, None
    link = Link(seen, shown, source, target, how.get("layer"), how.get("head"))
    return lambda pen: halves.draw(shown, link, pen)


def _scene(seen: Recording | Look, *what: Any, **how: Any) -> "Scene":
    from regard.views.looking import look_scene
    from regard.views.scene import scene

    return look_scene(seen, *what, **how) if isinstance(seen, Look) else scene(seen, *what, **how)
