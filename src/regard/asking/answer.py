"""What an answer holds: the sentences that a question attends to, and what they add up to."""

from dataclasses import dataclass
from typing import Any, Literal

from regard.core.arguments import Array
from regard.core.proof import Check

Shade = Literal["match", "attention"]

HONEST = "Weights say which sentences are near the question, not that they answer it."


@dataclass(frozen=True, slots=True)
class Part:
    """A word of a sentence that was found.

    Attributes:
        text: the word as it is written.
        share: what its tokens add to the sentence's cosine with the question; over all tokens, the
            special ones too, it adds up to the cosine.
        even: what it would be if every token added the same.
        fraction: of the sentence's tokens, the special ones too; what it would be read if all were
            read alike.
        spaced: whether it is written apart from the word before.
        read: where attention was recorded, the weight it gets in the model's last layer, mean of
            the heads, from tokens in proportion to what they add to the match; else None.
        others: likewise, the weight it gets there from all tokens alike, whoever asks.
    """

    text: str
    share: float
    even: float
    fraction: float
    spaced: bool = True
    read: float | None = None
    others: float | None = None

    def above(self, shade: Shade) -> float:
        """How far it is above an even share, of the cosine or of the recorded weight."""
        if shade == "match":
            return self.share - self.even
        return (self.read or 0.0) - self.fraction

    def stands_out(self, shade: Shade) -> bool:
        """Whether it is a third or more above an even share; punctuation never is a word."""
        even = self.even if shade == "match" else self.fraction
        return self.above(shade) >= abs(even) / 3 and any(map(str.isalnum, self.text))


@dataclass(frozen=True, slots=True)
class Found:
    """A sentence that the question attends to.

    Attributes:
        weight: its share of the question's attention over all sentences.
        cosine: of its vector and the question's.
        file: the name of its text.
        line: where it begins, counted from 1.
        last_line: where it ends.
        text: the sentence, or the part of it that the model read.
        part: "" or, of a sentence that was cut, such as "part 2 of 3".
        before: the sentence before it.
        after: the sentence after it.
        words: its words, with what the match rests on.
    """

    weight: float
    cosine: float
    file: str
    line: int
    last_line: int
    text: str
    part: str
    before: str
    after: str
    words: tuple[Part, ...]


@dataclass(frozen=True, eq=False)
class Answer:
    """What `ask` found. Printing it shows it; `.show()` draws it with the terminal's colours.

    Attributes:
        question: as it was asked.
        scale: what cosines are multiplied by before the softmax.
        found: the sentences with most weight, the heaviest first.
        sentences: how many there are in all.
        vector: (D,) float32, the sentences' vectors combined by their weights.
        shares: scale -> the weight that the found sentences would hold together at that scale.
        model: whose vectors they are.
        check: the proof that the weights give the vector, block by block; the worst.
        notes: what was cut, or could not be read.
        shade: what words are shaded by: "match" or "attention".
        explained: whether drawing it shows other scales too.
        recorded: the proof of the attention that was recorded; else None.

    >>> answer = ask("Who lost?", "We lost. It rained.")  # doctest: +SKIP
    >>> answer.found[0].text  # doctest: +SKIP
    'We lost.'
    """

    question: str
    scale: float
    found: tuple[Found, ...]
    sentences: int
    vector: Array
    shares: dict[float, float]
    model: str
    check: Check
    notes: tuple[str, ...] = ()
    shade: Shade = "match"
    explained: bool = False
    recorded: Check | None = None

    @property
    def share(self) -> float:
        """The share of weight that the found sentences hold together."""
        return sum(one.weight for one in self.found)

    @property
    def even(self) -> float:
        """The weight of each sentence if all had the same."""
        return 1 / self.sentences

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        from dataclasses import asdict

        return {
            "question": self.question,
            "model": self.model,
            "scale": self.scale,
            "sentences": self.sentences,
            "even": self.even,
            "share": self.share,
            "shares": [{"scale": s, "share": w} for s, w in self.shares.items()],
            "found": [asdict(one) for one in self.found],
            "vector": self.vector.tolist(),
            "check": str(self.check),
            "shade": self.shade,
            "recorded": None if self.recorded is None else str(self.recorded),
            "notes": list(self.notes),
        }

    def to_terminal(self, width: int = 80) -> str:
        """The answer as text."""
        from regard.asking.drawn import draw
        from regard.views.terminal import written

        return written(lambda pen: draw(self, pen), width)

    def show(self) -> None:
        """Print it to standard output, with what colours and characters that has."""
        from regard.asking.drawn import draw
        from regard.views.terminal import write

        write(lambda pen: draw(self, pen))

    def __repr__(self) -> str:
        return self.to_terminal()
