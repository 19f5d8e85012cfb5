"""A recording as one file: safetensors, with a format version, read through a memory map.

Nothing in it is ever executed. The safetensors library checks the frame of the file; the arrays are
then looked at where they lie, so that a row of weights touches its own pages only. What the file
says of layers and tokens is checked as any other input is, before it is believed.
"""

import json
import mmap
import os
import re
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from regard.core.arguments import FLOATS, Array
from regard.core.call import check
from regard.recording.layer import Kept, stacks
from regard.recording.recording import Recording
from regard.recording.rules import Options
from regard.recording.run import Run, Tokens
from regard.recording.stitch import Track
from regard.recording.words import Text

FORMAT = "regard recording"
VERSION = 1

_DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I64": np.int64,
    "BOOL": np.bool_,
}
_KIND = re.compile(r"(encoder|decoder|cross)( [1-9]\d{0,3})?")
_ARRAYS = ("query", "key", "value", "lse")
_SAID = ("name", "number", "kind", "difference", "largest")  # of a layer, as plain values
_DENSE = ("mask", "bias", "sinks")  # options that are arrays; ranges are two


def save(recording: Recording, path: str | PathLike[str]) -> None:
    """Write the last run of a recording into one file.

    It is written beside `path` and put there when it is complete, so that a file which is mapped at
    the moment, by this process or another, stays what it is.
    """
    from safetensors.numpy import save_file

    run, path = recording.run, Path(path)
    arrays: dict[str, Array] = {}
    names: dict[int, str] = {}

    def put(name: str, array: Array) -> str:
        """Store an array once, however many layers share it; returns its name in the file."""
        if id(array) not in names:
            names[id(array)] = name
            arrays[name] = np.ascontiguousarray(array)
        return names[id(array)]

    layers = [
        _described(track.kept(), f"{n}.", put) | {"call": call, "cuts": track.cuts}
        for n, ((_, call), track) in enumerate(run.tracks.items())
    ]
    apart = [
        _described(track.step(cut), f"apart.{step}.{n}.", put) | {"call": call, "step": step}
        for step, found in run.apart.items()
        for n, ((_, call), (track, cut)) in enumerate(found.items())
    ]
    places = list(run.tracks)
    said = {
        "model": recording.model,
        "unrecorded": recording.unrecorded,
        "stopped": run.stopped,
        "parted": run.parted,
        "forwards": [[step.get(place, -1) for place in places] for step in run.forwards],
        "tokens": {
            kind: [
                _written(text, real)
                for text, real in zip(tokens.texts(recording.reader), tokens.real, strict=True)
            ]
            for kind, tokens in run.tokens.items()
        },
        "grids": {kind: tokens.grid for kind, tokens in run.tokens.items() if tokens.grid},
        "layers": layers,
        "apart": apart,
    }
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        metadata = {"format": FORMAT, "version": str(VERSION), "recording": json.dumps(said)}
        save_file(arrays, draft, metadata=metadata)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _described(kept: Kept, prefix: str, put: Callable[[str, Array], str]) -> dict[str, Any]:
    options: dict[str, Any] = dict(kept.options)
    for name in _DENSE:
        if name in options:
            options[name] = put(prefix + name, options[name])
    if "ranges" in options:
        first, past = options["ranges"]
        options["ranges"] = [put(f"{prefix}first", first), put(f"{prefix}past", past)]
    said = {name: getattr(kept, name) for name in _SAID}
    stored = {name: put(prefix + name, getattr(kept, name)) for name in _ARRAYS}
    return said | {"heads": kept.heads.tolist(), "arrays": stored, "options": options}


def _written(text: Text, real: Array) -> dict[str, Any]:
    return {
        "tokens": text.tokens,
        "pieces": text.pieces,
        "special": np.flatnonzero(text.special).tolist(),
        "padding": np.flatnonzero(~real).tolist(),
    }


# ------------------------------------------------------------------ reading


