"""How the command behaves: errors in one line, and a sign of life while something takes seconds."""

import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click


@contextmanager
def refusing(*kinds: type[Exception]) -> Iterator[None]:
    """Turn an error that tells the user something into one line and exit code 2."""
    try:
        yield
    except kinds as error:
        stop(str(error))


def stop(message: str) -> NoReturn:
    """Say what is wrong and what to do, and end with exit code 2."""
    click.echo(f"regard: {message}", err=True)
    raise click.exceptions.Exit(2)


@contextmanager
def working(what: str, wanted: bool) -> Iterator[None]:
    """A sign of life on a terminal while something takes seconds; nothing elsewhere."""
    if not (wanted and sys.stderr.isatty()):
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what} …"):
        yield


def quiet(here: bool) -> None:
    """Leave what libraries have to say to those who call them; a view says what was left out."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    warnings.simplefilter("ignore")
    if here or not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")


def print_json(said: object) -> None:
    """One line of JSON, in letters that any console has."""
    click.echo(json.dumps(said, ensure_ascii=sys.stdout.encoding.lower() != "utf-8"))
