"""What was encoded, kept in one safetensors file, so that the same texts are encoded once."""

import json
import os
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

from regard.asking.texts import Sentence
from regard.core.arguments import Array

FORMAT = "regard index"
VERSION = 1


class Entry(NamedTuple):
    """A text's sentences in the parts that the model read, and their vectors in blocks."""

    digest: str
    sentences: list[Sentence]
    blocks: list[Array]
    cut: int = 0
    lost: int = 0


def load(path: str | PathLike[str], model: str) -> dict[str, Entry]:
    """What an index keeps, by the texts' names; nothing where there is no such file yet.

    Raises:
        ValueError: it is damaged, another kind of file, or of a later version.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ValueError(f"index: {path} is a folder, or its folder is not there")
    if not path.exists():
        return {}
    try:
        with safe_open(path, framework="numpy") as file:
            said = dict(file.metadata() or {})
            if said.get("format") != FORMAT:
                raise ValueError(f"index: {path} is another kind of file; name a new one")
            if said.get("version") != str(VERSION):
                raise ValueError(f"index: {path} is of another version; remove it")
            if said.get("model") != model:
                return {}
            entries = {}
            for n, (name, digest, blocks, cut, lost) in enumerate(json.loads(said["files"])):
                rows = json.loads(file.get_tensor(f"{n}.sentences").tobytes())
                sentences = [Sentence(t, a, tuple(b), p, q) for t, a, b, p, q in rows]
                vectors = [file.get_tensor(f"{n}.{block}") for block in range(blocks)]
                good = all(v.ndim == 2 and v.dtype == np.float32 for v in vectors)
                if not good or sum(map(len, vectors)) != len(sentences):
                    raise ValueError("its vectors are not those of its sentences")
                entries[name] = Entry(digest, sentences, vectors, cut, lost)
            return entries
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError(f"index: {path} is damaged, or no index: {error}") from error


def save(path: str | PathLike[str], model: str, entries: dict[str, Entry]) -> None:
    """Write an index beside its place, and put it there when it is complete."""
    from safetensors.numpy import save_file

    path, arrays, files = Path(path), dict[str, Array](), []
    for n, (name, entry) in enumerate(entries.items()):
        written = json.dumps(entry.sentences).encode()
        arrays[f"{n}.sentences"] = np.frombuffer(written, np.uint8)
        arrays |= {f"{n}.{block}": vectors for block, vectors in enumerate(entry.blocks)}
        files.append([name, entry.digest, len(entry.blocks), entry.cut, entry.lost])
    metadata = {"format": FORMAT, "version": str(VERSION), "model": model}
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file(arrays, draft, metadata=metadata | {"files": json.dumps(files)})
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
