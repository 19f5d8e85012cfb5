"""The command `regard`: reads what a person typed, runs a model, prints a view.

Whatever takes long to import (PyTorch, transformers) is imported by the one command that needs it.
"""

import io
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from regard.cli import asking, calculating
from regard.cli.files import By, Kind, drawing, expect_folders, outputs, page, write
from regard.cli.manners import print_json, quiet, refusing, stop, working
from regard.cli.options import FILE, as_json, together

if TYPE_CHECKING:
    from regard.recording.recording import Recording

EXAMPLES = """
Examples:

\b
  regard "The cat sat on the mat because it was tired." --from it
  regard "The cat sat on the mat because it was tired." --to cat
  regard "The cat sat on the mat because it was tired." --from it --to cat
  regard "The cat sat on the mat because it was tired." --from it --to cat --matrix
  regard "John went to the bank to deposit money." --from bank --by weight
  regard "The cat sat on the mat." --save cat.regard --html cat.html
  regard "The cat sat on the mat." --from cat --pdf cat.pdf
  regard - --from it < story.txt
"""

HEADS = """
Examples:

\b
  regard heads "The cat sat on the mat because it was tired."
  regard heads "The cat sat on the mat because it was tired." --sort previous --top 5
"""

COMPARE = """
Examples:

\b
  regard compare "The cat sat on the mat because it was tired." --swap tired=soft --from it
  regard compare "The cat sat." --with "The dog sat."
  regard compare "The cat sat." --other-model some/folder
"""


text = click.argument("text", metavar="TEXT")
source = click.option(
    "--from", "source", metavar="WORD", help="The word that reads; it:2 is the second 'it'."
)
to = click.option("--to", metavar="WORD", help="The word that is read.")
by = click.option(
    "--by",
    type=click.Choice(get_args(By)),
    default="lift",
    help="Rank by lift (the weight beyond what the others give) or by the bare weight.",
)
layer = click.option(
    "--layer", type=click.IntRange(min=0), metavar="N", help="One layer, counted from 0."
)
head = click.option(
    "--head", type=click.IntRange(min=0), metavar="N", help="One head, counted from 0."
)
top = click.option(
    "--top",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many lines at the most; 10 unless given.",
)
matrix = click.option(
    "--matrix", is_flag=True, help="Show one head as a whole: which words read which."
)
links = together(source, to, by, layer, head, top, matrix)
model = click.option(
    "--model",
    metavar="M",
    help="A folder, a GGUF file or a Hugging Face name. Without it: the embedded "
    "all-MiniLM-L6-v2, which needs no network.",
)
save = click.option(
    "--save",
    type=FILE,
    metavar="FILE",
    help="Also save the recording; 'regard open FILE' shows it.",
)


