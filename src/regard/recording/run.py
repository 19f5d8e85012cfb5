"""One run of a model: all its attentions, the tokens they are about, and the steps it took."""

from collections.abc import Iterable, Sequence

import numpy as np

from regard.core.arguments import Array
from regard.recording.layer import Kept, Layer, cut, reached, stacks
from regard.recording.stitch import Track, copied
from regard.recording.words import Reader, Text, patches

# An attention is known by its module, and by how often the module was called before in a forward.
Place = tuple[str, int]


class Tokens:
    """The tokens of one stack of layers (encoder or decoder): ids and padding, step by step."""

    def __init__(self) -> None:
        self.size = 0
        self.grid: tuple[int, int] | None = None  # rows and columns of an image's patches
        self._begins: list[tuple[int, int]] = []  # of each step: its number, its first position
        self._ids: list[Array] = []
        self._real: list[Array] = []
        self._texts: list[Text] | None = None

    def append(self, step: int, ids: Array, real: Array) -> None:
        """Add a step's tokens: (B, T) ids, -1 where unknown, and whether each is no padding."""
        self._begins.append((step, self.size))
        self._ids.append(ids)
        self._real.append(real)
        self.size += ids.shape[1]
        self._texts = None

    def drop_from(self, step: int) -> None:
        """Forget the tokens of this step and later ones."""
        size = min([self.size, *(begin for number, begin in self._begins if number >= step)])
        self._ids = [np.concatenate(self._ids, axis=1)[:, :size]]
        self._real = [self.real[:, :size]]
        self.size, self._texts = size, None

    @property
    def ids(self) -> Array:
        """(B, T), -1 where unknown."""
        self._ids = [np.concatenate(self._ids, axis=1)]
        return self._ids[0]

    @property
    def real(self) -> Array:
        """(B, T), False for padding."""
        self._real = [np.concatenate(self._real, axis=1)]
        return self._real[0]

    def texts(self, reader: Reader) -> list[Text]:
        """The text of each item, padding included."""
        if self._texts is None:
            self._texts = [
                patches(self.size, *self.grid)
                if self.grid
                else reader.text(None if (ids < 0).all() else ids.tolist(), self.size)
                for ids in self.ids
            ]
        return self._texts

    def name(self, texts: Sequence[Text], real: Array | None = None) -> "Tokens":
        """Set the texts themselves."""
        self.size = len(texts[0]) if texts else 0
        self._texts = list(texts)
        if real is not None or not self._real:
            self._real = [np.ones((len(texts), self.size), bool) if real is None else real]
        return self


class Step:
    """One forward of a run."""

    def __init__(self, run: "Run", number: int) -> None:
        self._run, self.number = run, number

    @property
    def layers(self) -> list[Layer]:
        """The attentions of this forward alone: its rows, and the keys there were."""
        return self._run.layers_of_step(self.number)

    def __repr__(self) -> str:
        shapes = sorted({layer.shape for layer in self.layers})
        return f"Step {self.number}: {len(self.layers)} attentions of {shapes}"


