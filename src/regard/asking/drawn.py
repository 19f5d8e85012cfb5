"""An answer drawn with characters."""

from collections.abc import Iterator
from functools import partial
from io import StringIO

from rich.console import Console
from rich.text import Text

from regard.asking.answer import Answer, Found
from regard.views import terminal
from regard.views.labels import visible
from regard.views.pen import MARGIN, Pen, cut, wrapped
from regard.views.scene import Spot, percent

LEGEND = (
    "Shaded: the words whose tokens add more to the match than an even share. Reads: where the "
    "model's last layer reads, from those tokens; in brackets from all tokens of the sentence, "
    "whatever the question."
)


def show(answer: Answer, explain: bool = False, console: Console | None = None) -> None:
    """Print an answer, by default to standard output."""
    terminal.write(partial(draw, answer, explain), console)


def written(answer: Answer, width: int = 80, explain: bool = False) -> str:
    """The same as text without colours."""
    console = Console(
        file=StringIO(), width=width, color_system=None, force_terminal=False, highlight=False,
        markup=False, emoji=False, legacy_windows=False,
    )  # fmt: skip
    show(answer, explain, console)
    text: StringIO = console.file  # type: ignore[assignment]
    return text.getvalue()


def draw(answer: Answer, explain: bool, pen: Pen) -> Iterator[Text]:
    """The lines of an answer."""
    yield Text()
    yield from wrapped(pen.write(f"“{visible(answer.question.strip())}”", "bold"), pen)
    many = len(answer.found)
    yield from wrapped(
        pen.quiet(
            f"{many} of {answer.sentences:,} sentences hold {percent(answer.share)} of its "
            f"attention; an even share of {many} would be {percent(many * answer.even)}"
        ),
        pen,
    )
    most = max((w.share - w.even for one in answer.found for w in one.words), default=0.0)
    for one in answer.found:
        yield Text()
        yield from _sentence(one, answer, max(most, 1e-9), pen)
    yield Text()
    if explain:
        yield from _explained(answer, pen)
        yield Text()
    yield from wrapped(pen.quiet(LEGEND), pen)
    for note in answer.notes:
        yield from wrapped(pen.quiet(visible(note)), pen)
    yield Text()
    good = answer.check.verified
    mark, style = ("✓", pen.inks.good) if good else ("✗", f"bold {pen.inks.bad}")
    yield from wrapped(pen.write(f"{mark} {answer.check}", style), pen)
    yield from wrapped(pen.quiet(f"{answer.model} · scale {answer.scale:g}"), pen)
    yield Text()


def _sentence(one: Found, answer: Answer, most: float, pen: Pen) -> Iterator[Text]:
    place = f"{visible(one.file)}:{one.line}" + (f"–{one.last_line}" * (one.last_line > one.line))
    times = one.weight / answer.even
    ratio = f"{times:,.0f}" if times >= 10 else f"{times:.1f}" if times >= 0.1 else "<0.1"
    head = Text(MARGIN) + pen.write(percent(one.weight), f"bold {pen.inks.above}")
    head += pen.write(f"  {place}", "bold") + pen.quiet(
        f"  {'  '.join(filter(None, [one.part, f'{ratio} × an even share']))}"
        f"  cosine {one.cosine:.2f}"
    )
    head.truncate(pen.width)
    yield head
    yield from _context(one.before, pen, end=True)
    if pen.shades:
        spots = [
            Spot(visible(w.text), spaced=w.spaced, shade=max(w.share - w.even, 0.0) / most)
            for w in one.words
        ]
        yield from terminal.sentence(spots, pen)
    else:
        yield from wrapped(pen.write(visible(one.text), "bold"), pen)
        best = sorted(one.words, key=lambda w: w.even - w.share)[:4]
        named = [f"{visible(w.text)} +{100 * w.share:.1f}" for w in best if w.share > w.even]
        if named:
            said = f"adds most to the match: {', '.join(named)} hundredths of {one.cosine:.2f}"
            yield from wrapped(pen.quiet(said), pen)
    yield from _context(one.after, pen)
    reads = sorted(one.words, key=lambda w: -w.read)[:4]
    listed = ", ".join(f"{visible(w.text)} {percent(w.read)} ({percent(w.others)})" for w in reads)
    yield from wrapped(pen.quiet(f"reads {listed}"), pen)


def _context(text: str, pen: Pen, end: bool = False) -> Iterator[Text]:
    """The sentence next to it, in one line."""
    if text:
        shown, room = visible(text), pen.width - 2 * len(MARGIN) - 2
        if end and len(shown) > room:
            shown = "…" + cut(shown[::-1], room - 1).rstrip("…")[::-1]
        yield Text(MARGIN * 2) + pen.quiet(cut(shown, room))


def _explained(answer: Answer, pen: Pen) -> Iterator[Text]:
    """Why the scale is what it is."""
    many, even = len(answer.found), answer.even
    yield from wrapped(pen.write(f"Why scale {answer.scale:g}", "bold"), pen)
    width = 1 / min(answer.shares) ** 2 if min(answer.shares) > 0 else 0
    yield from wrapped(
        pen.quiet(
            "Cosines lie within -1 and 1. Multiplied by a small scale their exponentials are "
            "nearly the same, and every sentence gets nearly an even share, however many there "
            f"are. What the {many} sentences above hold together:"
        ),
        pen,
    )
    for scale, share in sorted(answer.shares.items(), key=lambda item: item[0]):
        named = f"1/√{width:.0f}" if 0 < scale < 1 and scale != answer.scale else f"{scale:g}"
        yield Text(MARGIN) + pen.write(f"  scale {named:<8}{percent(share):>8}")
    yield Text(MARGIN) + pen.quiet(f"  {'even share':<14}{percent(many * even):>8}")
