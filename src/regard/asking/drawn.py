"""An answer drawn with characters."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.text import Text

from regard.asking.answer import Answer, Found, Part, Shade
from regard.views import terminal
from regard.views.labels import visible
from regard.views.pen import MARGIN, Pen, cut, spell, wrapped
from regard.views.scene import Spot, percent

NAMED = 4  # words of a sentence that are named at the most
LEAST = 0.005  # what a word adds that is written as 0.01
LONGEST = 20  # letters of a word, to which what stands behind it may be added
_TIED = "\N{NO-BREAK SPACE}"  # where a line must not be broken

SHADED = {
    "match": "Shaded: words whose tokens add to the cosine a third more than an even share, or "
    "beyond. ",
    "attention": "Shaded: words that the model's last layer reads a third more than an even share, "
    "or beyond. It reads each sentence before anybody asks, so that they are much the same "
    "whatever is asked. ",
}
SUMS = (
    "Sums are exact: a sentence's vector is the mean of its tokens' last hidden states. “The rest” "
    "is the other words, punctuation and the model's two special tokens."
)
READS = (
    "Reads: what words get in the model's last layer, mean of the heads, from the tokens that add "
    "to the cosine; in brackets from all tokens of the sentence, whoever asks. Recorded from the "
    "model as PyTorch runs it."
)


def draw(answer: Answer, pen: Pen) -> Iterator[Text]:
    """The lines of an answer."""
    yield Text()
    yield from wrapped(pen.write(f"“{visible(answer.question.strip())}”", "bold"), pen)
    many, one = len(answer.found), len(answer.found) == 1
    yield from _paragraph(
        f"{many} of {answer.sentences:,} sentences {'holds' if one else 'hold'} "
        f"{_tied(percent(answer.share))} of its attention; an even share would be "
        f"{_tied(percent(many * answer.even))}",
        pen,
    )
    most = max((w.above(answer.shade) for one in answer.found for w in one.words), default=0.0)
    for found in answer.found:
        yield Text()
        yield from _sentence(found, answer, max(most, 1e-9), pen)
    yield Text()
    if answer.explained:
        yield from _scales(answer, pen)
        yield Text()
    yield from _paragraph((SHADED[answer.shade] if pen.shades else "") + SUMS, pen)
    if answer.recorded is not None:
        yield from _paragraph(READS, pen)
    for note in answer.notes:
        yield from _paragraph(visible(note), pen)
    yield Text()
    yield from _proof(f"attention to sentences {answer.check}", answer.check.verified, pen)
    if answer.recorded is not None:
        yield from _proof(f"recorded attention {answer.recorded}", answer.recorded.verified, pen)
    yield from _paragraph(f"{answer.model} · scale {answer.scale:g}", pen)
    yield Text()


def _sentence(one: Found, answer: Answer, most: float, pen: Pen) -> Iterator[Text]:
    place = f"{visible(one.file)}:{one.line}" + (f"–{one.last_line}" * (one.last_line > one.line))
    times = one.weight / answer.even
    ratio = f"{times:,.0f}" if times >= 10 else f"{times:.1f}" if times >= 0.1 else "<0.1"
    weight = f"{percent(one.weight):>5}  "
    more = "  ".join(["", *filter(None, [one.part, f"{ratio} × an even share"])])
    room = pen.width - len(MARGIN) - len(weight)
    if len(place) > room:  # the end of a path and the line say more than its beginning
        place = "…" + place[len(place) - room + 1 :]
    head = Text(MARGIN) + pen.write(weight, f"bold {pen.inks.above}") + pen.write(place, "bold")
    if head.cell_len + len(more) <= pen.width:
        yield head + pen.quiet(more)
    else:
        yield head
        yield from _paragraph(more.strip(), pen)
    yield from _context(one.before, pen, end=True)
    if pen.shades:
        yield from terminal.sentence(_spots(one.words, answer.shade, most), pen)
    else:
        # What is no word, a picture in letters say, would fill the screen.
        text = re.sub(r"\S{100,}", lambda run: cut(run[0], pen.width - 6), visible(one.text))
        yield from wrapped(pen.write(text, "bold"), pen)
    yield from _context(one.after, pen)
    named = [w for w in one.words if w.stands_out("match") and w.share >= LEAST]
    best = sorted(named, key=lambda w: -w.above("match"))[:NAMED]
    rest = one.cosine - sum(w.share for w in best)
    terms = [*((visible(w.text), w.share) for w in best), ("the rest", rest)]
    said = " ".join(
        _tied(f"{'+' if n else '='} {word} {_hundredths(share)}")
        for n, (word, share) in enumerate(terms)
    )
    yield from _paragraph(
        f"cosine {_hundredths(one.cosine)}" + (f" {said}" if best else ", no word stands out"), pen
    )
    if answer.recorded is not None:
        reads = sorted(one.words, key=lambda w: -(w.read or 0))[:NAMED]
        listed = ", ".join(
            _tied(f"{visible(w.text)} {percent(w.read or 0)} ({percent(w.others or 0)})")
            for w in reads
        )
        yield from _paragraph(f"reads {listed}", pen)


def _spots(words: Sequence[Part], shade: Shade, most: float) -> list[Spot]:
    """The words with their shades; what stands behind one, a comma say, is kept on its line."""
    spots = list[Spot]()
    for word in words:
        label, value = visible(word.text), word.above(shade) / most if word.stands_out(shade) else 0
        last = spots[-1] if spots else Spot("", shade=1)
        behind = not (word.spaced or value or last.shade or any(map(str.isalnum, label)))
        if behind and len(last.label) < LONGEST:
            spots[-1] = replace(last, label=last.label + label)
        else:
            spots.append(Spot(label, spaced=word.spaced, shade=value))
    return spots


def _hundredths(number: float) -> str:
    return f"{number:.2f}".replace("-", "−")


def _context(text: str, pen: Pen, end: bool = False) -> Iterator[Text]:
    """The sentence next to it, in one line."""
    if text:
        shown, room = visible(text), pen.width - 2 * len(MARGIN)
        if end and len(shown) > room:
            kept = cut(shown[::-1], room - 1).rstrip("…")[::-1]
            shown = "…" + (kept.partition(" ")[2] or kept)  # from where a word begins
        yield Text(2 * MARGIN) + pen.quiet(cut(shown, room))


def _scales(answer: Answer, pen: Pen) -> Iterator[Text]:
    """Why the scale is what it is."""
    many, even = len(answer.found), answer.even
    yield from wrapped(pen.write(f"Why scale {answer.scale:g}", "bold"), pen)
    yield from _paragraph(
        "Cosines lie within -1 and 1. Multiplied by a small scale their exponentials are nearly "
        "the same, and every sentence gets nearly an even share, however many there are. What the "
        f"{many} sentences above hold together:",
        pen,
    )
    for scale, share in sorted(answer.shares.items(), key=lambda item: item[0]):
        named = f"{scale:g}"
        if 0 < scale < 1 and scale != answer.scale:
            named = f"1/√{1 / scale**2:.0f}"
        yield Text(MARGIN) + pen.write(f"  scale {named:<8}{percent(share):>8}")
    yield Text(MARGIN) + pen.quiet(f"  {'even share':<14}{percent(many * even):>8}")


def _proof(said: str, good: bool, pen: Pen) -> Iterator[Text]:
    mark, style = ("✓", pen.inks.good) if good else ("✗", f"bold {pen.inks.bad}")
    yield from wrapped(pen.write(f"{mark} {said}", style), pen)


def _tied(text: str) -> str:
    return text.replace(" ", _TIED)


def _paragraph(text: str, pen: Pen) -> Iterator[Text]:
    """What is read second, in lines that keep a number beside what it counts."""
    if spell(_TIED, pen.encoding) != _TIED:
        text = text.replace(_TIED, " ")
    for line in wrapped(pen.quiet(text), pen):
        line.plain = line.plain.replace(_TIED, " ")
        yield line
