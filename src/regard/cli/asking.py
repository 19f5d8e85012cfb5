"""`regard ask`: the sentences of files that a question attends to."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from regard.cli.files import expect_folders
from regard.cli.manners import print_json, quiet, refusing, working
from regard.cli.options import FILE

if TYPE_CHECKING:
    from regard.asking.answer import Shade

EXAMPLES = """
Examples:

\b
  regard ask "What caused the company to lose money?" notes.txt
  regard ask "Who was late?" *.md --top 10 --index notes.index
  pdftotext report.pdf - | regard ask "How much was spent?" -
  regard ask "What failed?" notes.txt --shade attention
  regard ask "What failed?" notes.txt --explain
"""


@click.command(epilog=EXAMPLES)
@click.argument("question", metavar="QUESTION")
@click.argument("files", nargs=-1, required=True, type=FILE, metavar="FILES...")
@click.option(
    "--scale", default=20.0, metavar="X", help="What cosines are multiplied by; see --explain."
)
@click.option(
    "--top", type=click.IntRange(min=1), default=5, metavar="N", help="How many sentences."
)
@click.option(
    "--language", default="en", metavar="CODE", help="Of the files: decides where sentences end."
)
@click.option(
    "--index",
    type=FILE,
    metavar="FILE",
    help="Keep what was read; files that have not changed are not read again.",
)
@click.option(
    "--npy", type=FILE, metavar="FILE", help="Also write the combined vector, as NumPy does."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, with the combined vector."
)
@click.option(
    "--shade",
    type=click.Choice(["match", "attention"]),
    default="match",
    help="Shade words by what they add to the match, or by the weight that the model's last layer "
    "gives them (recorded; takes some seconds more).",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Also show what other scales would give, and where the model's last layer reads "
    "(recorded; takes some seconds more).",
)
def ask(
    question: str,
    files: Sequence[Path],
    scale: float,
    top: int,
    language: str,
    index: Path | None,
    npy: Path | None,
    as_json: bool,
    shade: "Shade",
    explain: bool,
) -> None:
    """Find the sentences of files that a question attends to.

    FILES are text or Markdown (.md); - is standard input. The question is the query; sentences
    are keys and values. Each sentence is shown with its share of the attention, its place, what
    stands around it, and the words that the match rests on.
    """
    expect_folders({"--index": index, "--npy": npy})
    quiet(here=True)
    from regard.asking.ask import ask as answer_to

    with refusing(ImportError, OSError, ValueError):
        if (explain or shade == "attention") and find_spec("torch"):
            with working("loading PyTorch", True):
                import torch  # noqa: F401
        answer = answer_to(
            question, files, scale=scale, top=top, index=index, language=language, shade=shade,
            explain=explain,
        )  # fmt: skip
        if npy is not None:
            import numpy as np

            with npy.open("wb") as file:  # np.save would add an ending to the name
                np.save(file, answer.vector)
            click.echo(f"wrote {npy} ({answer.vector.shape[0]} numbers)", err=True)
    if as_json:
        print_json(answer.as_json())
    else:
        answer.show()
