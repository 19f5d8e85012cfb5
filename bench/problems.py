"""What is computed: one attention problem, its inputs, and the truth in float64 of some of it.

A problem is a few sizes and a name for the rule of who may attend. Its arrays are made from a fixed
seed wherever they are needed, so that every peer, in whatever process, gets the same numbers.
"""

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
WINDOW = 256  # keys that a row may see, its own the last of them


@dataclass(frozen=True)
class Problem:
    """Shapes are (B, H, T, D) and (B, G, S, D), as in the library; self-attention mostly."""

    batch: int
    heads: int
    rows: int
    keys: int
    width: int
    key_heads: int = 0  # 0: as many as heads
    dtype: str = "float32"
    causal: bool = False
    rule: str = ""  # or mask, bias, window, segments, padding
    backward: bool = False

    @property
    def groups(self) -> int:
        return self.key_heads or self.heads

    @property
    def name(self) -> str:
        heads = f"{self.batch}×{self.heads}" + f"/{self.key_heads}" * bool(self.key_heads)
        name = f"{heads} heads, {self.rows}×{self.keys}, D {self.width}"
        rule = f"window {WINDOW}" if self.rule == "window" else self.rule
        for part in (rule, "causal" * self.causal, self.dtype.removeprefix("float32")):
            name += f", {part}" * bool(part)
        return name

    @property
    def pairs(self) -> int:
        """How many weights there are, of all items and heads: only what may be attended."""
        allowed = self.allowed()
        if allowed is None:
            return self.batch * self.heads * self.rows * self.keys
        whole = math.prod((self.batch, self.heads, self.rows, self.keys)) // allowed.size
        return int(allowed.sum()) * whole

    @property
    def operations(self) -> float:
        """Floating-point operations of the products: two forward, five more backward."""
        return self.pairs * self.width * (14 if self.backward else 4)

    @property
    def bytes_of_keys(self) -> int:
        """Of keys and values: what a decoding step must read at least."""
        return 2 * self.batch * self.groups * self.keys * self.width * self.numbers.itemsize

    @property
    def numbers(self) -> np.dtype:
        return np.dtype(ml_dtypes.bfloat16 if self.dtype == "bfloat16" else self.dtype)

    def inputs(self) -> list[Array]:
        """Query, key and value."""
        random = np.random.default_rng(0)
        sizes = ((self.heads, self.rows), (self.groups, self.keys), (self.groups, self.keys))
        drawn = (
            random.standard_normal((self.batch, h, n, self.width), np.float32) for h, n in sizes
        )
        return [array.astype(self.numbers, copy=False) for array in drawn]

    def gradient(self) -> Array:
        """Of some loss by the output, for the backward pass."""
        shape = (self.batch, self.heads, self.rows, self.width)
        return np.random.default_rng(1).standard_normal(shape, np.float32)

    def segments(self) -> NDArray[np.int64]:
        """(T,): sequences of 128 to 1023 tokens, packed into one."""
        lengths = np.random.default_rng(2).integers(128, 1024, self.rows // 128 + 1)
        return np.repeat(np.arange(lengths.size), lengths)[: self.rows]

    def lengths(self) -> NDArray[np.int64]:
        """(B,): how many keys of each item are no padding; an eighth at least."""
        return np.random.default_rng(3).integers(self.keys // 8, self.keys + 1, self.batch)

    def bias(self) -> NDArray[np.float32]:
        """(H, T, S), as of relative positions."""
        shape = (self.heads, self.rows, self.keys)
        return np.random.default_rng(4).standard_normal(shape, np.float32)

    def allowed(self) -> NDArray[np.bool_] | None:
        """Who may attend, dense, to broadcast against (B, H, T, S); None: all."""
        i, j = np.arange(self.rows)[:, None], np.arange(self.keys)
        if self.rule == "mask":
            return np.random.default_rng(5).random((self.rows, self.keys)) < 0.9
        if self.rule == "window":
            return (j <= i) & (j > i - WINDOW)
        if self.rule == "segments":
            return self.segments()[:, None] == self.segments()
        if self.rule == "padding":
            return (j < self.lengths()[:, None])[:, None, None]
        return j <= i if self.causal else None

    # ------------------------------------------------------------------------- the truth of some

    def sample(self, output: list[Array]) -> list[Array]:
        """What is judged: 64 rows of up to 8 heads of an output; of gradients all of two heads."""
        if self.backward:
            return [np.asarray(a[0, [0, -1]], np.float32) for a in output]
        return [np.asarray(output[0][0][np.ix_(self._heads(), self._rows())], np.float32)]

    def truth(self) -> list[Array]:
        """The same of the right answer, in float64."""
        heads = np.array([0, self.heads - 1]) if self.backward else self._heads()
        rows = np.arange(self.rows) if self.backward else self._rows()
        groups = heads // (self.heads // self.groups)
        query, key, value = (a[0].astype(np.float64) for a in self.inputs())
        query, key, value = query[heads][:, rows], key[groups], value[groups]
        scores = query @ key.swapaxes(-1, -2) / math.sqrt(self.width)
        if self.rule == "bias":
            scores += self.bias()[np.ix_(heads, rows)]
        if (allowed := self.allowed()) is not None:
            allowed = np.broadcast_to(allowed, (self.batch, 1, self.rows, self.keys))
            scores = np.where(allowed[0, :, rows].swapaxes(0, 1), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output = weights @ value
        if not self.backward:
            return [output]
        gradient = self.gradient()[0, heads].astype(np.float64)
        by_weight = gradient @ value.swapaxes(-1, -2)
        by_score = weights * (by_weight - (gradient * output).sum(axis=-1, keepdims=True))
        by_score /= math.sqrt(self.width)
        return [
            by_score @ key,
            by_score.swapaxes(-1, -2) @ query,
            weights.swapaxes(-1, -2) @ gradient,
        ]

    def _rows(self) -> NDArray[np.int64]:
        return np.unique(np.linspace(0, self.rows - 1, 64).astype(int))

    def _heads(self) -> NDArray[np.int64]:
        return np.unique(np.linspace(0, self.heads - 1, 8).astype(int))


def error(found: list[Array], truth: list[Array]) -> dict[str, float]:
    """Largest and root-mean-square difference, both over the truth's root mean square."""
    off = [(f - t).ravel() / np.sqrt((t**2).mean()) for f, t in zip(found, truth, strict=True)]
    all_off = np.abs(np.concatenate(off))
    return {"largest": float(all_off.max()), "rms": float(np.sqrt((all_off**2).mean()))}
