"""Views: scene and overview decide what is shown; terminal, page and figure draw it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.core.look import Look
from regard.recording.recording import Recording

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from regard.views.scene import Scene


def show(seen: Recording | Look, *what: Any, **how: Any) -> None:
    """Show a recording or a look where you are.

    In a notebook that is the page, in a frame of its own; else what `to_terminal` writes.
    `show("browser")` writes the page to a temporary file and opens it.
    """
    from regard.views import notebook, terminal

    if what[:1] == ("browser",):
        notebook.open_in_browser(seen, *what[1:], **how)
    elif notebook.here():
        notebook.display(seen, *what, **how)
    else:
        terminal.show(_scene(seen, *what, **how))


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
        how: `by`, `layer`, `head`, `top`.
    """
    from regard.views import terminal

    return terminal.to_terminal(_scene(seen, *what, **how), width, colours)


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


def _scene(seen: Recording | Look, *what: Any, **how: Any) -> "Scene":
    from regard.views.looking import look_scene
    from regard.views.scene import scene

    return look_scene(seen, *what, **how) if isinstance(seen, Look) else scene(seen, *what, **how)
