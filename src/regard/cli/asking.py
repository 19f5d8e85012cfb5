"""`regard ask`: the sentences of files that a question attends to."""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.manners import print_json, quiet, refusing, stop, working

EXAMPLES = """
Examples:

\b
  regard ask "What caused the company to lose money?" notes.txt
  regard ask "Who was late?" *.md --top 10 --index notes.index
  pdftotext report.pdf - | regard ask "How much was spent?" -
  regard ask "What failed?" notes.txt --explain
"""


def ask(
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="What you want to know.")],
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES", help="Text or Markdown (.md); - is standard input."),
    ],
    scale: Annotated[
        float, typer.Option(metavar="X", help="What cosines are multiplied by; see --explain.")
    ] = 20.0,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many sentences.")] = 5,
    language: Annotated[
        str, typer.Option(metavar="CODE", help="Of the files: decides where sentences end.")
    ] = "en",
    index: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep what was read; files that have not changed are not read again.",
        ),
    ] = None,
    npy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the combined vector, as NumPy does."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, with the combined vector.")
    ] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Also show what other scales would give, and where the model's last layer reads "
            "(recorded; takes some seconds more).",
        ),
    ] = False,
) -> None:
    """Find the sentences of files that a question attends to.

    The question is the query; sentences are keys and values. Each sentence is shown with its share
    of the attention, its place, what stands around it, and the words that the match rests on.
    """
    for name, path in (("--index", index), ("--npy", npy)):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            stop(f"{name}: {path} cannot be written: it is a folder, or its folder is not there")
    quiet(here=True)
    from regard.asking.ask import ask as answer_to

    with refusing(ImportError, OSError, ValueError):
        if explain:
            with working("loading PyTorch", True):
                import torch  # noqa: F401
        answer = answer_to(
            question, files, scale=scale, top=top, index=index, language=language, explain=explain
        )
        if npy is not None:
            import numpy as np

            with npy.open("wb") as file:  # np.save would add an ending to the name
                np.save(file, answer.vector)
            typer.echo(f"wrote {npy} ({answer.vector.shape[0]} numbers)", err=True)
    if as_json:
        print_json(answer.as_json())
    else:
        answer.show()