class Run:
    """One outermost forward of a model, or one generation.

    Attributes:
        stopped: why recording ended before the run did; empty if it did not.
        parted: the first step that does not go on from the one before it; 0 if all do.
    """

    def __init__(self, tracks: Iterable[tuple[Place, Track]] = ()) -> None:
        self.tracks = dict(tracks)
        self.tokens: dict[str, Tokens] = {}  # by the kind of layer: encoder, decoder
        # Steps that could not be joined, by number: each is a cut of a track that began later.
        self.apart: dict[int, dict[Place, tuple[Track, int]]] = {}
        self.later: dict[Place, Track] = {}  # the last such tracks, which further steps may go on
        self.forwards: list[dict[Place, int]] = []  # for each step: which cut of which track
        self.stopped, self.parted = "", 0
        self.places: dict[str, Array] = {}  # of one item: where its tokens stood in the batch
        self._layers: list[Layer] | None = None

    def begin_step(self) -> None:
        """A further forward begins."""
        self.forwards.append({})

    def add(self, place: Place, track: Track) -> None:
        """Add an attention of the forward that is under way, with which a track begins."""
        if place in self.tracks:
            self.later[place] = track
        else:
            self.tracks[place] = track
        self.grow(place)

    def grow(self, place: Place) -> None:
        """Note that an attention went on in the forward that is under way."""
        if place in self.later:
            track = self.later[place]
            self.apart.setdefault(len(self.forwards) - 1, {})[place] = track, len(track.cuts) - 1
        else:
            self.forwards[-1][place] = len(self.tracks[place].cuts) - 1
        self._layers = None

    def track(self, place: Place) -> Track | None:
        """What a further step of an attention may go on with."""
        return (self.later if self.parted else self.tracks).get(place)

    def part(self) -> None:
        """From the forward that is under way on, nothing is joined with what was before."""
        self.parted = len(self.forwards) - 1
        taken = self.take_back()
        self.forwards.append({})
        for place, kept in taken.items():
            self.later[place] = Track(kept)
            self.grow(place)

    def take_back(self) -> dict[Place, Kept]:
        """Take the forward that is under way out of the picture, so that all layers agree.

        Returns:
            What it had brought so far, each attention alone.
        """
        taken = {}
        for track, place_cut in self.apart.pop(len(self.forwards) - 1, {}).values():
            if place_cut:
                track.drop()
        for place in self.forwards.pop():
            track = self.tracks[place]
            taken[place] = copied(track.step(len(track.cuts) - 1))
            if len(track.cuts) > 1:
                track.drop()
            else:
                del self.tracks[place]
        for tokens in self.tokens.values():
            tokens.drop_from(len(self.forwards))
        self._layers = None
        return taken

    @property
    def nbytes(self) -> int:
        """The bytes of what is kept."""
        apart = {id(track): track for step in self.apart.values() for track, _ in step.values()}
        return sum(track.nbytes for track in (*self.tracks.values(), *apart.values()))

    @property
    def main(self) -> str:
        """The sequence that words are looked up in: the decoder's where there is one, else a text.

        Only sequences that attend to themselves count, so far as there are any.
        """
        own = {track.kind for track in self.tracks.values()} & self.tokens.keys()
        found = [stack for stack in self.tokens if stack in own] or list(self.tokens)
        texts = [stack for stack in found if not self.tokens[stack].grid] or found
        decoders = [stack for stack in texts if stack.startswith("decoder")]
        return (decoders or texts or ["encoder"])[0]

    @property
    def items(self) -> int:
        """How many sequences ran side by side."""
        return len(self.tokens[self.main].real) if self.tokens else 0

    @property
    def alone(self) -> bool:
        """Whether this is one item of a run, whose arrays have no batch axis."""
        return any(track.kept().query.ndim == 3 for track in self.tracks.values())

    @property
    def steps(self) -> list[Step]:
        """The forwards of this run, in order."""
        return [Step(self, number) for number in range(len(self.forwards))]

    @property
    def layers(self) -> list[Layer]:
        """Each attention over all steps that could be joined, in the model's order."""
        if self._layers is None:
            self._layers = [self._layer(track.kept()) for track in self.tracks.values()]
        return self._layers

    def named_layers(self, reader: Reader) -> list[Layer]:
        """The same with tokens as labels, if there is one item."""
        for layer in self.layers:
            if self.items == 1 and layer.query_labels is None:
                rows, keys = (
                    self.tokens[stack].texts(reader)[0].tokens for stack in stacks(layer.kind)
                )
                some = rows[layer.offset :][: layer.shape[-2]]
                if (len(some), len(keys)) == layer.shape[-2:]:
                    layer.labels(some, keys)
        return self.layers

    def layers_of_step(self, number: int) -> list[Layer]:
        """The attentions of one forward."""
        found = [
            self._layer(self.tracks[place].step(place_cut))
            for place, place_cut in self.forwards[number].items()
        ]
        apart = self.apart.get(number, {}).values()
        return found + [self._layer(track.step(place_cut)) for track, place_cut in apart]

    def item(self, item: int, reader: Reader) -> "Run":
        """One sequence alone, without its padding; its arrays have no batch axis.

        Where there are several sequences with unlike numbers of items, it has those that have so
        many.
        Padding that the model did read, though it was told not to, stays: no weight gets lost.
        """
        if self.alone:
            found = Run((place, track) for place, track in self.tracks.items())
            found.tokens, found.forwards = self.tokens, self.forwards
            found.places = {kind: np.arange(one.size) for kind, one in self.tokens.items()}
            return found
        kept_tokens = {
            kind: tokens.real[item].copy()
            for kind, tokens in self.tokens.items()
            if item < len(tokens.real)
        }
        inside = {p: t for p, t in self.tracks.items() if stacks(t.kind)[0] in kept_tokens}
        for track in inside.values():
            rows, keys = stacks(track.kind)
            kept_tokens[keys] |= reached(track.kept(), item, self.tokens[rows].real[item])
        real = {kind: np.flatnonzero(kept) for kind, kept in kept_tokens.items()}
        tracks = []
        for place, track in inside.items():
            kept = track.kept()
            rows, keys = stacks(kept.kind)
            offset, count = _offset(kept), kept.query.shape[-2]
            at = real[rows] - offset
            of_rows = at[(at >= 0) & (at < count)]
            before = int(np.count_nonzero(at < 0))
            tracks.append((place, Track(cut(kept, item, of_rows, real[keys], before))))
        found = Run(tracks)
        found.forwards = [{place: 0 for place, _ in tracks}]
        found.places = real
        for kind, positions in real.items():
            tokens = self.tokens[kind]
            found.tokens[kind] = Tokens().name([tokens.texts(reader)[item].part(positions)])
            found.tokens[kind].grid = tokens.grid if len(positions) == tokens.size else None
        return found

    def _layer(self, kept: Kept) -> Layer:
        rows, _ = stacks(kept.kind)
        real = None
        if rows in self.tokens and kept.query.ndim == 4:
            real = self.tokens[rows].real[:, _offset(kept) :][:, : kept.query.shape[-2]]
            real = None if real.shape[1] < kept.query.shape[-2] or real.all() else real
        return Layer(kept, real)


def _offset(kept: Kept) -> int:
    """The position of the first row that was kept."""
    return int(np.max(kept.options.get("query_offset", 0), initial=0))
