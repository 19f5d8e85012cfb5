"""The batches of one `predict`, which are computed one after the other, made into one run."""

from dataclasses import replace
from typing import Any

import numpy as np

from regard.core.arguments import Array
from regard.recording.layer import Kept
from regard.recording.rules import Options
from regard.recording.run import Run, Tokens
from regard.recording.stitch import Track

_OF_ITEMS = ("ranges", "mask")  # options that differ from item to item


def side_by_side(runs: list[Run]) -> list[Run]:
    """Runs of one batch each as one run of all items; as they are if their sizes differ.

    If recording stopped in one of them, the batches before it are whole, and it is left out.
    """
    whole = [run for run in runs if not run.stopped]
    if len(runs) < 2 or not whole or any(_frame(run) != _frame(whole[0]) for run in whole):
        return runs
    tracks = []
    for place in whole[0].tracks:
        tracks.append((place, Track(_joined([run.tracks[place].kept() for run in whole]))))
    found = Run(tracks)
    found.forwards = [{place: 0 for place, _ in tracks}]
    for stack in whole[0].tokens:
        parts = [run.tokens[stack] for run in whole]
        found.tokens[stack] = Tokens()
        ids, real = (np.concatenate([getattr(one, n) for one in parts]) for n in ("ids", "real"))
        found.tokens[stack].append(0, ids, real)
        found.tokens[stack].grid = parts[0].grid
    if len(whole) < len(runs):
        found.stopped = f"{runs[-1].stopped}; of the items, the first {found.items} are kept"
    return [found]


def _frame(run: Run) -> Any:
    """What batches must have in common, to be parts of one picture."""
    layers = [(place, *_shape(track.kept())) for place, track in run.tracks.items()]
    return layers, {stack: (tokens.size, tokens.grid) for stack, tokens in run.tokens.items()}


def _shape(kept: Kept) -> tuple[Any, ...]:
    said = {name: given for name, given in kept.options.items() if name not in _OF_ITEMS}
    arrays = (kept.query, kept.key, kept.value)
    return kept.kind, said, [(array.shape[1:], array.dtype) for array in arrays]


def _joined(parts: list[Kept]) -> Kept:
    first = parts[0]
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("query", "key", "value", "lse")
    }
    options: Options = {n: given for n, given in first.options.items() if n not in _OF_ITEMS}
    if any("ranges" in part.options for part in parts):
        pairs = [_ranges(part) for part in parts]
        begin, past = (np.concatenate(bounds) for bounds in zip(*pairs, strict=True))
        options["ranges"] = (begin, past)
    if any("mask" in part.options for part in parts):
        options["mask"] = _masks(parts)
    return replace(
        first,
        **arrays,
        options=options,
        difference=max(part.difference for part in parts),
        largest=max(part.largest for part in parts),
    )


def _ranges(kept: Kept) -> tuple[Array, Array]:
    items, _, rows, _ = kept.query.shape
    given = kept.options.get("ranges", (np.array(0), np.array(kept.key.shape[-2])))
    first, past = (np.broadcast_to(bound, (items, rows)) for bound in given)
    return first, past


def _masks(parts: list[Kept]) -> Array:
    """The masks of all items; one, if it is the same for all."""
    keys = parts[0].key.shape[-2]
    masks = [part.options.get("mask", np.ones((1, 1, 1, keys), bool)) for part in parts]
    if all(len(mask) == 1 and np.array_equal(mask, masks[0]) for mask in masks):
        found: Array = masks[0]
        return found
    shape = np.broadcast_shapes(*(mask.shape[1:] for mask in masks))
    items = [len(part.query) for part in parts]
    return np.concatenate(
        [np.broadcast_to(mask, (n, *shape)) for mask, n in zip(masks, items, strict=True)]
    )
