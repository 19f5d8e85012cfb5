"""What the command can write beside what it prints: a page, and figures."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import click

from regard.cli.manners import refusing, stop
from regard.cli.options import FILE, together

if TYPE_CHECKING:
    from regard.recording.recording import Recording

Kind = Literal["words", "matrix", "heads", "lines", "calculation"]
By = Literal["lift", "weight"]

page = click.option(
    "--html",
    type=FILE,
    metavar="FILE",
    help="Also write a page for any browser; it needs no network.",
)
drawing = together(
    page,
    click.option("--png", type=FILE, metavar="FILE", help="Also draw a figure."),
    click.option("--svg", type=FILE, metavar="FILE", help="The same as SVG, in vectors."),
    click.option("--pdf", type=FILE, metavar="FILE", help="The same as PDF, with its fonts."),
    click.option(
        "--kind",
        type=click.Choice(get_args(Kind)),
        default="words",
        help="What the figure shows.",
    ),
)


def outputs(asked: Mapping[str, Any]) -> dict[str, Path | None]:
    """The page and the figures that were asked for, by the names of their options."""
    return {f"--{name}": asked[name] for name in ("html", "png", "svg", "pdf")}


def expect_folders(files: dict[str, Path | None]) -> None:
    """Refuse what cannot be written before any work is done."""
    for name, path in files.items():
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            stop(f"{name}: {path} cannot be written: it is a folder, or its folder is not there")
        if name in ("--png", "--svg", "--pdf") and path is not None:
            if path.suffix.lower() != name.replace("--", "."):
                stop(f"{name}: {path} does not end in {name.replace('--', '.')}")
            if find_spec("matplotlib") is None:
                stop("figures need matplotlib: pip install 'regard[plot]'")


def write(
    seen: "Recording",
    source: str | None,
    target: str | None,
    by: By,
    layer: int | None,
    head: int | None,
    top: int | None,
    kind: Kind,
    files: dict[str, Path | None],
) -> None:
    """Write the page and the figures that were asked for."""
    with refusing(OSError, ValueError):
        if (page := files["--html"]) is not None:
            seen.to_html(page, source, target)
            click.echo(f"wrote {page} ({page.stat().st_size / 1e6:.1f} MB)", err=True)
        for name in ("--png", "--svg", "--pdf"):
            if (path := files[name]) is not None:
                from regard.views.figure import save, to_figure

                figure = to_figure(
                    seen, source, target, kind=kind, layer=layer, head=head, by=by, top=top or 10
                )
                save(figure, path)
                click.echo(f"wrote {path}", err=True)
