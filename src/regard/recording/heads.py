"""What each head does with a text, one row a head: where to begin in a model with hundreds of them.

`selectivity` tells heads that choose from heads that repeat themselves: it is the mean over rows of
KL(row ‖ m), where m is what all rows give on average, kept to the keys of the row. 0: every row
looks alike, whoever asks. Everything comes from one pass over the weights, item by item.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from regard.core.arguments import Array
from regard.core.tiles import Part, blocks
from regard.recording.layer import Layer
from regard.recording.run import Run
from regard.recording.words import Reader, Text

_SHARES = ("first", "special", "itself", "previous", "next", "same_token")
_NUMBERS = ("entropy", "selectivity", *_SHARES, "distance", "heaviest")
HEAD = np.dtype(
    [
        *((name, np.int64) for name in ("layer", "head")),
        *((name, np.float64) for name in _NUMBERS),
        *((name, np.int64) for name in ("item", "query", "key")),
    ]
)


class Heads(np.ndarray[Any, np.dtype[Any]]):
    """A structured array, one row a head, that can become a pandas table."""

    def to_pandas(self) -> Any:
        """The same as a `pandas.DataFrame`."""
        try:
            import pandas as pd  # type: ignore[import-untyped]
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("to_pandas() needs pandas: pip install pandas") from error
        return pd.DataFrame({name: np.asarray(self[name]) for name in HEAD.names or ()})


class Tally:
    """What the rows of one layer say, added up item by item."""

    def __init__(self, layer: Layer, own: bool) -> None:
        """`own`: rows and keys are of one sequence, so that distances mean something."""
        self.layer, self.own, self.rows = layer, own, 0
        heads = layer.shape[0]
        self.entropy, self.divergence = np.zeros(heads), np.zeros(heads)
        self.total = np.zeros(heads)
        self.shares = {name: np.zeros(heads) for name in (*_SHARES, "distance")}
        self.heaviest = np.full(heads, -1.0)
        self.place = np.full((heads, 3), -1)  # item, query, key of the heaviest link

    def add(self, layer: Layer, item: int, tokens: Array, special: Array) -> None:
        """Add an item, (H, T, S), without padding.

        Args:
            layer: the item's attention.
            item: its number.
            tokens: (S,), equal where tokens are the same.
            special: (S,), True for keys that are special tokens.
        """
        heads, rows, keys = layer.shape
        sums = layer.sums
        self.rows += rows
        self.total += sums.received.sum(axis=-1)
        self.shares["first"] += sums.received[:, :1].sum(axis=-1)
        self.shares["special"] += sums.received[:, special].sum(axis=-1)
        if self.own:
            distance = np.arange(sums.along.shape[-1]) - (rows - 1) - layer.offset
            self.shares["distance"] += sums.along @ np.abs(distance)
            for name, far in (("itself", 0), ("previous", -1), ("next", 1)):
                self.shares[name] += sums.along[:, distance == far].sum(axis=-1)
        mean = np.zeros((heads, keys))
        np.divide(sums.received, sums.seen, out=mean, where=sums.seen > 0)
        with np.errstate(divide="ignore"):
            logarithm = np.where(mean > 0, np.log(mean), 0)
        for part, some in blocks(layer.call, layer.kept.lse):
            self._choice(part, some, mean, logarithm)
            self._links(layer, item, part, some, tokens, special)

    def _choice(self, part: Part, some: slice, mean: Array, logarithm: Array) -> None:
        """Entropy of some rows, and how far they are from what all rows give on average."""
        heads, keys = part.where[-1], slice(0, mean.shape[-1])
        weights = part.tile("weights", some, keys).astype(np.float64)
        total = weights.sum(axis=-1)
        entropy = -(weights * np.log(np.where(weights > 0, weights, 1))).sum(axis=-1)
        crossed = -(weights @ logarithm[heads][..., None])[..., 0]
        allowed = part.allowed(some, keys).astype(np.float64)
        reach = (allowed @ mean[heads][..., None])[..., 0]  # what m holds of a row's keys
        with np.errstate(divide="ignore", invalid="ignore"):
            # With a sink a row adds up to less than 1: it is taken as a share of what it has.
            apart = (crossed - entropy) / total + np.log(reach / total)
        self.entropy[heads] += entropy.sum(axis=-1)
        self.divergence[heads] += np.where(total > 0, apart, 0).sum(axis=-1)

    def _links(
        self, layer: Layer, item: int, part: Part, some: slice, tokens: Array, special: Array
    ) -> None:
        """The weight on the same token elsewhere, and the heaviest link, of some rows."""
        numbers, keys = np.arange(layer.shape[0])[part.where[-1]], layer.shape[-1]
        weights = part.tile("weights", some, slice(0, keys))
        ordinary = ~special
        if self.own:
            rows = np.arange(some.start, some.stop) + layer.offset
            itself = rows[:, None] == np.arange(keys)
            same = (tokens[rows][:, None] == tokens) & ~itself
            self.shares["same_token"][numbers] += (weights * same).sum(axis=(1, 2), dtype=float)
            ordinary = ordinary & ~itself
        found = np.where(ordinary, weights, -1).reshape(len(weights), -1)
        for n, at in zip(numbers, found.argmax(axis=-1), strict=True):
            best = float(found[n - numbers[0], at])
            if best > max(self.heaviest[n], 0):
                query, key = divmod(int(at), keys)
                self.heaviest[n] = best
                self.place[n] = item, some.start + query + layer.offset, key

    def placed(self, item: int, rows: Array, keys: Array) -> None:
        """Count the padding that stood before the tokens of an item."""
        here = self.place[:, 0] == item
        self.place[here, 1] = rows[self.place[here, 1]]
        self.place[here, 2] = keys[self.place[here, 2]]

    def table(self) -> Array:
        """One row a head."""
        out = np.zeros(len(self.total), HEAD)
        out["layer"], out["head"] = self.layer.number, self.layer.heads
        with np.errstate(divide="ignore", invalid="ignore"):
            out["entropy"] = self.entropy / self.rows
            out["selectivity"] = np.maximum(self.divergence / self.rows, 0)
            for name in ("first", "special"):
                out[name] = self.shares[name] / self.rows
            for name in (*_SHARES[2:], "distance"):
                out[name] = self.shares[name] / self.rows if self.own else np.nan
            out["distance"] = self.shares["distance"] / self.total if self.own else np.nan
        out["heaviest"] = np.where(self.heaviest < 0, np.nan, self.heaviest)
        for n, name in enumerate(("item", "query", "key")):
            out[name] = self.place[:, n]
        return out


def overview(items: Sequence[Run], reader: Reader) -> Heads:
    """One row a head, over the rows of these items, which have no padding."""
    tallies: dict[int, Tally] = {}
    for item, run in enumerate(items):
        for n, layer in enumerate(run.layers):
            own = layer.kind != "cross"
            tally = tallies.setdefault(n, Tally(layer, own))
            text = run.tokens[layer.kind if own else "encoder"].texts(reader)[0]
            _, tokens = np.unique(text.tokens, return_inverse=True)
            tally.add(layer, item, tokens, never_ranked(text, layer.kind))
            tally.placed(item, *(run.places[stack] for stack in run.stacks(layer.kind)))
    found = np.concatenate([np.zeros(0, HEAD), *(tally.table() for tally in tallies.values())])
    return found.view(Heads)


def never_ranked(text: Text, kind: str, first: int = 0) -> Array:
    """Which tokens are special, or stand in for a start token that a causal model was not given."""
    special: Array = text.special.copy()
    if kind == "decoder" and len(special):
        special[first] = True
    return special
