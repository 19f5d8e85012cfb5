"""`ask`: the question is a query, sentences are keys and values, attention does the rest."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from importlib.util import find_spec
from os import PathLike
from typing import Any, NamedTuple, get_args

import numpy as np

from regard.asking import matched
from regard.asking.answer import HONEST, Answer, Found, Shade
from regard.asking.encoder import MOST, NAME, OVERLAP, Counts, Encoder
from regard.asking.index import Entry, Writer, opened
from regard.asking.texts import INSTALL, Sentence, documents, sentences
from regard.core.arguments import Array
from regard.core.attention import look, merge
from regard.core.proof import Check

SHOWS = 100  # sentences that are still to be encoded, from which on a terminal shows how far it is
STRANGE = 0.1  # share of unknown tokens from which an answer says so
STEEPEST = 1000
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*")


def ask(
    question: str,
    texts: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    scale: float = 20.0,
    top: int = 5,
    index: str | PathLike[str] | None = None,
    language: str = "en",
    shade: Shade = "match",
    explain: bool = False,
) -> Answer:
    """Find the sentences of texts that a question attends to, with the embedded model.

    The question's vector is the query, the sentences' vectors are keys and values, all of length 1:
    weights = softmax(scale · cosines) over all sentences. Blocks of sentences are attended to one
    after the other and merged, so only one block of vectors is in memory.

    Args:
        question: at most 256 tokens.
        texts: a string is a text, a `Path` a file in UTF-8 (.md is read as Markdown), `Path("-")`
            standard input; or a list of these.
        scale: what cosines are multiplied by. They lie within -1 and 1, so that at scale 1 the best
            sentence could get no more than e² times the worst's weight; see `Answer.shares`.
        top: how many sentences to give back.
        index: a file that keeps the vectors. Texts that have not changed are not encoded again.
        language: of the texts, as ISO 639-1; it decides where sentences end ("z. B." in "de").
        shade: what the words of a sentence are shaded by: what they add to its match with the
            question, exactly ("match"), or the weight that the model's last layer gives them
            ("attention"), which is recorded.
        explain: also record where the model's last layer reads in each sentence that was found,
            and show what other scales give. Recording needs PyTorch, which takes seconds to load.

    Returns:
        The `Answer`: sentences, weights, places, words, and the combined vector (D,).

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument makes no sense, a file is no text, or there is no sentence.
        FileNotFoundError: there is no such file.
        ModuleNotFoundError: the `models` extra is not installed, or not whole.

    >>> notes = "The company lost money. The canteen opens at noon. A supplier failed."
    >>> answer = ask("What caused the company to lose money?", notes)  # doctest: +SKIP
    >>> [one.text for one in answer.found[:2]]  # doctest: +SKIP
    ['The company lost money.', 'A supplier failed.']
    """
    _check(question, top, scale, language, shade)
    record = explain or shade == "attention"
    if record and not (find_spec("torch") and find_spec("transformers")):
        raise ModuleNotFoundError(f"recording needs PyTorch and transformers: {INSTALL}")
    given = documents(texts)
    with nullcontext(dict[str, Entry]()) if index is None else opened(index, NAME) as known:
        digests = {document.name: document.digest(language) for document in given}
        stale = [d for d in given if d.name not in known or known[d.name].digest != digests[d.name]]
        fresh = {document.name: sentences(document, language) for document in stale}
        notes = [
            f"{document.name}: {'no sentence in it' if document.text.strip() else 'is empty'}"
            for document in given
            if not (fresh[name] if (name := document.name) in fresh else known[name].sentences())
        ]
        if len(notes) == len(given):
            raise ValueError("; ".join(notes))
        encoder = _encoder()
        query = encoder.question(question)
        scales = (scale, 1.0, len(query) ** -0.5)
        search = _Search(query, scales, top)
        writer = Writer(index, NAME) if index is not None and any(fresh.values()) else None
        with _progress(sum(map(len, fresh.values()))) as advance:
            for name in digests:
                if name in fresh:
                    entry = _entry(encoder, fresh[name], digests[name], advance)
                else:
                    entry = known[name]
                _through(name, entry, search.attend, writer)
                search.close(name, entry.sentences)
                notes += _said(name, entry.counts())
        if writer is not None:
            for name in known.keys() - digests.keys():
                _through(name, known[name], lambda _: None, writer)
        found, recorded = _found(encoder, search, record)
    if writer is not None:  # not before what it replaces is closed
        writer.finish()
    totals = {
        one: float(sum(np.exp(one * hit.cosine - lse) for hit in search.hits))
        for one, lse in zip(scales, search.lses, strict=True)
    }
    return Answer(
        question, float(scale), found, search.count, search.output, totals, NAME,
        max(search.checks, key=lambda check: check.relative), (*notes, HONEST),
        shade, explain, recorded,
    )  # fmt: skip


def _check(question: Any, top: Any, scale: Any, language: Any, shade: Any) -> None:
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"question: expected some words, received {question!r}")
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise ValueError(f"top: expected at least 1, received {top!r}")
    if not abs(scale) <= STEEPEST:
        raise ValueError(
            f"scale: expected a number within -{STEEPEST} and {STEEPEST}, received {scale!r}; "
            "beyond, the rounding of cosines would decide"
        )
    if not isinstance(language, str) or not _LANGUAGE.fullmatch(language):
        raise ValueError(f"language: expected a code such as 'en' or 'de', received {language!r}")
    if shade not in get_args(Shade):
        raise ValueError(f"shade: expected 'match' or 'attention', received {shade!r}")


@cache
def _encoder() -> Encoder:
    return Encoder()


@cache
def _in_pytorch() -> Any:
    from regard.recording.models import resolve

    return resolve().model


def _entry(
    encoder: Encoder, split: list[Sentence], digest: str, advance: Callable[[int], Any]
) -> Entry:
    """A text that was not encoded yet; it is while its blocks are read."""
    parts: list[Sentence] = []
    counted: list[Counts] = []

    def blocks() -> Iterator[Array]:
        for encoded in encoder.encode(split, advance):
            parts.extend(encoded.parts)
            counted.append(encoded.counts)
            yield encoded.vectors

    def counts() -> Counts:
        return Counts(*map(sum, zip(*counted, strict=True)))

    return Entry(digest, counts, lambda: parts, blocks)


def _through(
    name: str, entry: Entry, attend: Callable[[Array], Any], writer: Writer | None
) -> None:
    """Read the vectors of a text, and keep them where there is an index."""
    for block in entry.blocks():
        attend(block)
        if writer is not None:
            writer.vectors(block)
    if writer is not None:
        writer.close(name, entry)


def _said(name: str, counts: Counts) -> list[str]:
    """What was done to a text that a reader should know of."""
    notes = []
    if counts.cut:
        many = "sentence is" if counts.cut == 1 else "sentences are"
        notes.append(
            f"{name}: {counts.cut} {many} longer than the {MOST} tokens that the model reads at "
            f"once, and cut into parts that share {OVERLAP} tokens"
        )
    if counts.runs:
        many = "run" if counts.runs == 1 else "runs"
        notes.append(
            f"{name}: {counts.runs} {many} of more than a hundred letters without a space, which "
            "the model cannot read"
        )
    if counts.unknown > STRANGE * counts.tokens:
        notes.append(
            f"{name}: {100 * counts.unknown / counts.tokens:.0f} % of its tokens are letters that "
            "the model does not know; it was trained on English"
        )
    return notes


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], Any]]:
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
    """A sentence that was found: its number in all texts, and in its own when that is through."""

    cosine: float
    number: int
    name: str = ""
    at: int = 0
    parts: Callable[[], Sequence[Sentence]] = list


class _Search:
    """Attention over blocks of sentences, merged as they come, and the best of them."""

    def __init__(self, query: Array, scales: Sequence[float], top: int) -> None:
        # One row a scale: the call's own scale is 1. In float64 a steep scale is no less exact.
        self.query = query.astype(np.float64)
        self.rows = np.outer(scales, self.query)
        self.top, self.scale = top, scales[0]
        self.count, self.closed = 0, 0
        self.hits: list[_Hit] = []
        self.checks: list[Check] = []
        self._output: Array | None = None
        self._lse: Array | None = None

    @property
    def output(self) -> Array:
        """The sentences' vectors combined by their weights, (D,)."""
        assert self._output is not None
        output: Array = self._output[0].astype(np.float32)
        return output

    @property
    def lses(self) -> list[float]:
        """The log of the sum over all sentences, one a scale."""
        assert self._lse is not None
        return [float(lse) for lse in np.ravel(self._lse)]

    def attend(self, vectors: Array) -> None:
        """Take a block of sentences in."""
        vectors = vectors.astype(np.float64)
        seen = look(self.rows, vectors, vectors, scale=1.0)
        self.checks.append(seen.check())
        if self._output is None:
            self._output, self._lse = seen.output, seen.lse
        else:
            self._output, self._lse = merge([self._output, seen.output], [self._lse, seen.lse])
        best = seen.top(min(self.top, len(vectors)), rows=0).positions
        cosines = vectors[best] @ self.query
        self.hits += [
            _Hit(float(cosine), self.count + int(at))
            for at, cosine in zip(best, cosines, strict=True)
        ]
        self.count += len(vectors)
        sign = 1 if self.scale < 0 else -1
        self.hits = sorted(self.hits, key=lambda hit: (sign * hit.cosine, hit.number))[: self.top]

    def close(self, name: str, parts: Callable[[], Sequence[Sentence]]) -> None:
        """Note which of the best are of the text whose sentences are through."""
        for n, hit in enumerate(self.hits):
            if hit.number >= self.closed:
                self.hits[n] = hit._replace(name=name, at=hit.number - self.closed, parts=parts)
        self.closed = self.count


def _found(
    encoder: Encoder, search: _Search, record: bool
) -> tuple[tuple[Found, ...], Check | None]:
    model = _in_pytorch() if record else None
    texts = [hit.parts()[hit.at].text for hit in search.hits]
    found, checks = [], []
    for hit, words in zip(search.hits, matched.parts(encoder, texts, search.query), strict=True):
        parts = hit.parts()
        own = parts[hit.at]
        first = hit.at - own.part
        before = parts[first - 1].text if first > 0 else ""
        after = parts[first + own.parts].text if first + own.parts < len(parts) else ""
        if model is not None:
            words, check = matched.recorded(encoder, model, own.text, search.query, words)
            checks.append(check)
        found.append(
            Found(
                float(np.exp(search.scale * hit.cosine - search.lses[0])), hit.cosine, hit.name,
                own.line, own.last, own.text,
                f"part {own.part + 1} of {own.parts}" if own.parts > 1 else "",
                before, after, words,
            )
        )  # fmt: skip
    return tuple(found), max(checks, key=lambda check: check.relative, default=None)
