"""What the second text of a comparison is."""

import re
from collections.abc import Sequence

from regard.cli.manners import stop


def second_text(text: str, swaps: Sequence[str], other: str | None) -> str:
    """The other text, or the same one with words swapped: every OLD that stands as a word."""
    if other is not None and swaps:
        stop("--swap and --with: give one of them")
    if other is not None:
        return other.strip() or stop("--with: the text is empty")
    for swap in swaps:
        old, sign, new = swap.partition("=")
        if not (old.strip() and sign and new.strip()):
            stop(f"--swap: expected OLD=NEW, as in tired=soft, received {swap!r}")
        word = rf"(?<!\w){re.escape(old.strip())}(?!\w)"
        text, count = re.subn(word, new.strip().replace("\\", r"\\"), text)
        if not count:
            stop(f"--swap: {old.strip()!r} is no word of the text")
    return text
