"""`Recording`: what was seen of a model, its layers, its words, and how they read each other."""

import sys
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal

import numpy as np

from regard.core.arguments import Array
from regard.core.proof import Check
from regard.core.shown import Shown
from regard.recording.heads import Heads, never_ranked, overview
from regard.recording.layer import Layer
from regard.recording.links import LINK, Group, best, first_of, rank
from regard.recording.run import Run
from regard.recording.spans import Span, positions, rollout, table
from regard.recording.strongest import strongest
from regard.recording.words import Reader, Text, Word, WordError, find, plain, words

By = Literal["lift", "weight"]


class Recording(Shown):
    """What a model attended to: each attention a `Look`, with tokens and names.

    `regard.record` makes one, `regard.load` reads one from a file. What is asked speaks of the
    last run, unless it is asked of another one of `runs`.

    Attributes:
        model: the model's name.
        runs: a run is one outermost forward, or one generation.
        unrecorded: name of a layer -> why it was not recorded.
        reader: turns ids into texts, with the model's tokenizer where there is one.
    """

    def __init__(self, model: str, reader: Reader | None = None) -> None:
        """Begin an empty recording."""
        self.model = model
        self.runs: list[Run] = []
        self.unrecorded: dict[str, str] = {}
        self.reader = reader or Reader()
        self._single: dict[int, tuple[Run, int, Recording]] = {}

    # ------------------------------------------------------------------------------- what it is

    @property
    def run(self) -> Run:
        """The last run, which everything else speaks of."""
        if not self.runs:
            raise ValueError("nothing is recorded yet: call the model inside the `with` block")
        return self.runs[-1]

    @property
    def layers(self) -> list[Layer]:
        """The recorded attentions in the model's order, each a `Look`."""
        return self.run.named_layers(self.reader)

    def layer(self, number: int, kind: str | None = None) -> Layer:
        """The attention of a layer by the model's own number.

        Args:
            number: as the model counts.
            kind: "encoder", "decoder" or "cross", where the model has several with that number.

        Raises:
            KeyError: there is none, or there are several.
        """
        found = [x for x in self.layers if x.number == number and kind in (None, x.kind)]
        if len(found) == 1:
            return found[0]
        if not found:
            numbers = sorted({layer.number for layer in self.layers})
            raise KeyError(f"layer {number}: not recorded; there are {numbers}")
        raise KeyError(f"layer {number}: there are several: {[(x.kind, x.name) for x in found]}")

    @property
    def texts(self) -> list[Text]:
        """The text of each item, padding included: the decoder's where there are two."""
        return self.run.tokens[self.run.main].texts(self.reader)

    @property
    def tokens(self) -> list[list[str]]:
        """A list of tokens for each item, as the tokenizer names them; settable."""
        return [list(text.tokens) for text in self.texts]

    @tokens.setter
    def tokens(self, given: Sequence[Sequence[str]] | Sequence[str]) -> None:
        one = bool(given) and isinstance(given[0], str)
        lists: list[Any] = [given] if one else list(given)
        stack = self.run.tokens[self.run.main]
        if len(lists) != self.run.items or any(len(tokens) != stack.size for tokens in lists):
            raise ValueError(
                f"tokens: expected {self.run.items} lists of {stack.size}, "
                f"received lengths {[len(tokens) for tokens in lists]}"
            )
        special = [text.special for text in self.texts]
        named = [plain(list(tokens), known) for tokens, known in zip(lists, special, strict=True)]
        stack.name(named, stack.real)
        self._single.clear()

    def __repr__(self) -> str:
        if not self.runs:
            return f"Recording of {self.model}: nothing yet"
        run = self.run
        size = run.tokens[run.main].size if run.tokens else 0
        heads = {len(layer.heads) for layer in self.layers}
        lines = [
            f"Recording of {self.model}: {len(self.layers)} attentions of "
            f"{' or '.join(map(str, sorted(heads)))} heads, {run.items} × {size} tokens"
            + (f", {len(run.steps)} steps" if len(run.steps) > 1 else "")
            + (f", the last of {len(self.runs)} runs" if len(self.runs) > 1 else "")
        ]
        if self.unrecorded:
            lines.append(f"  not recorded: {', '.join(self.unrecorded)}")
        if run.parted:
            lines.append(f"  steps from {run.parted} on stand apart: the keys before them changed")
        if run.stopped:
            lines.append(f"  {run.stopped}")
        lines += [
            "  a word       ['it'], .reads(word), .read_by(word)",
            "  all words    .edges(top=100), .words(), .tokens",
            "  heads        .heads(), one row a head",
            "  layers       .layers, .layer(n).weights[item, head, query, key]",
            "  parts        .item(i), .runs, .spans({name: word or (first, past)}), .rollout(word)",
            "  elsewhere    .check(), .save(file), .show()",
        ]
        return "\n".join(lines)

    def check(self) -> Check:
        """The proof of the worst layer and step: the model's output beside what was recorded."""
        apart = [layer for step in self.run.apart for layer in self.run.layers_of_step(step)]
        checks = [layer.check() for layer in (*self.layers, *apart)]
        if not checks:
            return Check(0.0, 0.0, 0.0, of="the model")
        worst = max(checks, key=lambda check: check.relative / check.bound)
        rows = max(check.rows for check in checks)
        return Check(worst.output, worst.relative, rows, bound=worst.bound, of="the model")

    # ------------------------------------------------------------------------------- items, words

    def item(self, item: int) -> "Recording":
        """One sequence alone, without its padding.

        Raises:
            IndexError: there is no such item.
        """
        if not 0 <= item < self.run.items:
            raise IndexError(f"item {item}: expected 0..{self.run.items - 1}")
        steps = len(self.run.forwards)
        known = self._single.get(item)
        if known is None or known[0] is not self.run or known[1] != steps:
            one = Recording(self.model, self.reader)
            one.unrecorded = self.unrecorded
            one.runs = [self.run.item(item, self.reader)]
            known = self._single[item] = (self.run, steps, one)
        return known[2]

    def words(self, item: int = 0) -> list[Word]:
        """The words of an item: special tokens and padding are none."""
        real = self.run.tokens[self.run.main].real[item]
        return [w for w in words(self.texts[item], item) if real[list(w.positions)].all()]

    def special(self, item: int = 0) -> Array:
        """Which tokens are never ranked: special ones, and what stands in for a start token.

        Causal models that are given no start token put on the first token what others put there.
        """
        real = self.run.tokens[self.run.main].real[item]
        return never_ranked(self.texts[item], self.run.main, int(real.argmax()))

    def __getitem__(self, word: str) -> Word:
        """The word that a person means, all its pieces.

        `seen["it"]`; `seen["it:2"]` is the second of several. As it is written first, then
        whatever the case, then as the model's tokenizer knows it ("café" as "cafe").

        Raises:
            KeyError: no such word, or several: it lists them, each in its context.
        """
        if not isinstance(word, str):
            raise TypeError(f"expected a word such as seen['it'], received {word!r}")
        return find(word, self.texts, self.reader.normal)

    def __contains__(self, word: object) -> bool:
        try:
            return isinstance(word, str) and bool(self[word])
        except WordError as error:
            return bool(error.choices)

    # ------------------------------------------------------------------------------- links

    def reads(
        self,
        word: Word | str,
        by: By = "lift",
        each: Literal["word", "head"] = "word",
        layer: int | None = None,
        head: int | None = None,
    ) -> Array:
        """What a word reads: its links to the other words, the best first.

        Args:
            word: a `Word`, or its name.
            by: rank by "lift", the weight beyond what other rows give, or by bare "weight".
            each: one line for each "word", its best head; or for each "head", its heaviest word.
            layer: only this layer.
            head: only this head of each layer.

        Returns:
            A structured array (item, layer, head, query, key, weight, baseline, by_distance);
            query and key are the first positions of the words. Links without any lift to speak
            of (NaN: no other row could be compared) come last.
        """
        return self._around(word, by, each, layer, head, reads=True)

    def read_by(
        self,
        word: Word | str,
        by: By = "lift",
        each: Literal["word", "head"] = "word",
        layer: int | None = None,
        head: int | None = None,
    ) -> Array:
        """Which words read a word: the other way round of `reads`, with the same arguments."""
        return self._around(word, by, each, layer, head, reads=False)

    def edges(
        self,
        top: int | None = 100,
        by: By = "lift",
        layer: int | None = None,
        head: int | None = None,
    ) -> Array:
        """The strongest links between words of the run, the best first.

        Args:
            top: how many; None for all.
            by: rank by "lift" or "weight".
            layer: only this layer.
            head: only this head of each layer.

        Returns:
            A structured array (item, layer, head, query, key, weight, baseline, by_distance).
        """
        _expect("by", by, ("lift", "weight"))
        found = np.zeros(0, LINK)
        for item in range(self.run.items):
            one = self.item(item)
            groups = [word.positions for word in one.words()]
            readers = one._asking(groups)
            read = one._ranked(groups)
            for shown in one._layers(layer):
                enough = top is not None and 0 < top <= len(found)
                least = np.fmax(rank(found, by)[-1], -np.inf) if enough else -np.inf
                rows = strongest(shown, readers, read, by, top, head, least)
                found = best(np.concatenate([found, self._placed(rows, item)]), by, top)
        return found

    def _around(
        self, word: Word | str, by: By, each: str, layer: int | None, head: int | None, reads: bool
    ) -> Array:
        _expect("by", by, ("lift", "weight"))
        _expect("each", each, ("word", "head"))
        word = self[word] if isinstance(word, str) else word
        one = self.item(word.item)
        own = tuple(np.searchsorted(one.run.places[one.run.main], word.positions).tolist())
        others = [w.positions for w in one.words() if not set(w.positions) & set(own)]
        if reads:
            readers, read = [own], one._ranked(others)
        else:
            readers, read = one._asking(others), [own]
        if one._asking(readers) != readers:
            raise ValueError(f"{word.text!r}: what it reads was not recorded")
        found = [strongest(x, readers, read, by, head=head) for x in one._layers(layer)]
        rows = np.concatenate([np.zeros(0, LINK), *found])
        if each == "head":
            rows = first_of(best(rows, "weight"), ("layer", "head"))
        else:
            rows = first_of(best(rows, by), ("key",) if reads else ("query",))
        return self._placed(best(rows, by), word.item)

    def _ranked(self, groups: Sequence[Group]) -> list[Group]:
        """The words that may stand in a ranking of what is read."""
        special = self.special()
        return [group for group in groups if not special[list(group)].any()]

    # ------------------------------------------------------------------------- heads and spans

    def heads(self) -> Heads:
        """What each head does, one row a head, over all rows of the run that are no padding.

        Returns:
            A structured array with the fields

            - layer, head: the model's numbers
            - entropy: of a row's weights, in nats, on average
            - selectivity: how far a row is from what all rows give on average, the mean over rows
              of KL(row ‖ m). Near 0: the head gives the same to whoever asks
            - first, special, itself, previous, next: the share of weight on the first token, on
              special tokens, on the same position, one back, and one on
            - same_token: the share on the same token elsewhere (duplicate-token heads)
            - induction: the share on what stands right behind the same token elsewhere, which in a
              causal model is what followed it before (induction heads)
            - distance: the mean distance of the weight, in tokens
            - heaviest, item, query, key: the largest weight on a token that is neither special nor
              the row's own, and where it is; NaN and -1 where there is none

            In cross-attention what speaks of distances is NaN. `.to_pandas()` makes a table.
        """
        most = max((len(tokens.real) for tokens in self.run.tokens.values()), default=0)
        items = [self.run.item(item, self.reader) for item in range(most)]
        return overview(items, self.reader)

    def spans(self, named: Mapping[str, Span], item: int = 0) -> Array:
        """How longer stretches read each other, in every head.

        Args:
            named: name -> a `Word`, (first, past), a slice, or a list of positions.
            item: of which item the positions are.

        Returns:
            A structured array (layer, head, from, to, weight, baseline), one row for each head and
            pair of names: the weight is summed over the keys of `to` and averaged over the rows of
            `from`, the baseline is what rows outside of `from` give to `to`.

        >>> seen.spans({"question": (0, 12), "answer": (12, 40)})  # doctest: +SKIP
        """
        one = self.item(item)
        places, size = one.run.places[one.run.main], one.run.tokens[one.run.main].size
        groups = []
        for name, span in named.items():
            given = positions(span, self.run.tokens[self.run.main].size)
            inside = np.searchsorted(places, given)
            inside = inside[(inside < size) & (places[np.minimum(inside, size - 1)] == given)]
            if not len(inside):
                raise ValueError(f"{name!r}: no token of the text is in it, received {span!r}")
            groups.append(inside)
        return table(one._layers(None), list(named), groups)

    def rollout(self, of: Word | str) -> Array:
        """Attention rollout of a word: (layers, S).

        Row n says how what the word is after layer n is put together from the tokens at the
        bottom, if each layer mixes one half of its input with one half of the mean of its heads
        (Abnar and Zuidema 2020). A rough picture: values and what is between layers play no part.
        """
        word = self[of] if isinstance(of, str) else of
        one = self.item(word.item)
        layers, places = one._layers(None), one.run.places[one.run.main]
        if any(layer.offset or layer.shape[-2] != layer.shape[-1] for layer in layers):
            raise ValueError("rollout needs all rows of all layers; some were not recorded")
        found = rollout(layers, np.searchsorted(places, word.positions).tolist())
        out = np.zeros((len(layers), self.run.tokens[self.run.main].size))
        out[:, places] = found
        return out

    # ------------------------------------------------------------------------------- elsewhere

    def save(self, path: str | PathLike[str]) -> None:
        """Write the last run into one safetensors file; `regard.load` reads it."""
        from regard.recording.file import save

        save(self, path)

    # --------------------------------------------------------------------------------- inside

    def _layers(self, number: int | None) -> list[Layer]:
        """The self-attentions of the stack that the words are of."""
        own = [layer for layer in self.layers if layer.kind == self.run.main]
        if number is None:
            return own
        found = [layer for layer in own if layer.number == number]
        if not found:
            numbers = sorted({layer.number for layer in own})
            raise ValueError(f"layer: expected one of {numbers}, received {number}")
        return found

    def _asking(self, groups: Sequence[Group]) -> list[Group]:
        """The words whose rows were recorded in all layers."""
        rows = [(layer.offset, layer.offset + layer.shape[-2]) for layer in self._layers(None)]
        first = max((first for first, _ in rows), default=0)
        past = min((past for _, past in rows), default=sys.maxsize)
        return [group for group in groups if first <= min(group) and max(group) < past]

    def _placed(self, rows: Array, item: int) -> Array:
        """Rows of one item as rows of the run: with its number, and padding counted."""
        places = self.item(item).run.places[self.run.main]
        rows["item"] = item
        for name in ("query", "key"):
            rows[name] = places[rows[name]]
        return rows


def _expect(name: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        wanted = " or ".join(repr(one) for one in known)
        raise ValueError(f"{name}: expected {wanted}, received {given!r}")
