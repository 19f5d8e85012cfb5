"""What views are asked for, checked before any work is done."""

from collections.abc import Collection
from operator import index
from typing import Any

from regard.recording.recording import Recording
from regard.recording.words import Word


def one_of(name: str, given: object, known: Collection[str]) -> None:
    """Refuse what is not among the known.

    >>> one_of("by", "size", ("lift", "weight"))
    Traceback (most recent call last):
    ValueError: by: expected one of lift, weight, received 'size'
    """
    if given not in known:
        raise ValueError(f"{name}: expected one of {', '.join(known)}, received {given!r}")


def whole(name: str, given: Any, least: int = 0) -> int:
    """A whole number, also one that is written as a float, such as 24e6.

    >>> whole("budget", 24e6)
    24000000
    """
    number = int(given) if isinstance(given, float) and given.is_integer() else given
    try:
        number = index(number)
    except TypeError:
        raise TypeError(f"{name}: expected a whole number, received {given!r}") from None
    if number < least:
        raise ValueError(f"{name}: expected at least {least}, received {given}")
    return number


def position(name: str, given: Any, size: int) -> int:
    """A position among so many, counted from 0, or from the end below 0."""
    try:
        return range(size)[index(given)]
    except TypeError:
        raise TypeError(f"{name}: expected a position, received {given!r}") from None
    except IndexError:
        raise IndexError(f"{name}: expected a position below {size}, received {given}") from None


def word(name: str, given: Any, seen: Recording) -> Word | None:
    """A word of a recording, where one is asked for."""
    if given is None or isinstance(given, Word):
        return given
    if not isinstance(given, str):
        raise TypeError(f"{name}: expected a word, such as 'it' or seen['it'], received {given!r}")
    return seen[given]
