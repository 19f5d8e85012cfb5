"""Sentences as vectors: mean-pooled hidden states of the embedded model, each of length 1."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from regard.asking.minilm import MiniLM
from regard.asking.texts import INSTALL, Sentence
from regard.core.arguments import Array

NAME = "all-MiniLM-L6-v2"
MOST = 256  # tokens, as the model was trained for sentences, the two special ones included
OVERLAP = 64  # tokens that two parts of a longer sentence share
BLOCK = 1024  # sentences that are encoded before they are attended to
_AT_ONCE = 2048  # tokens that go through the model together
_RUN = 100  # letters without a space: a longer run is one unknown token to this tokenizer


class Counts(NamedTuple):
    """What became of some sentences."""

    tokens: int = 0
    unknown: int = 0  # tokens of letters that the model does not know
    runs: int = 0  # of those the ones that are too long to be words
    cut: int = 0  # sentences that are longer than the model reads

    def plus(self, other: "Counts") -> "Counts":
        """Both together."""
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))


class Encoded(NamedTuple):
    """Some sentences in the parts that the model reads, and a vector for each."""

    parts: list[Sentence]
    vectors: Array  # (parts, D) float32
    counts: Counts


class Encoder:
    """The embedded model and its tokenizer."""

    def __init__(self) -> None:
        from regard.recording.models import embedded  # imports what downloads need

        try:
            from tokenizers import Tokenizer
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"asking needs tokenizers: {INSTALL}") from error
        folder = embedded()
        self.model = MiniLM(folder)
        self.tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(MOST, stride=OVERLAP)
        self.unknown = self.tokenizer.token_to_id("[UNK]")

    def question(self, text: str) -> Array:
        """The vector (D,) of a question, which is never cut.

        Raises:
            ValueError: it is longer than the model reads.
        """
        read = self.tokenizer.encode(text)
        if read.overflowing:
            raise ValueError(
                f"question: is longer than the {MOST} tokens that the model reads at once; ask "
                "shorter, and give the rest as a text"
            )
        vector: Array = self.vectors([read.ids])[0]
        return vector

    def encode(
        self, sentences: Sequence[Sentence], advance: Callable[[int], Any] = int
    ) -> Iterator[Encoded]:
        """The vectors of a text, a block of sentences at a time; longer ones are cut with overlap.

        `advance` is told how many sentences went through the model.
        """
        for first in range(0, len(sentences), BLOCK):
            parts: list[Sentence] = []
            ids: list[list[int]] = []
            counts = Counts()
            block = sentences[first : first + BLOCK]
            batch = self.tokenizer.encode_batch([whole.text for whole in block])
            for whole, read in zip(block, batch, strict=True):
                reads = [read, *read.overflowing]
                counts = counts.plus(self._counted(reads))
                ids += [one.ids for one in reads]
                parts += [whole] if len(reads) == 1 else _cut(whole, [one.offsets for one in reads])
            yield Encoded(parts, self.vectors(ids, partial(_told, advance, parts)), counts)

    def _counted(self, reads: Sequence[Any]) -> Counts:
        tokens = sum(len(read.ids) for read in reads)
        unknown = runs = 0
        for read in reads:
            if self.unknown in read.ids:
                spans = [
                    s for n, s in zip(read.ids, read.offsets, strict=True) if n == self.unknown
                ]
                unknown += len(spans)
                runs += sum(past - first > _RUN for first, past in spans)
        return Counts(tokens, unknown, runs, len(reads) > 1)

    def vectors(self, ids: Sequence[Sequence[int]], told: Callable[[int], Any] = int) -> Array:
        """The vectors (n, D) of sentences that are given as tokens; `told` each number."""
        out = np.empty((len(ids), self.model.width), np.float32)
        for n, rows in enumerate(self.hidden(ids)):
            pooled = rows.sum(0)  # of length 1, so that a sum does for a mean
            out[n] = pooled / np.linalg.norm(pooled)
            told(n)
        return out

    def hidden(self, ids: Sequence[Sequence[int]]) -> Iterator[Array]:
        """The last hidden states (tokens, D) of each sentence, many going through together."""
        first = 0
        while first < len(ids):
            past, tokens = first + 1, len(ids[first])
            while past < len(ids) and tokens + len(ids[past]) <= _AT_ONCE:
                tokens += len(ids[past])
                past += 1
            ends = np.cumsum([len(one) for one in ids[first:past]])
            yield from np.split(self.model.hidden(ids[first:past]), ends[:-1])
            first = past


def _told(advance: Callable[[int], Any], parts: Sequence[Sentence], n: int) -> None:
    advance(parts[n].part == 0)


def _cut(whole: Sentence, spans: Sequence[Sequence[tuple[int, int]]]) -> list[Sentence]:
    """A sentence in parts; the first and the last token of each are special."""
    return [whole.cut(span[1][0], span[-2][1], part, len(spans)) for part, span in enumerate(spans)]
