"""Views: scene and overview decide what is shown; terminal (later page, figure) draws it."""

from typing import TYPE_CHECKING, Any

from regard.core.look import Look
from regard.recording.recording import Recording

if TYPE_CHECKING:
    from regard.views.scene import Scene


def show(seen: Recording | Look, *what: Any, **how: Any) -> None:
    """Print a recording or a look to the terminal; for the arguments see `to_terminal`."""
    from regard.views import terminal

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


def _scene(seen: Recording | Look, *what: Any, **how: Any) -> "Scene":
    from regard.views.looking import look_scene
    from regard.views.scene import scene

    return look_scene(seen, *what, **how) if isinstance(seen, Look) else scene(seen, *what, **how)
