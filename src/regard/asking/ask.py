"""`ask`: the question is a query, sentences are keys and values, attention does the rest."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from regard.asking.answer import HONEST, Answer, Found, Part
from regard.asking.encoder import MOST, OVERLAP, Encoder, pooled_rows
from regard.asking.index import Entry
from regard.asking.index import load as kept
from regard.asking.index import save as keep
from regard.asking.texts import Document, Sentence, documents, sentences
from regard.core.arguments import Array
from regard.core.attention import merge
from regard.core.look import look
from regard.core.proof import Check
from regard.recording.capture import record
from regard.recording.words import words

SHOWS = 500  # sentences that are still to be encoded, from which on a terminal shows how far it is


def ask(
    question: str,
    texts: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    scale: float = 20.0,
    top: int = 5,
    index: str | PathLike[str] | None = None,
    language: str = "en",
) -> Answer:
    """Find the sentences of texts that a question attends to, with the embedded model.

    The question's vector is the query, the sentences' vectors are keys and values, all of length 1:
    weights = softmax(scale · cosines) over all sentences. Blocks of sentences are attended to one
    after the other and merged, so only vectors that are kept in an index stay in memory.

    Args:
        question: at most 256 tokens.
        texts: a string is a text, a `Path` a file in UTF-8 (.md is read as Markdown), `Path("-")`
            standard input; or a list of these.
        scale: what cosines are multiplied by. They lie within -1 and 1, so that at scale 1 the best
            sentence could get no more than e² times the worst's weight; see `Answer.shares`.
        top: how many sentences to give back.
        index: a file that keeps the vectors. Texts that have not changed are not encoded again.
        language: of the texts, as ISO 639-1; it decides where sentences end ("z. B." in "de").

    Returns:
        The `Answer`: sentences, weights, places, words, and the combined vector (D,).

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument makes no sense, a file is no text, or there is no sentence.
        FileNotFoundError: there is no such file.
        ModuleNotFoundError: the `models` extra is not installed.

    >>> notes = "The company lost money. The canteen opens at noon. A supplier failed."
    >>> answer = ask("What caused the company to lose money?", notes)  # doctest: +SKIP
    >>> [one.text for one in answer.found[:2]]  # doctest: +SKIP
    ['The company lost money.', 'A supplier failed.']
    """
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"question: expected some words, received {question!r}")
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise ValueError(f"top: expected at least 1, received {top!r}")
    if not np.isfinite(scale):
        raise ValueError(f"scale: expected a finite number, received {scale!r}")
    given = _apart(documents(texts))
    split = [sentences(document, language) for document in given]
    notes = [
        f"{document.name}: {'no sentence in it' if document.text.strip() else 'is empty'}"
        for document, found in zip(given, split, strict=True)
        if not found
    ]
    if not any(split):
        raise ValueError("; ".join(notes))
    encoder = _encoder()
    entries = {} if index is None else kept(index, encoder.name)
    query = encoder.question(question)
    scales = (scale, 1.0, len(query) ** -0.5)
    search = _Search(query, scales, top)
    digests = [document.digest(language) for document in given]
    known = [entries.get(d.name) for d in given]
    fresh = [e is None or e.digest != now for e, now in zip(known, digests, strict=True)]
    total = sum(len(found) for found, new in zip(split, fresh, strict=True) if new)
    with _progress(total) as advance:
        for n, document in enumerate(given):
            entry = known[n]
            if entry is None or fresh[n]:
                entry = _encode(encoder, split[n], digests[n], search, index is not None, advance)
                entries[document.name] = entry
            else:
                for block in entry.blocks:
                    search.attend(block)
            search.close(document.name, entry)
            notes += _said(document.name, entry)
    if index is not None and any(fresh):
        keep(index, encoder.name, entries)
    found, check = _found(encoder, search)
    output, lses = search.output, search.lses
    total_weight = {
        one: float(sum(np.exp(one * hit.cosine - lse) for hit in search.hits))
        for one, lse in zip(scales, lses, strict=True)
    }
    return Answer(
        question, float(scale), found, search.count, output, total_weight,
        encoder.name, check, (*notes, HONEST),
    )  # fmt: skip


@cache
def _encoder() -> Encoder:
    return Encoder()


def _apart(given: list[Document]) -> list[Document]:
    """Each file once; the same one asked about twice would count twice."""
    return list({document.name: document for document in given}.values())


def _encode(
    encoder: Encoder, split: list[Sentence], digest: str, search: "_Search", keeps: bool,
    advance: Any,
) -> Entry:  # fmt: skip
    parts: list[Sentence] = []
    blocks: list[Array] = []
    cut = lost = 0
    for encoded in encoder.blocks(split):
        search.attend(encoded.vectors)
        parts += encoded.parts
        cut, lost = cut + encoded.cut, lost + encoded.lost
        if keeps:
            blocks.append(encoded.vectors)
        advance(len({(one.line, one.text) for one in encoded.parts}))
    return Entry(digest, parts, blocks, cut, lost)


def _said(name: str, entry: Entry) -> list[str]:
    """What was done to a text that a reader should know of."""
    notes = []
    if entry.cut:
        many = "sentence is" if entry.cut == 1 else "sentences are"
        notes.append(
            f"{name}: {entry.cut} {many} longer than the {MOST} tokens that the model reads at "
            f"once, and cut into parts that share {OVERLAP} tokens"
        )
    if entry.lost:
        many = "run" if entry.lost == 1 else "runs"
        notes.append(
            f"{name}: {entry.lost} {many} of more than a hundred letters without a space, which "
            "the model cannot read"
        )
    return notes


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    """How far encoding is, on a terminal and where it takes long."""
    if total < SHOWS or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (TextColumn("reading sentences"), BarColumn(), MofNCompleteColumn(), Remaining())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=total)
        yield lambda count: shown.advance(task, count)


# ------------------------------------------------------------------ attention


class _Hit(NamedTuple):
    """A sentence by its number, and once its text is through, where it stands."""

    cosine: float
    number: int
    name: str = ""
    near: tuple[Sentence, ...] = ()  # itself, the sentence before, the one after


class _Search:
    """Attention over blocks of sentences, merged as they come, and the best of them."""

    def __init__(self, query: Array, scales: Sequence[float], top: int) -> None:
        # One row a scale: the call's own scale is 1.
        self.query, self.rows = query, np.outer(scales, query).astype(np.float32)
        self.top, self.downward = top, scales[0] < 0
        self.count, self.closed = 0, 0
        self.hits: list[_Hit] = []
        self._output: Array | None = None
        self._lse: Array | None = None

    @property
    def output(self) -> Array:
        """The sentences' vectors combined by their weights, (D,)."""
        assert self._output is not None
        output: Array = self._output[0]
        return output

    @property
    def lses(self) -> list[float]:
        """The log of the sum over all sentences, one a scale."""
        assert self._lse is not None
        return [float(lse) for lse in np.ravel(self._lse)]

    def attend(self, vectors: Array) -> None:
        """Take a block of sentences in."""
        seen = look(self.rows, vectors, vectors, scale=1.0)
        if self._output is None:
            self._output, self._lse = seen.output, seen.lse
        else:
            self._output, self._lse = merge([self._output, seen.output], [self._lse, seen.lse])
        best = seen.top(min(self.top, len(vectors)), rows=0).positions
        cosines = vectors[best].astype(np.float64) @ self.query.astype(np.float64)
        self.hits += [
            _Hit(float(cosine), self.count + int(at))
            for at, cosine in zip(best, cosines, strict=True)
        ]
        self.count += len(vectors)
        sign = 1 if self.downward else -1
        self.hits = sorted(self.hits, key=lambda hit: (sign * hit.cosine, hit.number))[: self.top]

    def close(self, name: str, entry: Entry) -> None:
        """Note the places of the hits in the text whose sentences are through."""
        for n, hit in enumerate(self.hits):
            if hit.number >= self.closed:
                at = hit.number - self.closed
                own = entry.sentences[at]
                before = entry.sentences[at - own.part - 1 : at - own.part][:1]
                after = entry.sentences[at - own.part + own.parts :][:1]
                blank = Sentence("", 0)
                near = (own, *(before or [blank]), *(after or [blank]))
                self.hits[n] = hit._replace(name=name, near=near)
        self.closed = self.count


