"""What the options of all commands are made of."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

FILE = click.Path(path_type=Path)
as_json = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, with every head."
)


def together(*options: Callable[[Any], Any]) -> Callable[[Decorated], Decorated]:
    """Several options as one decorator, in the order in which help lists them."""

    def decorate(command: Decorated) -> Decorated:
        for one in reversed(options):
            command = one(command)
        return command

    return decorate
