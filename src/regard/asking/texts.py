"""From what is asked about to sentences: text, Markdown or standard input, each with its lines."""

import hashlib
import os
import re
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

# A list mark begins a paragraph of its own, as an empty line does.
_MARK = re.compile(r"\s*([-*+•–]|\d{1,3}[.)])\s+")
_MARKDOWN = (".md", ".markdown", ".mkd")
INSTALL = "pip install 'regard[models]'"


class Document(NamedTuple):
    """A text and what it is called."""

    name: str
    text: str
    markdown: bool = False

    def digest(self, language: str) -> str:
        """What tells whether the sentences of a kept index are still those of the text."""
        said = f"{language} {self.markdown} {self.text}"
        return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()


class Sentence(NamedTuple):
    """A sentence, or the part of a longer one that the model can read at once."""

    text: str
    line: int  # of its document, counted from 1
    breaks: tuple[int, ...] = ()  # where in the text each further line begins
    part: int = 0
    parts: int = 1

    def cut(self, first: int, past: int, part: int, parts: int) -> "Sentence":
        """Some of its characters."""
        line = self.line + bisect_right(self.breaks, first)
        breaks = tuple(at - first for at in self.breaks if first < at < past)
        return Sentence(self.text[first:past], line, breaks, part, parts)

    @property
    def last(self) -> int:
        """The line on which it ends."""
        return self.line + len(self.breaks)


def documents(texts: Any) -> list[Document]:
    """Read what is asked about: a string is a text itself, a path is a file, `Path("-")` is stdin.

    Raises:
        TypeError: something is neither.
        FileNotFoundError: there is no such file.
        ValueError: nothing was given, or a file is a folder, binary, or not in UTF-8.
    """
    given = [texts] if isinstance(texts, str | PathLike) else texts
    if not isinstance(given, Sequence) or not all(isinstance(x, str | PathLike) for x in given):
        raise TypeError(
            f"texts: expected a text, a Path, or a list of them, received {type(texts).__name__}"
        )
    if not given:
        raise ValueError("texts: nothing was given to ask about")
    named: dict[int | Path, Document] = {}
    for number, one in enumerate(given, 1):
        if isinstance(one, str):
            name = "text" if len(given) == 1 else f"text {number}"
            named[number] = Document(name, _lines(one))
        elif Path(one) not in named:  # standard input cannot be read twice; a file counts once
            named[Path(one)] = _read(Path(one))
    return list(named.values())


def _read(path: Path) -> Document:
    if path == Path("-"):
        return Document("standard input", _decoded("standard input", sys.stdin.buffer.read()))
    name = os.fspath(path)
    if not path.exists():
        raise FileNotFoundError(f"{name}: there is no such file")
    if path.is_dir():
        raise ValueError(f"{name}: is a folder; name the files in it, as in {name}/*.txt")
    text = _decoded(name, path.read_bytes())
    return Document(name, text, path.suffix.lower() in _MARKDOWN)


def _decoded(name: str, raw: bytes) -> str:
    if raw.startswith(b"%PDF"):
        raise ValueError(f"{name}: is a PDF; make a text of it first (pdftotext does it)")
    wide = raw[:2] in (b"\xff\xfe", b"\xfe\xff")
    if b"\0" in raw and not wide:
        raise ValueError(f"{name}: is binary, no text")
    try:
        return _lines(raw.decode("utf-16" if wide else "utf-8-sig"))
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{name}: line {line} is not in {'UTF-16' if wide else 'UTF-8'}; save the text in "
            "UTF-8 first (iconv does it), if it is a text"
        ) from error


def _lines(text: str) -> str:
    """One kind of line end, whatever the system that wrote the text."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


# ------------------------------------------------------------------ sentences


def sentences(document: Document, language: str = "en") -> list[Sentence]:
    """The sentences of a text, split with sentencex; what holds no letter or digit is none.

    A line break alone ends no sentence: an empty line, a list mark, and in Markdown each block do.
    """
    try:
        from sentencex import segment  # type: ignore[import-untyped]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"asking needs sentencex: {INSTALL}") from error
    paragraphs = _markdown(document.text) if document.markdown else _plain(document.text)
    found = []
    for first, lines in paragraphs:
        text = " ".join(lines)
        starts = list(accumulate(len(line) + 1 for line in lines[:-1]))
        end = 0
        for piece in segment(language, text):
            begin, end = end, end + len(piece)
            lead = len(piece) - len(piece.lstrip())
            whole = Sentence(text, first, tuple(starts))
            if any(map(str.isalnum, piece)):
                found.append(whole.cut(begin + lead, begin + len(piece.rstrip()), 0, 1))
    return found


def _plain(text: str) -> Iterator[tuple[int, list[str]]]:
    """Paragraphs: the number of the first line, and the lines without space around them."""
    first, lines = 1, list[str]()
    for number, line in enumerate([*text.split("\n"), ""], 1):
        mark = _MARK.match(line)
        if lines and (mark or not line.strip()):
            yield first, lines
            lines = []
        if line.strip():
            first = first if lines else number
            lines.append(line[mark.end() if mark else 0 :].strip())


def _markdown(text: str) -> Iterator[tuple[int, list[str]]]:
    """The same of Markdown: what a reader of the page would see, without code and HTML.

    A row of a table says little without the heads of its columns, so it is read with them.
    """
    try:
        from markdown_it import MarkdownIt
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"Markdown needs markdown-it-py: {INSTALL}") from error
    row: list[str] | None = None
    heads, rows = list[str](), 0
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "tr_open":
            row, first = [], (token.map or [0])[0]
        elif token.type == "thead_close":
            heads, rows = row or [], 0
        elif token.type == "tr_close" and heads:
            cells = zip(heads, row or [], strict=True)
            said = (f"{head}: {cell}" if head else cell for head, cell in cells if cell)
            yield first + 1, [", ".join(said)]
            rows += 1
        elif token.type == "table_close":
            if not rows:
                yield first + 1, [", ".join(heads)]
            row, heads = None, []
        elif token.type == "inline":
            lines = _shown(token.children or [])
            if row is None:
                yield (token.map or [0])[0] + 1, lines
            else:
                row += lines


def _shown(children: Sequence[Any]) -> list[str]:
    parts = {"softbreak": "\n", "hardbreak": "\n", "html_inline": ""}
    text = "".join(parts.get(child.type, child.content) for child in children)
    return [line.strip() for line in text.split("\n")]
