"""What each head does with a text, one row a head: where to begin in a model with hundreds of them.

`selectivity` tells heads that choose from heads that repeat themselves: it is the mean over rows of
KL(row ‖ m), where m is what all rows give on average, kept to the keys of the row. 0: every row
looks alike, whoever asks. Everything comes from one pass over the weights, item by item.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from regard.core import passes, summaries
from regard.core.arguments import Array
from regard.core.passes import Sums
from regard.core.tiles import blocks
from regard.recording.heaviest import heaviest
from regard.recording.layer import Layer, bounds, stacks
from regard.recording.run import Place, Run
from regard.recording.words import Reader, Text

_SHARES = ("first", "special", "itself", "previous", "next", "same_token", "induction")
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
        rows, same = layer.shape[-2], np.zeros((len(layer.heads), 2))
        own = tokens[layer.offset :][:rows]
        # One pass, with the tokens; whoever asks for the layer's sums next is given the same.
        layer.sums = sums = passes.sums(
            layer.call, layer.kept.lse, None, (own, tokens, same) if self.own else None
        )
        self.rows += rows
        self.total += sums.received.sum(axis=-1)
        self.shares["first"] += sums.received[:, :1].sum(axis=-1)
        self.shares["special"] += sums.received[:, special].sum(axis=-1)
        if self.own:
            distance = np.arange(sums.along.shape[-1]) - (rows - 1) - layer.offset
            self.shares["distance"] += sums.along @ np.abs(distance)
            before, itself, behind = (
                sums.along[:, distance == far].sum(axis=-1) for far in (-1, 0, 1)
            )
            self.shares["previous"] += before
            self.shares["itself"] += itself
            self.shares["next"] += behind
            # A row's token stands at the row too; only its other places are meant.
            self.shares["same_token"] += np.maximum(same[:, 0] - itself, 0)
            self.shares["induction"] += np.maximum(same[:, 1] - behind, 0)
        self.entropy += sums.entropy.sum(axis=-1)
        self.divergence += _divergence(layer, sums)
        self._heaviest_link(layer, item, special)

    def _heaviest_link(self, layer: Layer, item: int, special: Array) -> None:
        """The heaviest link on a key that is neither special nor the row's own."""
        found = heaviest(layer, special, self.own)
        more = found.weight > np.maximum(self.heaviest, 0)
        self.heaviest[more] = found.weight[more]
        place = np.stack([np.full(len(more), item), found.row + layer.offset, found.key], axis=-1)
        self.place[more] = place[more]

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


def _divergence(layer: Layer, sums: Sums) -> Array:
    """Σ over rows of KL(row ‖ m), (H,): Σ w ln w - Σ w ln m + ln M, where M is m's sum for the row.

    No weight is needed one by one for that: -Σ w ln w is the row's entropy, and over all rows the
    weight on a key is what the key received.
    """
    mean = np.zeros(sums.received.shape)
    np.divide(sums.received, sums.seen, out=mean, where=sums.seen > 0)
    lse = layer.kept.lse
    if layer.call.rule.sinks is not None:
        # A row adds up to less than 1, what the sink left: it is taken as a share of that.
        with np.errstate(divide="ignore", invalid="ignore"):
            shared = lse + np.log1p(-summaries.sink(layer.call, lse))
        lse = np.where(np.isfinite(shared), shared, np.inf)
        sums = passes.sums(layer.call, lse, None)
    with np.errstate(divide="ignore"):
        crossed = (sums.received * np.where(mean > 0, np.log(mean), 0)).sum(axis=-1)
        reach = np.log(_reach(layer, mean))
    counted = np.where(np.isfinite(lse) & np.isfinite(reach), reach, 0)
    found: Array = counted.sum(axis=-1) - sums.entropy.sum(axis=-1) - crossed
    return found


def _reach(layer: Layer, mean: Array) -> Array:
    """What m holds of each row's keys: (H, T)."""
    rule, (_, _, keys) = layer.call.rule, layer.shape
    dense = [array for array in (rule.mask, rule.bias) if array is not None and array.shape[-2] > 1]
    if not dense and rule.query_segments is None:
        # Keys that a mask keeps from every row have no part in m, so ranges say it all.
        first, past = bounds(layer.kept, 0)
        before = np.zeros((len(mean), keys + 1))
        np.cumsum(mean, axis=-1, out=before[:, 1:])
        within: Array = before[:, past] - before[:, first]
        return within
    out = np.zeros(layer.shape[:2])
    for part, rows in blocks(layer.call, layer.kept.lse):
        heads = part.where[-1]
        allowed = part.allowed(rows, slice(0, keys)).astype(np.float64)
        out[heads, rows] = (allowed @ mean[heads][..., None])[..., 0]
    return out


def overview(items: Sequence[Run], reader: Reader) -> Heads:
    """One row a head, over the rows of these items, which have no padding."""
    tallies: dict[Place, Tally] = {}
    for item, run in enumerate(items):
        texts = {stack: tokens.texts(reader)[0] for stack, tokens in run.tokens.items()}
        ids = {stack: np.unique(t.tokens, return_inverse=True)[1] for stack, t in texts.items()}
        for place, layer in zip(run.tracks, run.layers, strict=True):
            own, stack = not layer.kept.crosses, stacks(layer.kind)[1]
            tally = tallies.setdefault(place, Tally(layer, own))
            tally.add(layer, item, ids[stack], never_ranked(texts[stack], layer.kind))
            tally.placed(item, *(run.places[stack] for stack in stacks(layer.kind)))
    found = np.concatenate([np.zeros(0, HEAD), *(tally.table() for tally in tallies.values())])
    return found.view(Heads)


def never_ranked(text: Text, kind: str, first: int = 0) -> Array:
    """Which tokens are special, or stand in for a start token that a causal model was not given."""
    special: Array = text.special.copy()
    if kind.startswith("decoder") and len(special):
        special[first] = True
    return special
