"""Prefill and decode steps of one attention, made into one picture over prompt and new tokens.

With a cache each step brings a few queries and all keys so far. Only what is new is kept: the
step's queries, the keys it added, and the range of keys that its rows may see. So a generation
costs memory linear in its tokens, and row i of the picture is the i-th token that was fed.
"""

from dataclasses import replace

import numpy as np

from regard.core.arguments import Array
from regard.recording.layer import Kept, bounds
from regard.recording.rules import Options

# What all steps of one attention must share.
_SAME = ("scale", "softcap", "sinks")
MANY = 64  # so many parts are put together, else each step would look through more of them


class Track:
    """One attention of a run, as it grows from step to step."""

    def __init__(self, kept: Kept) -> None:
        """Begin with a step."""
        self._parts = [kept]
        # The rows that each step has brought, and how many keys there were then.
        self.cuts = [(0, kept.query.shape[-2], kept.key.shape[-2])]

    @property
    def kind(self) -> str:
        """Encoder, decoder or cross, with a number where there are several such sequences."""
        return self._parts[0].kind

    @property
    def nbytes(self) -> int:
        """The bytes of what is kept."""
        return sum(part.nbytes for part in self._parts)

    def news(self, kept: Kept) -> slice | None:
        """Which keys of a further step are new; None if the step does not go on from the last one.

        It goes on if one key came with each query (none in cross-attention), and if the keys before
        those are the last ones that are known: all of them, or a window of them. They are compared,
        so beams that changed places, and a cache that was cut or quantised, are found out.
        """
        first, have = self._parts[0], self.cuts[-1][2]
        keys = valid_keys(kept)
        known = keys if kept.crosses else keys - kept.query.shape[-2]
        plain = not any(name in part.options for name in ("mask", "bias") for part in (first, kept))
        same = all(_equal(first.options.get(name), kept.options.get(name)) for name in _SAME)
        alike = len(kept.key) == len(first.key) and len(kept.query) == len(first.query)
        if not (plain and same and alike) or not 0 <= known <= have or (have and not known):
            return None
        if len(self._parts) > MANY:
            self.kept()
        at = known - have  # where the keys of a part are among those that the step knows
        for part in self._parts:
            size = part.key.shape[-2]
            begin, past = max(0, -at), min(size, known - at)
            old, now = part.key[..., begin:past, :], kept.key[..., begin + at : past + at, :]
            if not (np.array_equal(old, now) or np.array_equal(old, now, equal_nan=True)):
                return None
            at += size
        return slice(known, keys)

    def append(self, kept: Kept, rows: slice, new: slice) -> None:
        """Add some rows of a further step, and the keys that are new in it, as copies."""
        have = self.cuts[-1][2]
        # A window holds the last keys only: its first key is a later one of the picture.
        first, past = (bound + have - new.start for bound in ranges(kept))
        options = {name: kept.options[name] for name in _SAME if name in kept.options}
        part = replace(
            kept,
            query=kept.query[:, :, rows].copy(),
            key=kept.key[:, :, new].copy(),
            value=kept.value[:, :, new].copy(),
            lse=kept.lse[:, :, rows].copy(),
            options=options | {"ranges": (first[:, rows], past[:, rows])},
        )
        self._parts.append(part)
        begin = self.cuts[-1][1]
        self.cuts.append((begin, begin + part.query.shape[-2], have + new.stop - new.start))

    def drop(self) -> None:
        """Take the last step back."""
        self.kept()
        self.cuts.pop()
        _, past, keys = self.cuts[-1]
        self._parts = [rows_of(self._parts[0], slice(0, past), keys)]

    def kept(self) -> Kept:
        """All steps as one."""
        if len(self._parts) > 1:
            self._parts = [_joined(self._parts)]
        return self._parts[0]

    def step(self, number: int) -> Kept:
        """One step alone: its rows, and the keys there were."""
        rows, past, keys = self.cuts[number]
        whole = self.kept()
        return rows_of(whole, slice(rows, past), keys)


def valid_keys(kept: Kept) -> int:
    """How many keys there are; a static cache has room for more, which no row may see."""
    if kept.crosses or not {"ranges", "causal", "window"} & kept.options.keys():
        return int(kept.key.shape[-2])
    return max(int(bounds(kept, item)[1].max(initial=0)) for item in range(len(kept.query)))


def ranges(kept: Kept) -> tuple[Array, Array]:
    """The first and the past key of each row, (B, T) each."""
    pairs = [bounds(kept, item) for item in range(len(kept.query))]
    return np.stack([first for first, _ in pairs]), np.stack([past for _, past in pairs])


def rows_of(kept: Kept, rows: slice, keys: int) -> Kept:
    """Some rows of all items, and only the first keys; none that the rows may see is left out."""
    if rows == slice(0, kept.query.shape[-2]) and keys == kept.key.shape[-2]:
        return kept
    options: Options = {n: v for n, v in kept.options.items() if n not in ("causal", "window")}
    first, past = ranges(kept)
    options["ranges"] = (first[:, rows], past[:, rows])
    for name in ("mask", "bias"):
        if name in options:
            dense = options[name]
            dense = dense[:, :, rows] if dense.shape[2] > 1 else dense
            options[name] = dense[..., :keys] if dense.shape[3] > 1 else dense
    options["query_offset"] = kept.options.get("query_offset", 0) + rows.start
    return replace(
        kept,
        query=kept.query[:, :, rows],
        key=kept.key[:, :, :keys],
        value=kept.value[:, :, :keys],
        lse=kept.lse[:, :, rows],
        options=options,
    )


def copied(kept: Kept) -> Kept:
    """The same with arrays of its own."""
    arrays = {
        name: getattr(kept, name).copy(order="K") for name in ("query", "key", "value", "lse")
    }
    return replace(kept, **arrays)


def _joined(parts: list[Kept]) -> Kept:
    first = parts[0]
    options: Options = {n: v for n, v in first.options.items() if n not in ("causal", "window")}
    pairs = [part.options["ranges"] for part in parts[1:]]
    pairs.insert(0, ranges(first))
    begin, past = (np.concatenate(bounds, axis=-1) for bounds in zip(*pairs, strict=True))
    options["ranges"] = (begin, past)
    return replace(
        first,
        query=np.concatenate([part.query for part in parts], axis=2),
        key=np.concatenate([part.key for part in parts], axis=2),
        value=np.concatenate([part.value for part in parts], axis=2),
        lse=np.concatenate([part.lse for part in parts], axis=2),
        options=options,
        difference=max(part.difference for part in parts),
        largest=max(part.largest for part in parts),
    )


def _equal(a: object, b: object) -> bool:
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b  # type: ignore[arg-type]
