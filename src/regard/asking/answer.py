"""What an answer holds: the sentences that a question attends to, and what they add up to."""

from dataclasses import dataclass, field
from typing import Any

from regard.core.arguments import Array
from regard.core.proof import Check

HONEST = "Weights say which sentences are near the question, not that they answer it."


@dataclass(frozen=True, slots=True)
class Part:
    """A word of a sentence that was found.

    Attributes:
        text: the word, as the model's tokenizer knows it.
        share: what its tokens add to the sentence's cosine with the question; over all tokens, the
            special ones too, it adds up to the cosine.
        even: what it would be if every token added the same.
        read: the weight it gets in the model's last layer, mean of the heads, from tokens in
            proportion to what they add to the match.
        others: the weight it gets there from all tokens alike, whatever the question.
        spaced: whether it is written apart from the word before.
    """

    text: str
    share: float
    even: float
    read: float
    others: float
    spaced: bool = True


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
        words: its words, with what the match rests on and where the model reads.
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
        check: the proof of the recorded attention.
        notes: what was cut, or could not be read.

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
    notes: tuple[str, ...] = field(default=())

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
            "notes": list(self.notes),
        }

    def to_terminal(self, width: int = 80, explain: bool = False) -> str:
        """The answer as text."""
        from regard.asking.drawn import written

        return written(self, width, explain)

    def show(self, explain: bool = False) -> None:
        """Print it to standard output, with what colours and characters that has."""
        from regard.asking.drawn import show

        show(self, explain)

    def __repr__(self) -> str:
        return self.to_terminal()
