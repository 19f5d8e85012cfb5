"""What was encoded, kept in one safetensors file, so that the same texts are encoded once.

Vectors go through it block by block, when it is written and when it is read; only one block is in
memory.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from os import PathLike
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from regard.asking.encoder import Counts
from regard.asking.texts import Sentence
from regard.core.arguments import Array

FORMAT = "regard index"
VERSION = 3


class Entry(NamedTuple):
    """A text's sentences, in the parts that the model read, and their vectors."""

    digest: str
    counts: Callable[[], Counts]  # like the sentences, known when the blocks were read
    sentences: Callable[[], Sequence[Sentence]]
    blocks: Callable[[], Iterator[Array]]


class _Kept(Sequence[Sentence]):
    """Sentences as an index keeps them, one a line; an answer needs few, so each is read alone."""

    def __init__(self, path: Path, raw: bytes) -> None:
        self.path, self.lines = path, raw.splitlines()

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, at: Any) -> Any:
        try:
            text, line, breaks, part, parts = json.loads(self.lines[at])
            return Sentence(text, line, tuple(breaks), part, parts)
        except (TypeError, ValueError) as error:
            raise ValueError(f"index: {self.path} is damaged: {error}") from error


@contextmanager
def opened(path: str | PathLike[str], model: str) -> Iterator[dict[str, Entry]]:
    """What an index keeps, by the texts' names.

    Nothing where there is no such file yet, or one of another version or model.

    Raises:
        ValueError: it is damaged, or another kind of file.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ValueError(f"index: {path} is a folder, or its folder is not there")
    if not path.exists():
        yield {}
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(safe_open(path, framework="numpy"))
            entries = _entries(path, file, model)
        except (SafetensorError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"index: {path} is damaged, or no index: {error}") from error
        yield entries


def _entries(path: Path, file: Any, model: str) -> dict[str, Entry]:
    said = dict(file.metadata() or {})
    if said.get("format") != FORMAT:
        raise ValueError(f"index: {path} is another kind of file; name a new one")
    if (said.get("version"), said.get("model")) != (str(VERSION), model):
        return {}  # it is written anew

    def entry(n: int, digest: str, counts: list[int], sizes: list[int]) -> Entry:
        shapes = [file.get_slice(f"{n}.{block}").get_shape() for block in range(len(sizes))]
        if [shape[:-1] for shape in shapes] != [[size] for size in sizes]:
            raise TypeError("its vectors are not those of its sentences")

        @cache
        def sentences() -> _Kept:
            found = _Kept(path, file.get_tensor(f"{n}.sentences").tobytes())
            if len(found) != sum(sizes):
                raise ValueError(f"index: {path} is damaged: sentences are missing")
            return found

        def blocks() -> Iterator[Array]:
            return (file.get_tensor(f"{n}.{block}") for block in range(len(sizes)))

        return Entry(str(digest), lambda: Counts(*counts), sentences, blocks)

    files = json.loads(said["files"])
    return {name: entry(n, *rest) for n, (name, *rest) in enumerate(files)}


class Writer:
    """An index that is being written: beside its place, and put there when it is complete."""

    def __init__(self, path: str | PathLike[str], model: str) -> None:
        self.path, self.model = Path(path), model
        # The header says where all lies and stands first, so what it speaks of waits in a file.
        self.body: IO[bytes] = tempfile.TemporaryFile(  # noqa: SIM115
            dir=self.path.absolute().parent
        )
        self.header: dict[str, Any] = {}
        self.files: list[Any] = []
        self.sizes: list[int] = []

    def vectors(self, block: Array) -> None:
        """Add some vectors of the text at hand."""
        self._put(f"{len(self.files)}.{len(self.sizes)}", "F32", block)
        self.sizes.append(len(block))

    def close(self, name: str, entry: Entry) -> None:
        """All vectors of this text were added."""
        written = "\n".join(map(json.dumps, entry.sentences())).encode()
        self._put(f"{len(self.files)}.sentences", "U8", np.frombuffer(written, np.uint8))
        self.files.append([name, entry.digest, entry.counts(), self.sizes])
        self.sizes = []

    def _put(self, name: str, dtype: str, array: Array) -> None:
        first = self.body.tell()
        self.body.write(np.ascontiguousarray(array).data)
        offsets = [first, self.body.tell()]
        self.header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": offsets}

    def finish(self) -> None:
        """Put the file in its place."""
        said = {"format": FORMAT, "version": str(VERSION), "model": self.model}
        said["files"] = json.dumps(self.files)
        header = json.dumps({"__metadata__": said} | self.header).encode()
        header += b" " * (-len(header) % 8)
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            with draft.open("wb") as file:
                file.write(len(header).to_bytes(8, "little") + header)
                self.body.seek(0)
                shutil.copyfileobj(self.body, file)
            draft.replace(self.path)
        finally:
            draft.unlink(missing_ok=True)
            self.body.close()
