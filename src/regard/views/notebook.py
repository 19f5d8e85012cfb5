"""The page in a notebook: in a frame of its own, so that neither can touch the other.

The whole page is the frame's `srcdoc`. It needs no file, server or extension, so it works in
Jupyter, VS Code and Colab, several on one sheet, and still after the notebook is opened again.
"""

import html
import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import Any

from regard.core.look import Look
from regard.recording.recording import Recording
from regard.views.page import to_html

BUDGET = 8_000_000  # bytes: a notebook keeps every output
HEIGHT = "46rem"


def framed(seen: Recording | Look, *what: Any, **how: Any) -> str:
    """An iframe that holds the page, and may run its script and nothing else.

    >>> framed(seen)[:7]  # doctest: +SKIP
    '<iframe'
    """
    page = str(to_html(seen, None, *what, **({"budget": BUDGET} | how)))
    return (
        f'<iframe title="regard: what the heads read" srcdoc="{html.escape(page)}" '
        'sandbox="allow-scripts allow-downloads" '
        f'style="width:100%;height:{HEIGHT};border:0;border-radius:12px" loading="lazy"></iframe>'
    )


def here() -> bool:
    """Whether this runs in a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def display(seen: Recording | Look, *what: Any, **how: Any) -> None:
    """Show the page below the cell that runs."""
    from IPython.display import HTML  # type: ignore[import-not-found]
    from IPython.display import display as shown

    with_page = framed(seen, *what, **how)
    shown(HTML(with_page))


def open_in_browser(seen: Recording | Look, *what: Any, **how: Any) -> Path:
    """Write the page to a temporary file and open it in the browser of this computer."""
    path = Path(tempfile.mkdtemp(prefix="regard-")) / "page.html"
    to_html(seen, path, *what, **how)
    webbrowser.open(path.as_uri())
    return path
