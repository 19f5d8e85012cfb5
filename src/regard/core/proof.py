"""The proof that the weights which are shown give the output that was computed."""

from typing import NamedTuple

import numpy as np

from regard.core.arguments import BFLOAT16, Array
from regard.core.call import Call
from regard.core.tiles import Part, blocks

# By the dtype of the call: what still counts as the same, relative to the largest output.
BOUNDS = {
    np.dtype(np.float64): 1e-11,
    np.dtype(np.float32): 1e-5,
    np.dtype(np.float16): 2.0**-9,
    BFLOAT16: 2.0**-6,
}


class _Differences(NamedTuple):
    output: float
    relative: float
    rows: float


class Check(_Differences):
    """How far rebuilt weights · values are from the output, and what that means in one line.

    Attributes:
        output: the largest difference of an element of the output.
        relative: the same over the largest element.
        rows: the largest difference of a row's sum of weights from 1 - sink.
        bound: up to which `relative` and `rows` count as the same; it depends on the dtype.
        of: whose output it was, for the line: "the model" or "the output".
        renormalised: the weights are those of a changed call, such as `Look.without` makes.

    >>> print(Check(3e-7, 2.8e-7, 1e-7))
    matches the output to 3·10⁻⁷
    >>> print(Check(0.2, 0.5, 0.0))
    not verified: differs by 0.5 of the largest output
    """

    bound: float
    of: str
    renormalised: bool

    def __new__(
        cls,
        output: float,
        relative: float,
        rows: float,
        *,
        bound: float = 1e-5,
        of: str = "the output",
        renormalised: bool = False,
    ) -> "Check":
        """Keep the three differences as floats, and beside them how to read them."""
        self = super().__new__(cls, float(output), float(relative), float(rows))
        self.bound, self.of, self.renormalised = bound, of, renormalised
        return self

    @property
    def verified(self) -> bool:
        """Whether the weights that are shown are those that were used."""
        return self._near and not self.renormalised

    @property
    def _near(self) -> bool:
        return self.relative <= self.bound and self.rows <= self.bound

    def __str__(self) -> str:
        if self.relative > self.bound:
            line = f"not verified: differs by {_short(self.relative)} of the largest output"
        elif self.rows > self.bound:
            line = f"not verified: weights of a row miss their sum by {_short(self.rows)}"
        elif self.renormalised:
            return "renormalised, not the model's"
        elif self.relative == 0:
            line = f"matches {self.of} exactly"
        else:
            line = f"matches {self.of} to {_short(self.relative)}"
        return f"renormalised, not the model's; {line}" if self.renormalised else line


def _short(number: float) -> str:
    """One digit, as people write it: 0.02, 3·10⁻⁷."""
    if number >= 1e-3 or number == 0:
        return f"{number:.1g}"
    digit, power = f"{number:.0e}".split("e")
    return f"{digit}·10" + str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def differences(
    call: Call, lse: Array, sink: Array, output: Array, real: Array | None
) -> tuple[float, float, float]:
    """Rebuilt weights · V against the output, and sums of rows against 1 - sink, at their worst.

    The first as it is, the second over the largest output, the third of the sums. An output that
    is finite where it should not be, or the other way round, differs by infinity.
    """
    worst = largest = worst_sum = 0.0
    for part, rows in blocks(call, lse):
        weights = part.tile("weights", rows, slice(0, call.shape[-1])).astype(np.float64)
        # A row that is not finite has no sum; an empty one has 0, or its sink.
        lse = part.lse[:, rows]
        expected = np.where(np.isfinite(lse), 1 - sink[part.where][:, rows], np.nan)
        expected[np.isneginf(lse)] = 0
        given = output[part.where][:, rows].astype(np.float64)
        apart = _apart(given, _combined(part, rows, weights))
        off = _apart(weights.sum(axis=-1), expected)
        if real is not None:
            kept = real[part.where[:-1]][rows]
            given, apart, off = given[:, kept], apart[:, kept], off[:, kept]
        sizes = np.abs(given[np.isfinite(given)])
        worst = max(worst, apart.max(initial=0))
        largest = max(largest, sizes.max(initial=0))
        worst_sum = max(worst_sum, off.max(initial=0))
    return worst, worst / (largest or 1.0), worst_sum


def _combined(part: Part, rows: slice, weights: Array) -> Array:
    """Weights · V of some rows, where each key head serves its group of query heads."""
    heads, count, keys = weights.shape
    value = part.value.astype(np.float64)
    grouped = weights.reshape(len(value), heads // len(value) * count, keys)
    finite = np.isfinite(value)
    if finite.all():
        return (grouped @ value).reshape(heads, count, -1)
    # A value that may not be attended never matters; one that may be shows, whatever its weight.
    out = (grouped @ np.where(finite, value, 0)).reshape(heads, count, -1)
    allowed = np.broadcast_to(part.allowed(rows, slice(0, keys)), weights.shape)
    spoilt = allowed.reshape(grouped.shape).astype(np.float64) @ ~finite
    out[spoilt.reshape(out.shape) > 0] = np.nan
    return out


def _apart(a: Array, b: Array) -> Array:
    """|a - b|; 0 where both are not finite, infinity where only one is."""
    finite = np.isfinite(a) & np.isfinite(b)
    out = np.where(np.isfinite(a) == np.isfinite(b), 0.0, np.inf)
    np.subtract(a, b, out=out, where=finite)
    return np.abs(out)
