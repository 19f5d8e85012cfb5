"""Sentences as vectors: mean-pooled hidden states of the embedded model, each of length 1."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from regard.asking.texts import Sentence
from regard.core.arguments import Array

MOST = 256  # tokens, as the model was trained for sentences, the two special ones included
OVERLAP = 64  # tokens that two parts of a longer sentence share
BLOCK = 1024  # sentences that are encoded before they are attended to
_BATCH = 4096  # tokens of a forward, padding included
_RUN = 100  # letters without a space: a longer run is one unknown token to this tokenizer


class Encoded(NamedTuple):
    """Some sentences in the parts that the model reads, and a vector for each."""

    parts: list[Sentence]
    vectors: Array  # (parts, D) float32
    cut: int  # how many sentences were longer than the model reads
    lost: int  # runs of letters that are no words to the model


class Encoder:
    """The embedded model, read only when a text or a question comes."""

    def __init__(self) -> None:
        from regard.recording.models import resolve

        self.model, self.tokenizer, self.name = resolve()

    def question(self, text: str) -> Array:
        """The vector (D,) of a question, which is never cut.

        Raises:
            ValueError: it is longer than the model reads.
        """
        count = len(self.tokenizer(text, verbose=False)["input_ids"])
        if count > MOST:
            raise ValueError(
                f"question: has {count} tokens, and the model reads at most {MOST} at once"
            )
        vector: Array = self.encode([Sentence(text, 1)]).vectors[0]
        return vector

    def blocks(self, sentences: Sequence[Sentence]) -> Iterator[Encoded]:
        """The vectors of a text, some sentences at a time."""
        for first in range(0, len(sentences), BLOCK):
            yield self.encode(sentences[first : first + BLOCK])

    def encode(self, sentences: Sequence[Sentence]) -> Encoded:
        """The vectors of some sentences; longer ones are cut into parts that overlap."""
        read = self.tokenizer(
            [sentence.text for sentence in sentences], truncation=True, max_length=MOST,
            stride=OVERLAP, return_overflowing_tokens=True, return_offsets_mapping=True,
        )  # fmt: skip
        owner = np.asarray(read["overflow_to_sample_mapping"])
        counts = np.bincount(owner, minlength=len(sentences))
        parts: list[Sentence] = []
        for n, (sample, spans) in enumerate(zip(owner, read["offset_mapping"], strict=True)):
            whole, count = sentences[sample], int(counts[sample])
            if count > 1:
                part = n - int(np.searchsorted(owner, sample))
                whole = whole.cut(spans[1][0], spans[-2][1], part, count)
            parts.append(whole)
        unknown = self.tokenizer.unk_token_id
        lost = sum(
            token == unknown and past - first > _RUN
            for tokens, spans in zip(read["input_ids"], read["offset_mapping"], strict=True)
            if unknown in tokens
            for token, (first, past) in zip(tokens, spans, strict=True)
        )
        return Encoded(parts, self._vectors(read["input_ids"]), int((counts > 1).sum()), lost)

    def _vectors(self, ids: Sequence[Sequence[int]]) -> Array:
        import torch

        lengths = np.array([len(tokens) for tokens in ids])
        order = np.argsort(-lengths, kind="stable")
        vectors = np.empty((len(ids), self.model.config.hidden_size), np.float32)
        first = 0
        while first < len(order):
            rows = order[first : first + max(1, _BATCH // int(lengths[order[first]]))]
            inputs = self.tokenizer.pad(
                {"input_ids": [ids[row] for row in rows]}, return_tensors="pt"
            )
            with torch.inference_mode():
                hidden = self.model(**inputs).last_hidden_state
            mask = inputs["attention_mask"][..., None].to(hidden.dtype)
            pooled = (hidden * mask).sum(1) / mask.sum(1)
            vectors[rows] = torch.nn.functional.normalize(pooled, dim=1).float().numpy()
            first += len(rows)
        return vectors


def pooled_rows(hidden: Any, query: Array) -> Array:
    """What each token adds to the cosine of a sentence (n, D) and a question (D,), exactly."""
    rows = np.asarray(hidden, np.float64)
    mean = rows.mean(0)
    return rows @ query.astype(np.float64) / (len(rows) * np.linalg.norm(mean))
