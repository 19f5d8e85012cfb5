"""Longer stretches: how spans read spans, and a word followed down through all layers."""

from collections.abc import Sequence

import numpy as np

from regard.core.arguments import Array
from regard.core.indexing import positions_of
from regard.core.tiles import blocks
from regard.recording.layer import Layer
from regard.recording.words import Word

Span = Word | int | Sequence[int] | slice | tuple[int, int]


def positions(span: Span, size: int) -> Array:
    """The positions that a span means, sorted; a pair (first, past) is a range."""
    if isinstance(span, tuple) and len(span) == 2:
        span = slice(*span)
    return np.unique(positions_of(span, size, "span"))


def between(layer: Layer, groups: Sequence[Array]) -> tuple[Array, Array]:
    """How much each group of positions reads each: weight and baseline, (H, n, n).

    The weight is summed over the keys of one group and averaged over the rows of the other. The
    baseline sums what each key gets on average from rows outside of the reading group; keys that
    no such row may see are left out, NaN where that is all of them.
    """
    heads, rows, keys = layer.shape
    reading = np.zeros((len(groups), rows))
    for n, group in enumerate(groups):
        inside = group - layer.offset
        reading[n, inside[(inside >= 0) & (inside < rows)]] = 1
    received = np.zeros((heads, len(groups), keys))
    seen = np.zeros((heads, len(groups), keys))
    for part, some in blocks(layer.call, layer.kept.lse):
        every = slice(0, keys)
        received[part.where] += reading[:, some] @ part.tile("weights", some, every)
        seen[part.where] += reading[:, some] @ part.allowed(some, every)
    sums = layer.sums
    others, count = sums.received[:, None] - received, sums.seen[:, None] - seen
    mean = np.full(others.shape, np.nan)
    np.divide(np.maximum(others, 0), count, out=mean, where=count > 0)
    size = np.maximum(reading.sum(axis=-1), 1)[:, None]
    weight, baseline = (np.zeros((heads, len(groups), len(groups))) for _ in range(2))
    for n, group in enumerate(groups):
        part_mean = mean[..., group]
        weight[..., n] = received[..., group].sum(axis=-1) / size[:, 0]
        baseline[..., n] = np.where(
            np.isnan(part_mean).all(axis=-1), np.nan, np.nansum(part_mean, axis=-1)
        )
    return weight, baseline


def table(layers: Sequence[Layer], names: Sequence[str], groups: Sequence[Array]) -> Array:
    """One row for each head and pair of groups: layer, head, from, to, weight, baseline."""
    text = f"U{max(map(len, names), default=1) or 1}"
    fields = [("layer", "i8"), ("head", "i8"), ("from", text), ("to", text)]
    kind = np.dtype([*fields, ("weight", "f8"), ("baseline", "f8")])
    tables = [np.zeros(0, kind)]
    for layer in layers:
        rows = np.zeros((len(layer.heads), len(groups), len(groups)), kind)
        rows["layer"], rows["head"] = layer.number, layer.heads[:, None, None]
        rows["from"], rows["to"] = np.array(names)[:, None], np.array(names)
        rows["weight"], rows["baseline"] = between(layer, groups)
        tables.append(rows.reshape(-1))
    return np.concatenate(tables)


def rollout(layers: Sequence[Layer], positions: Sequence[int]) -> Array:
    """Attention rollout of a word, after each layer: (layers, S).

    Row n says how the word's state after layer n is put together from the tokens at the bottom, if
    each layer mixes half its input with half the mean of its heads (Abnar and Zuidema 2020).
    """
    size = layers[0].shape[-1]
    start = np.zeros(size)
    start[list(positions)] = 1 / len(positions)
    mixed = np.zeros((len(layers), size))
    for n in reversed(range(len(layers))):
        layer = layers[n]
        mixed[n] = start
        read = np.zeros((len(layers) - n, size))
        for part, some in blocks(layer.call, layer.kept.lse):
            weights = part.tile("weights", some, slice(0, size)).sum(axis=0, dtype=np.float64)
            read += mixed[n:, some] @ weights / layer.shape[0]
        mixed[n:] = (mixed[n:] + read) / 2
    return mixed
