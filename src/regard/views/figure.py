"""Figures for a paper: the same findings as vectors, drawn with matplotlib."""

from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from regard.core.look import Look
from regard.recording.recording import By, Recording
from regard.recording.words import Word
from regard.views.asked import one_of, position
from regard.views.chosen import Link
from regard.views.drawings import DRAWINGS
from regard.views.looking import look_scene
from regard.views.palette import INKS, Ground
from regard.views.patches import expect_grid, picture
from regard.views.scene import Scene, scene
from regard.views.sheet import Sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind = Literal["words", "matrix", "heads", "lines", "calculation"]


def to_figure(
    seen: Recording | Look,
    source: Word | str | int | None = None,
    target: Word | str | int | None = None,
    *,
    kind: Kind = "words",
    layer: int | None = None,
    head: int | None = None,
    by: By = "lift",
    top: int = 10,
    ground: Ground = "light",
    image: Any = None,
) -> "Figure":
    """Draw a figure, in vectors.

    Args:
        seen: a recording or a look.
        source: the word that reads; of a look, a position.
        target: the word that is read.
        kind: "words", the text shaded and a ranked list; "heads", what each head gives the link;
            "matrix" and "lines", all of one head; "calculation", one weight step by step.
        layer: of which layer; by default that of the strongest link.
        head: of which head; likewise.
        by: rank and shade by "lift" or by the bare "weight".
        top: lines of the list, at the most.
        ground: "light" or "dark".
        image: what an image model saw, drawn pale and grey beneath its patches: (height, width, 3),
            bytes or floats from 0 to 1, or an image of Pillow; cropped as the model saw it.

    Returns:
        A matplotlib `Figure`; `save` writes it with its fonts.

    Raises:
        ModuleNotFoundError: matplotlib is missing.
        KeyError: no such word.
        ValueError: no such kind, layer or head; an image without a grid of patches.

    >>> seen.to_figure("it", kind="heads").savefig("heads.pdf")  # doctest: +SKIP
    """
    one_of("kind", kind, DRAWINGS)
    one_of("ground", ground, ("light", "dark"))
    shown: Scene
    seen_image = None if image is None else picture(image)
    if isinstance(seen, Look):
        shown = look_scene(seen, source, head=head, by=by, top=top)  # type: ignore[arg-type]
        if target is not None:
            target = position("target", target, seen.call.shape[-1])
    else:
        shown = scene(seen, source, target, by=by, layer=layer, head=head, top=top)  # type: ignore[arg-type]
    if seen_image is not None:
        expect_grid(shown.grid)
        shown = replace(shown, picture=seen_image)
    sheet = Sheet(INKS[ground], ground)
    DRAWINGS[kind](sheet, shown, Link(seen, shown, source, target, layer, head), by)
    return sheet.done(shown)


def save(figure: "Figure", path: str | PathLike[str]) -> None:
    """Write a figure as PNG, SVG or PDF, by the file's ending; fonts are embedded."""
    from matplotlib import rc_context

    with rc_context({"pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "regard"}):
        figure.savefig(path, dpi=200, metadata=_dateless(str(path)))


def _dateless(path: str) -> dict[str, Any]:
    """The same figure is the same file, whenever it is written."""
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path[-4:].lower(), {})
