"""Which sequences the attentions of a forward are about: texts, images, or what is made of them.

A model may have several: encoder and decoder, a tower for images beside one for texts, or stages
that put patches together. Each is a stack of tokens of the run, named by the kind of its layers:
"encoder", "decoder", and from the second on "encoder 2".
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import count

import numpy as np

from regard.core.arguments import Array
from regard.recording.frame import Frame
from regard.recording.layer import stacks
from regard.recording.rules import Options
from regard.recording.run import Run, Tokens


class Sequences:
    """The sequences of the forward that is under way."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A further forward begins."""
        self.real: dict[str, Array] = {}  # of each: which of its rows are no padding, (B, T)
        self._of: dict[str, tuple[Frame, Array | None]] = {}  # the forward it was met in, its ids

    def note(
        self,
        run: Run,
        frames: Sequence[Frame],
        kind: str,
        query: Array,
        key: Array,
        options: Options,
        padding: Array | None,
        crossing: bool,
    ) -> str:
        """Note what an attention's rows are of, and its keys where they are another sequence's.

        Args:
            run: the run it belongs to.
            frames: the forwards that are under way, the outermost first.
            kind: encoder, decoder or cross.
            query: (B, H, T, D).
            key: (B, G, S, D).
            options: the further arguments of the call.
            padding: (B, T), which rows are real, where the call itself says so.
            crossing: whether the model has an encoder and a decoder; then what was given to one is
                not what the other reads.

        Returns:
            The kind, with a number where the sequence is a further one of that kind.
        """
        items, rows, keys, frame = len(query), query.shape[-2], key.shape[-2], frames[-1]
        ids = frame, lambda: _ids(frames, items, rows, crossing)
        for found in _names(kind):
            stack, read = stacks(found)
            tokens = run.tokens.get(read)
            fits = kind != "cross" or tokens is None or tokens.real.shape == (items, keys)
            if fits and self._is(stack, (items, rows), *ids):
                break
        if stack not in self.real:
            self._of[stack] = frame, ids[1]()
            self._add(run, frame, stack, (items, rows), options, padding, kind)
            if self._of[stack][1] is None and kind != "cross" and not run.parted:
                run.tokens[stack].grid = run.tokens[stack].grid or _grid(frames, items, rows)
        if read not in run.tokens:
            mask = frame.plane("encoder_attention_mask", items, keys)
            real = np.ones((items, keys), bool) if mask is None else mask != 0
            named, beams = np.full((items, keys), -1), run.tokens.get("encoder")
            if beams is not None and beams.size == keys and not items % len(beams.real):
                # A search with beams reads each item of the encoder several times, side by side.
                named = np.repeat(beams.ids, items // len(beams.real), axis=0)
            run.tokens[read] = Tokens()
            run.tokens[read].append(len(run.forwards) - 1, named, real)
            self.real[read], self._of[read] = real, (frame, None)
        return found

    def _is(
        self, stack: str, shape: tuple[int, int], frame: Frame, ids: Callable[[], Array | None]
    ) -> bool:
        """Whether rows are of this sequence: not met yet in this forward, or the same there."""
        if stack not in self.real:
            return True
        before, known = self._of[stack]
        if self.real[stack].shape != shape or frame is before:
            return self.real[stack].shape == shape
        own = ids()
        same = own is None if known is None else own is not None and np.array_equal(own, known)
        return bool(same)

    def _add(
        self,
        run: Run,
        frame: Frame,
        stack: str,
        shape: tuple[int, int],
        options: Options,
        padding: Array | None,
        kind: str,
    ) -> None:
        """Add this forward's tokens to a sequence."""
        items, rows = shape
        mask = frame.plane("attention_mask", items, rows)
        real = np.ones((items, rows), bool) if mask is None else mask != 0
        if padding is not None:
            real = padding
        elif mask is None and "ranges" in options and kind != "cross":
            # Only a whole mask was handed over; rows of padding may attend nothing in it.
            first, past = options["ranges"]
            real = np.broadcast_to(past > first, (items, rows))
        self.real[stack] = real[:, -rows:]
        # Of what a cache held before recording began, only the padding is known.
        new = rows if stack in run.tokens else real.shape[1]
        ids, named = self._of[stack][1], np.full((items, new), -1)
        if ids is not None:
            named[:, -rows:] = ids[:, -rows:]
        if not run.parted:
            step = len(run.forwards) - 1
            run.tokens.setdefault(stack, Tokens()).append(step, named, real[:, -new:])


def _names(base: str) -> Iterator[str]:
    yield base
    yield from (f"{base} {n}" for n in count(2))


def _ids(frames: Sequence[Frame], items: int, rows: int, crossing: bool) -> Array | None:
    """The token ids of a sequence; where a forward was given vectors, those of the one around."""
    for frame in reversed(frames):
        ids = frame.ids(items, rows)
        if ids is not None or crossing or not frame.has_vectors(items, rows):
            return ids
    return None


def _grid(frames: Sequence[Frame], items: int, rows: int) -> tuple[int, int] | None:
    """The grid of patches that a sequence is, where an image was given to a forward."""
    for frame in reversed(frames):
        grid = frame.grid(rows)
        if grid or not frame.has_vectors(items, rows):
            return grid
    return None