class Commands(click.Group):
    """A first argument that is a command's name is the command; anything else is text."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `look` before a text."""
        if not args:
            args = ["--help"]
        elif args[0] not in {*self.commands, "--help", "-h", "--version"}:
            args = ["look", *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; when it is interrupted, end as shells expect."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Aborted.", err=True)
            raise click.exceptions.Exit(130) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which a reader meets them, not of the alphabet."""
        return list(self.commands)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command with the arguments of this process, or with those given."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a poor console is no reason to fail
    app(arguments, prog_name="regard")


@click.group(
    cls=Commands,
    epilog=EXAMPLES,
    invoke_without_command=True,
    subcommand_metavar="TEXT | COMMAND [ARGUMENTS]",
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.option("--version", is_flag=True, help="Print the version.")
def app(version: bool) -> None:
    """See what any transformer attends to.

    A first argument that is no command is text: 'regard TEXT' means 'regard look TEXT'.
    """
    if version:
        from importlib.metadata import PackageNotFoundError
        from importlib.metadata import version as installed

        try:
            click.echo(f"regard {installed('regard')}")
        except PackageNotFoundError:
            click.echo("regard, from its sources")
        raise click.exceptions.Exit


@app.command(epilog=EXAMPLES)
@together(text, links, model, as_json, save, drawing)
def look(text: str, model: str | None, save: Path | None, **asked: Any) -> None:
    """Show what the heads of a model read in a text.

    With --from, what a word reads; with --to, which words read it; with both, in which heads the
    one reads the other; with neither, the strongest links. Each weight is shown with what the
    other words give, because some heads give the same weight whoever asks. A TEXT of - is read
    from standard input.
    """
    expect_folders({"--save": save} | outputs(asked))
    seen = run(words(text), model)
    if save is not None:
        with refusing(OSError):
            seen.save(save)
        click.echo(f"saved {save} ({save.stat().st_size / 1e6:.1f} MB)", err=True)
    show(seen, **asked)


@app.command(name="open")
@click.argument("file", type=FILE, metavar="FILE")
@together(links, as_json, drawing)
def open_(file: Path, **asked: Any) -> None:
    """Show a saved recording; needs neither the model nor PyTorch.

    FILE was written by --save.
    """
    from regard.recording.file import load

    with refusing(OSError, ValueError):
        seen = load(file)
    expect_folders(outputs(asked))
    show(seen, **asked)


@app.command(epilog=COMPARE)
@text
@click.option(
    "--swap",
    multiple=True,
    metavar="OLD=NEW",
    help="Put NEW for OLD in the second text; may be repeated.",
)
@click.option("--with", "other", metavar="TEXT", help="The second text, whole.")
@click.option("--other-model", metavar="M", help="Run the second text in this model.")
@together(source, to, top, model, as_json, page)
def compare(
    text: str,
    swap: Sequence[str],
    other: str | None,
    other_model: str | None,
    source: str | None,
    to: str | None,
    top: int | None,
    model: str | None,
    as_json: bool,
    html: Path | None,
) -> None:
    """Compare what heads read in two texts, or in two models.

    The most honest look at what a head reads: change one word, and see which links change.
    """
    from regard.cli.comparing import second_text
    from regard.recording.compare import compare as side_by_side
    from regard.recording.words import WordError
    from regard.views import compared, terminal

    expect_folders({"--html": html})
    first = words(text)
    second = second_text(first, swap, other)
    if second == first and other_model is None:
        stop("nothing to compare: give --swap OLD=NEW, --with TEXT or --other-model M")
    before = run(first, model)
    after = run(second, other_model or model)
    with refusing(WordError, ValueError):
        found = side_by_side(before, after, source, to, top=top or 100)
    if as_json:
        print_json(compared.as_json(found, top or 100))
    else:
        shown = compared.changes(found, top or 10)
        terminal.write(lambda pen: compared.draw(shown, pen))
    if html is not None:
        from regard.views.page import compared_to_html

        with refusing(OSError, ValueError):
            compared_to_html(found, html)
        click.echo(f"wrote {html} ({html.stat().st_size / 1e6:.1f} MB)", err=True)


@app.command(epilog=HEADS)
@text
@click.option(
    "--sort",
    default="selectivity",
    metavar="MEASURE",
    help="selectivity, entropy, first, special, itself, previous, next, same_token, induction, "
    "distance or heaviest.",
)
@layer
@click.option(
    "--top", type=click.IntRange(min=1), default=20, metavar="N", help="How many lines at the most."
)
@together(model, as_json)
def heads(
    text: str, sort: str, layer: int | None, top: int, model: str | None, as_json: bool
) -> None:
    """Show what each head of a model does with a text: where to begin.

    A map of all heads by one measure, and those that have most of it, with the others and the
    heaviest link. Selectivity tells heads that choose from heads that give the same to everybody.
    """
    from regard.views import answer, terminal
    from regard.views.overview import overview

    seen = run(words(text), model)
    with refusing(ValueError):
        if as_json:
            print_json(answer.heads_as_json(seen))
        else:
            terminal.show(overview(seen, sort, layer=layer, top=top))


app.add_command(asking.ask)
app.add_command(calculating.steps)


def words(text: str) -> str:
    """The text, read from standard input where it is `-`."""
    if text == "-":
        text = sys.stdin.buffer.read().decode("utf-8", "replace")
    # What the shell could not decode, a tokenizer could not read.
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace").strip()
    if not text:
        stop("the text is empty; give some words, as in: regard 'The cat sat.' --from sat")
    return text


def show(
    seen: "Recording",
    source: str | None,
    to: str | None,
    by: By,
    layer: int | None,
    head: int | None,
    top: int | None,
    matrix: bool,
    as_json: bool,
    kind: Kind,
    **files: Path | None,
) -> None:
    """Print what was asked about a recording, and write the page and the figures."""
    from regard import views
    from regard.recording.words import WordError
    from regard.views import answer

    with refusing(WordError, ValueError):
        if as_json:
            print_json(answer.as_json(seen, source, to, top=top or 100))
        else:
            views.show(
                seen,
                source,
                to,
                kind="matrix" if matrix else "words",
                by=by,
                layer=layer,
                head=head,
                top=top or 10,
            )
    write(seen, source, to, by, layer, head, top, kind, outputs(files))


def run(text: str, which: str | None) -> "Recording":
    """Run a model on a text, and record what its heads read."""
    here = which is None or Path(which).exists()  # else a download may show how far it is
    quiet(here)
    if find_spec("torch") is None:
        stop("needs PyTorch: pip install 'regard[models]'")
    from regard.recording import models
    from regard.recording.capture import record

    with working(f"loading {Path(which).stem if which else 'the embedded model'}", here):
        with refusing(ImportError, OSError, ValueError):
            model, tokenizer, name = models.resolve(which)
        if tokenizer is None:
            stop(f"{name} has no tokenizer, so it cannot be given a text")
        import torch

        inputs = tokenizer(text, return_tensors="pt")
        length = inputs["input_ids"].shape[1]
        limit = getattr(model.config, "max_position_embeddings", None)
        if limit is not None and length > limit:
            stop(f"the text has {length} tokens; {name} reads at most {limit}. Give a shorter one")
        with torch.inference_mode(), record(model, tokenizer=tokenizer) as seen:
            model(**inputs)
    seen.model = name
    return seen