def load(path: str | PathLike[str]) -> Recording:
    """Read a recording that `Recording.save` wrote. Needs neither the model nor its framework.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, of a later version, or no recording.

    >>> load("cat.regard").reads("it")  # doctest: +SKIP
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path}: expected a file, this is a folder")
    arrays, metadata = mapped(path)
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path}: is a safetensors file, but no recording")
    if not metadata.get("version", "").isdecimal() or int(metadata["version"]) > VERSION:
        raise ValueError(
            f"{path}: has format version {metadata.get('version')!r}, and this regard reads "
            f"versions up to {VERSION}: a later regard wrote it"
        )
    try:
        return _recording(json.loads(metadata["recording"]), arrays)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: is damaged: {error}") from error


def mapped(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays of a safetensors file where they lie, read-only, and its metadata."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as frame:  # sees that header and sizes agree
            metadata = dict(frame.metadata() or {})
        with path.open("rb") as file:
            view = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except SafetensorError as error:
        raise ValueError(f"{path}: is damaged, or no recording: {error}") from error
    begin = 8 + int.from_bytes(view[:8].tobytes(), "little")
    header = json.loads(view[8:begin].tobytes())
    arrays = {}
    for name, said in header.items():
        if name == "__metadata__":
            continue
        if said["dtype"] not in _DTYPES:
            raise ValueError(f"{path}: is damaged: {name} has dtype {said['dtype']}")
        first, past = said["data_offsets"]
        raw = view[begin + first : begin + past]
        if said["dtype"] == "BOOL":
            raw = raw != 0  # any other byte than 0 and 1 would be no boolean
        arrays[name] = raw.view(_DTYPES[said["dtype"]]).reshape(said["shape"])
    return arrays, metadata


def _recording(said: dict[str, Any], arrays: dict[str, Array]) -> Recording:
    recording = Recording(str(said["model"]))
    recording.unrecorded = {str(name): str(why) for name, why in said["unrecorded"].items()}
    run = Run()
    run.stopped, run.parted = str(said["stopped"]), _count(said["parted"])
    for kind, texts in said["tokens"].items():
        _expect(bool(_KIND.fullmatch(kind)), f"tokens of {kind}")
        run.tokens[kind] = _tokens(texts)
    for kind, (rows, columns) in said.get("grids", {}).items():
        fits = 0 < _count(rows) * _count(columns) <= run.tokens[kind].size
        _expect(fits, "a grid of patches")
        run.tokens[kind].grid = rows, columns
    for layer in said["layers"]:
        kept = _kept(layer, arrays)
        _fits(kept, run)
        track = Track(kept)
        track.cuts = [(_count(a), _count(b), _count(keys)) for a, b, keys in layer["cuts"]]
        ends = [0, *(past for _, past, _ in track.cuts)]
        _expect([a for a, _, _ in track.cuts] == ends[:-1], "the steps' rows do not follow")
        _expect(ends == sorted(ends) and ends[-1] == kept.query.shape[-2], "the steps' rows")
        _expect(all(keys <= kept.key.shape[-2] for *_, keys in track.cuts), "the steps' keys")
        run.tracks[kept.name, _count(layer["call"])] = track
    for layer in said["apart"]:
        kept = _kept(layer, arrays)
        place = (kept.name, _count(layer["call"]))
        run.apart.setdefault(_count(layer["step"]), {})[place] = Track(kept), 0
    places = list(run.tracks.items())
    for step in said["forwards"]:
        _expect(len(step) == len(places), "a step's layers")
        cuts = {p: cut for (p, track), cut in zip(places, step, strict=True) if cut != -1}
        _expect(all(_count(n) < len(run.tracks[p].cuts) for p, n in cuts.items()), "a step")
        run.forwards.append(cuts)
    _expect(all(n < len(run.forwards) for n in run.apart), "a step that stands apart")
    _expect(bool(run.tracks), "no layers")
    recording.runs.append(run)
    return recording


def _tokens(texts: list[dict[str, Any]]) -> Tokens:
    found, real = [], []
    for said in texts:
        tokens, pieces = (tuple(map(str, said[name])) for name in ("tokens", "pieces"))
        size = len(tokens)
        _expect(len(pieces) == size == len(texts[0]["tokens"]), "texts of unequal lengths")
        marks = np.zeros((2, size), bool)
        for mark, name in zip(marks, ("special", "padding"), strict=True):
            positions = [_count(position) for position in said[name]]
            _expect(max(positions, default=-1) < size, f"{name} tokens")
            mark[positions] = True
        found.append(Text(tokens, pieces, marks[0]))
        real.append(~marks[1])
    _expect(bool(found), "no texts")
    return Tokens().name(found, np.stack(real))


def _kept(said: dict[str, Any], arrays: dict[str, Array]) -> Kept:
    """One attention; `check` sees that its arrays fit each other, as those of any call."""
    options: Options = dict(said["options"])
    known = {"scale", "softcap", "causal", "window", "query_offset", "ranges", *_DENSE}
    _expect(options.keys() <= known, f"options {sorted(options.keys() - known)}")
    for name in _DENSE:
        if name in options:
            options[name] = arrays[options[name]]
    if "ranges" in options:
        first, past = options["ranges"]
        options["ranges"] = (arrays[first], arrays[past])
    if options.get("window") is not None:
        options["window"] = tuple(options["window"])
    _expect(isinstance(options.get("query_offset", 0), int), "the first row's position")
    query, key, value, lse = (arrays[said["arrays"][name]] for name in _ARRAYS)
    _expect(query.ndim in (3, 4) and query.dtype in FLOATS, "query")
    _expect(lse.dtype in (np.float32, np.float64) and lse.shape == query.shape[:-1], "lse")
    check(query, key, value, **options)
    heads = np.array([_count(head) for head in said["heads"]], np.int64)
    _expect(len(heads) == query.shape[-3], "heads")
    _expect(bool(_KIND.fullmatch(said["kind"])), "a layer's kind")
    difference, largest = float(said["difference"]), float(said["largest"])
    name, number = str(said["name"]), _count(said["number"])
    return Kept(
        name, number, said["kind"], heads, query, key, value, lse, options, difference, largest
    )


def _fits(kept: Kept, run: Run) -> None:
    """See that there is a token for each row and each key."""
    rows, keys = (run.tokens[stack] for stack in stacks(kept.kind))
    offset = _count(kept.options.get("query_offset", 0))
    items = kept.query.shape[0] if kept.query.ndim == 4 else 1
    _expect(offset + kept.query.shape[-2] <= rows.size, "more rows than tokens")
    _expect(kept.key.shape[-2] == keys.size, "not as many keys as tokens")
    _expect(len(rows.real) == len(keys.real) == items, "not as many items as texts")


def _count(given: Any) -> int:
    _expect(isinstance(given, int) and not isinstance(given, bool) and given >= 0, "a count")
    return int(given)


def _expect(true: bool, what: str) -> None:
    if not true:
        raise ValueError(f"{what} cannot be right")