# ------------------------------------------------------------------ words


def _found(encoder: Encoder, search: _Search) -> tuple[tuple[Found, ...], Check]:
    scale, lse = search.rows[0] @ search.query, search.lses[0]
    found, checks = [], []
    for hit in search.hits:
        own, before, after = hit.near
        parts, check = _words(encoder, own.text, search.query)
        checks.append(check)
        found.append(
            Found(
                float(np.exp(float(scale) * hit.cosine - lse)), hit.cosine, hit.name, own.line,
                own.last, own.text, f"part {own.part + 1} of {own.parts}" if own.parts > 1 else "",
                before.text, after.text, parts,
            )
        )  # fmt: skip
    return tuple(found), max(checks, key=lambda check: check.relative)


def _words(encoder: Encoder, text: str, query: Array) -> tuple[tuple[Part, ...], Check]:
    """What each word adds to the match, and what the last layer gives it, recorded."""
    import torch

    inputs = encoder.tokenizer(text, truncation=True, max_length=MOST, return_tensors="pt")
    last = encoder.model.config.num_hidden_layers - 1
    with (
        torch.inference_mode(),
        record(encoder.model, tokenizer=encoder.tokenizer, layers=[last]) as seen,
    ):
        hidden = encoder.model(**inputs).last_hidden_state[0].numpy()
    adds = pooled_rows(hidden, query)
    rows, even = len(adds), float(adds.sum()) / len(adds)
    toward = np.maximum(adds, 0)
    toward = toward / toward.sum() if toward.any() else np.full(rows, 1 / rows)
    layer = seen.layer(last)
    heads = (1, layer.shape[1], rows)
    read = layer.carry(np.broadcast_to(toward, heads))[0].mean(0)
    others = layer.carry(np.broadcast_to(np.full(rows, 1 / rows), heads))[0].mean(0)
    found = []
    for word in words(seen.texts[0]):
        at = list(word.positions)
        found.append(
            Part(
                word.text, float(adds[at].sum()), even * len(at), float(read[at].sum()),
                float(others[at].sum()), word.spaced,
            )
        )  # fmt: skip
    return tuple(found), seen.check()
