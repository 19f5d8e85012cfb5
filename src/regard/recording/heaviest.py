"""The heaviest link of each head, without computing every weight once more.

How far a row is spread is known: its entropy. That says how large one of its weights can be. If a
row gives its n keys M together, and p to one of them, the rest is spread evenly at the most, so
the entropy is at most -p ln p - (M - p) ln((M - p) / (n - 1)); and one of its weights is at least
exp(-entropy / M). So rows are looked at in the order of what they promise, and no row that cannot
hold a heavier link than the one that was found.
"""

from typing import NamedTuple

import numpy as np

from regard.core import passes
from regard.core.arguments import Array
from regard.core.call import Call, check
from regard.recording.layer import Layer, bounds
from regard.recording.rules import Options

FEW = 256  # so many rows are looked at in one go
FIRST = 64  # of longer texts so many at first, then twice as many as before
# Entropy and sums of rows are exact to about 1e-6; this much is left for that.
_SPREAD, _MASS = 1e-4, 1e-5


class Heaviest(NamedTuple):
    """The heaviest link of each head, (H,) each; weight -1 where there is none."""

    weight: Array
    row: Array
    key: Array


def heaviest(layer: Layer, special: Array, own: bool) -> Heaviest:
    """The heaviest link of each head on a key that is neither special nor the row's own.

    Args:
        layer: an attention of one item.
        special: (S,), True for keys that are special tokens.
        own: whether rows and keys are of one sequence.
    """
    heads, rows, keys = layer.shape
    if not heads or not rows or not keys:
        return Heaviest(np.full(heads, -1.0), np.full(heads, -1), np.full(heads, -1))
    if rows <= FEW:
        return _among(layer.call, layer.kept.lse, special, np.arange(rows), layer.offset, own)
    mass, entropy = _left(layer, special)
    first, past = bounds(layer.kept, 0)
    found = []
    for head in range(heads):
        most, left = np.maximum(past - first, 2), np.ones(rows, bool)
        best, size = (-1.0, rows, -1), FIRST
        order = np.argsort(entropy[head] / mass[head], kind="stable")
        while len(some := order[left[order]][:size]):
            left[some], size = False, 2 * size
            some.sort()
            call = _rows(layer, head, some, first[some], past[some])
            lse = layer.kept.lse[head : head + 1, some]
            (weight,), (row,), (key,) = _among(call, lse, special, some, layer.offset, own)
            if (weight, -row) > (best[0], -best[1]):
                best = weight, row, key
            left &= _may_hold(best[0], mass[head], entropy[head], most)
        found.append(best)
    weights, row, key = map(np.array, zip(*found, strict=True))
    there = np.flatnonzero(key >= 0)
    # Of few rows scores may be multiplied otherwise; what is said is what the layer shows there.
    weights[there] = layer.weights[there, row[there], key[there]]
    return Heaviest(weights, row, key)


def _among(call: Call, lse: Array, special: Array, rows: Array, offset: int, own: bool) -> Heaviest:
    """The heaviest links of a call whose rows are these of the text."""
    if special.any():
        # The lse is that of all keys, so leaving some out of the ranking changes no weight.
        rule, others = call.rule, ~special[None, None]
        call = call._replace(
            rule=rule._replace(mask=others if rule.mask is None else rule.mask & others)
        )
    weights, keys = passes.strongest(call, lse, 2)
    fits = (keys >= 0) & (weights == weights)
    if own:
        fits &= keys != (rows + offset)[:, None]
    heads = np.arange(len(keys))
    weights, keys = (x.reshape(len(heads), -1) for x in (np.where(fits, weights, -1), keys))
    best = weights.argmax(axis=-1)
    return Heaviest(weights[heads, best].astype(float), rows[best // 2], keys[heads, best])


def _left(layer: Layer, special: Array) -> tuple[Array, Array]:
    """What rows give to keys that are not special, and what of their entropy is of those keys.

    The second is at least so much: what special keys get is spread evenly at the most.
    """
    lse = layer.kept.lse
    mass = np.where(np.isneginf(lse), 0, 1 - layer.sink)
    entropy = layer.sums.entropy
    if special.any():
        of_special = layer.mass(np.flatnonzero(special))
        mass = mass - of_special
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = of_special * np.log(of_special / np.count_nonzero(special))
        entropy = entropy + np.where(of_special > 0, spread, 0)
    return np.maximum(mass, 0) + _MASS, entropy - _SPREAD


def _may_hold(weight: float, mass: Array, entropy: Array, keys: Array) -> Array:
    """Which rows may give a key this weight or more; those that are not finite may not."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rest = mass - weight
        spread = -weight * np.log(weight) - np.where(rest > 0, rest * np.log(rest / (keys - 1)), 0)
        even: Array = weight * keys <= mass  # then the bound says nothing
        return (rest >= 0) & (even | (entropy <= spread)) if weight > 0 else np.isfinite(entropy)


def _rows(layer: Layer, head: int, rows: Array, first: Array, past: Array) -> Call:
    """Some rows of one head, as a call of its own; they see the keys first <= key < past."""
    kept = layer.kept
    options: Options = {n: kept.options[n] for n in ("scale", "softcap") if n in kept.options}
    for name in ("mask", "bias"):
        if name in kept.options:
            dense = kept.options[name]
            dense = dense[head : head + 1] if dense.shape[-3] > 1 else dense
            options[name] = dense[..., rows, :] if dense.shape[-2] > 1 else dense
    group = head // (len(kept.query) // len(kept.key))
    key, value = (x[group : group + 1] for x in (kept.key, kept.value))
    return check(kept.query[head : head + 1, rows], key, value, ranges=(first, past), **options)
