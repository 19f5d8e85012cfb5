"""Text made safe to show: what is invisible, or would act on a screen, gets a visible mark."""

import unicodedata

# Marks that people know, each one column wide.
_MARKS = {" ": "␣", "\t": "⇥", "\n": "↵", "\r": "␍", "\x7f": "␡"}
_JOINERS = "\u200c\u200d"
_EMPTY = "(empty)"


def visible(text: str) -> str:
    r"""A token's or a word's text as it is shown: every character seen, none of them obeyed.

    Spaces at the ends, tabs, line breaks and control characters get marks; characters without
    width are written by their number. Letters, also of right-to-left scripts, and emoji stay.

    >>> visible(" the"), visible("\x1b[31mred"), visible("wo\u2060rd"), visible("")
    ('␣the', '␛[31mred', 'wo⟨2060⟩rd', '(empty)')
    """
    first = len(text) - len(text.lstrip(" "))
    past = len(text.rstrip(" "))
    shown = (
        " " if char == " " and first <= i < past else _mark(text, i) for i, char in enumerate(text)
    )
    return "".join(shown) or _EMPTY


def short(text: str, most: int) -> str:
    """The text in so many characters; what is cut shows as an ellipsis.

    >>> short("because", 5), short("cat", 5)
    ('beca…', 'cat')
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def _mark(text: str, i: int) -> str:
    char = text[i]
    kind = unicodedata.category(char)
    if char in _MARKS:
        return _MARKS[char]
    if ord(char) < 0x20:
        return chr(0x2400 + ord(char))
    if kind[0] in "CZ" and not (char in _JOINERS and _joins(text, i)):
        return f"⟨{ord(char):04X}⟩"
    if kind[0] == "M" and (i == 0 or text[i - 1].isspace()):
        return "◌" + char  # without a letter of its own it would sit on the column before
    return char


def _joins(text: str, i: int) -> bool:
    """Whether a joiner stands where writing needs it: in an emoji or a word of some scripts."""
    between = text[i - 1 : i] + text[i + 1 : i + 2]
    return len(between) == 2 and not any(c.isascii() or c in _JOINERS for c in between)
