"""Small calls that are easy to get wrong, with the right answers.

`CASES` are calls; what they must answer stands in cases.json, computed once in float64 by a program
that shares nothing with this project. Each comment says which mistake its case would show.
`GRADIENTS` likewise hold the gradients of sum(output × cotangent), and `REFUSED` must raise.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

ANSWERS = json.loads((Path(__file__).parent / "cases.json").read_text())

# How near is near enough, (relative, absolute).
TOLERANCE = {"float32": (2e-5, 2e-6), "float16": (2e-3, 2e-3), "bfloat16": (1.6e-2, 1.6e-2)}


@dataclass
class Case:
    name: str
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    options: dict[str, Any] = field(default_factory=dict)
    tolerance: tuple[float, float] | None = None
    cotangent: np.ndarray | None = None

    @property
    def inputs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.query, self.key, self.value

    def answer(self, what: str) -> np.ndarray:
        """The "output", the "weights", or the gradient of an argument, in float64."""
        shape, numbers = ANSWERS[self.name][what]
        return np.array([np.nan if x is None else x for x in numbers]).reshape(shape)

    def __post_init__(self) -> None:
        self.tolerance = self.tolerance or TOLERANCE[self.query.dtype.name]


def normal(seed: int, *shapes: tuple[int, ...], dtype: Any = np.float32, spread: float = 1.0):
    """One array for each shape, the same on every machine."""
    random = np.random.default_rng(seed)
    arrays = [(spread * random.standard_normal(shape)).astype(dtype) for shape in shapes]
    return arrays if len(arrays) > 1 else arrays[0]


def where(shape: tuple[int, ...], value: bool, *places: Any) -> np.ndarray:
    """A mask of the opposite, with this value in some places."""
    mask = np.full(shape, not value)
    for place in places:
        mask[place] = value
    return mask


def masks():
    # A softmax over nothing is 0 / 0, or the mean of all values; it must be 0.
    qkv = normal(101, (2, 2, 5, 3), (2, 2, 4, 3), (2, 2, 4, 6))
    mask = where((2, 1, 5, 4), False, np.s_[0, 0, 3:], np.s_[1, 0, 0], np.s_[1, 0, :, 2])
    yield Case("rows that may attend nothing", *qkv, {"mask": mask})

    # Neither the mask nor the order empties the first rows alone.
    qkv = normal(102, *[(2, 2, 6, 4)] * 3)
    mask = where((2, 1, 1, 6), False, np.s_[0, ..., :2])
    yield Case("padding on the left, in causal order", *qkv, {"mask": mask, "causal": True})

    # A mask read the other way round attends everything else.
    qkv = normal(103, (1, 2, 4, 5), (1, 2, 6, 5), (1, 2, 6, 3))
    mask = where((1, 1, 4, 6), True, np.s_[0, 0, range(4), [5, 0, 3, 3]])
    yield Case("a single key in each row", *qkv, {"mask": mask})

    # As a bias of 0 · inf, True would be NaN.
    qkv = normal(104, (2, 3, 4, 5), (2, 3, 7, 5), (2, 3, 7, 2))
    yield Case("a mask of nothing but True", *qkv, {"mask": np.full((2, 1, 4, 7), True)})

    # One row of keys for all items, heads and queries of five axes.
    qkv = normal(105, (3, 2, 4, 7, 6), (3, 2, 4, 5, 6), (3, 2, 4, 5, 8))
    yield Case("one key mask for five axes", *qkv, {"mask": np.array([[[1, 1, 0, 1, 0]]]) == 1})

    # NaN plus a large negative number is still NaN.
    q, k, v = normal(106, (1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4))
    k[0, :, 2] = np.nan
    mask = where((1, 1, 1, 5), False, np.s_[..., 2])
    yield Case("NaN behind a mask", q, k, v, {"mask": mask})

    # Sequences packed into one must not mix.
    qkv = normal(107, *[(1, 2, 13, 5)] * 3, dtype=ml_dtypes.bfloat16)
    block = np.repeat([0, 1, 2, 3], [4, 3, 5, 1])
    yield Case("unequal blocks in bfloat16", *qkv, {"mask": block[:, None] == block})


def biases():
    # An ordinary softmax of equal scores, which powers of two or sums make -inf, then NaN.
    qkv = normal(111, (1, 2, 3, 4), (1, 2, 4, 4), (1, 2, 4, 3))
    bias = np.zeros((1, 1, 3, 4), np.float32)
    bias[0, 0, 0], bias[0, 0, 1, 1:] = [np.finfo(np.float32).min] * 2
    yield Case("the lowest finite bias is no mask", *qkv, {"bias": bias})

    # -inf - -inf is NaN in a plain softmax.
    qkv = normal(112, (2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 4))
    bias = normal(113, (2, 1, 3, 5))
    bias[0, 0, 0, [1, 4]] = bias[1, 0, 2] = -np.inf
    yield Case("a bias of minus infinity", *qkv, {"bias": bias})

    # A bias must not be taken for a mask of its entries that are not 0.
    qkv = normal(114, *[(2, 2, 4, 4)] * 3)
    yield Case("a bias without a zero", *qkv, {"bias": normal(115, (2, 2, 4, 4)), "causal": True})

    # A large scale tells a bias added after it from one added before.
    qkv = normal(116, (1, 3, 4, 2), (1, 3, 6, 2), (1, 3, 6, 4))
    yield Case("the bias is not scaled", *qkv, {"bias": normal(117, (3, 4, 6)), "scale": 2.5})

    # The output stays narrow.
    qkv = normal(118, (1, 2, 4, 8), (1, 2, 5, 8), (1, 2, 5, 8), dtype=np.float16)
    yield Case("a wide bias on narrow inputs", *qkv, {"bias": normal(119, (1, 1, 4, 5))})


def orders():
    # The newest query stands at the last key.
    qkv = normal(121, (2, 2, 1, 4), (2, 2, 8, 4), (2, 2, 8, 4))
    yield Case("one new query and a cache", *qkv, {"causal": True, "query_offset": 7})

    # The diagonal is allowed.
    qkv = normal(122, (2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 7))
    yield Case("a square in causal order", *qkv, {"causal": True})

    # A window needs no other mask beside it.
    yield Case("a window alone", *normal(123, *[(1, 2, 7, 3)] * 3), {"window": (1, 1)})

    # (2, 0) is three keys: two before and the query's own, each with a third of the weight.
    zeros = np.zeros((1, 1, 6, 2), np.float32)
    options = {"causal": True, "window": (2, 0)}
    yield Case(
        "a window counts the query itself once", zeros, zeros, normal(124, (1, 1, 6, 2)), options
    )

    # Capped after the bias, minus infinity would be a finite score.
    qkv = normal(125, (1, 2, 4, 4), (1, 2, 5, 4), (1, 2, 5, 4), spread=3.0)
    bias = np.float32([[[[-1, 9, -1, -np.inf, -1]]]])
    yield Case("the soft cap comes before the bias", *qkv, {"bias": bias, "softcap": 4.0})

    # 65 keys leave a ragged end in any tile.
    q, k = normal(126, (1, 1, 3, 4), (1, 1, 65, 4), spread=0.3)
    ones = np.ones((1, 1, 65, 2), np.float32)
    yield Case("a soft cap and a ragged end", q, k, ones, {"softcap": 2.0})


def shapes():
    # The values tell which key head was read: 0 0 1 1 2 2, not 0 1 2 0 1 2.
    q, k = normal(131, (1, 6, 3, 4), (1, 3, 5, 4))
    v = np.broadcast_to(np.float32([1, 10, 100]).reshape(1, 3, 1, 1), (1, 3, 5, 2))
    yield Case("groups of heads are consecutive", q, k, v)

    # A shared head is repeated over heads, not over positions.
    qkv = normal(132, (2, 4, 3, 5), (2, 1, 6, 5), (2, 1, 6, 5))
    yield Case("one key head for all", *qkv, {"causal": True, "query_offset": 3})

    # The output has the value's width; the scale is of the query's.
    yield Case("narrow values", *normal(133, (2, 2, 4, 9), (2, 2, 5, 9), (2, 2, 5, 3)))

    # A width that is padded inside still has its own scale.
    yield Case("a width of seven", *normal(134, *[(1, 2, 5, 7)] * 3), {"causal": True})

    yield Case("an empty batch", *normal(135, (0, 2, 4, 3), (0, 2, 5, 3), (0, 2, 5, 6)))
    qkv = normal(136, (2, 2, 0, 3), (2, 2, 5, 3), (2, 2, 5, 6))
    yield Case("no queries", *qkv, {"causal": True, "query_offset": 5})

    # Views, as projections leave them; read as if contiguous they mix heads and positions.
    qkv = normal(137, (2, 5, 3, 4), (2, 7, 3, 4), (2, 7, 3, 4))
    yield Case("views with heads and positions swapped", *(x.swapaxes(1, 2) for x in qkv))

    yield Case(
        "one item's keys for all items", *normal(138, (3, 2, 4, 5), (1, 2, 6, 5), (1, 2, 6, 5))
    )


def numbers():
    # q · k is 230400 before scaling, beyond float16; two scores differ by less than it resolves.
    q, k = np.full((1, 1, 2, 64), 60, np.float16), np.full((1, 1, 3, 64), 60, np.float16)
    k[0, 0, 1, 0], k[0, 0, 2] = 59.875, -60
    v = normal(141, (1, 1, 3, 4), dtype=np.float16)
    yield Case("a dot product beyond float16", q, k, v)

    # In float16 a running sum of 4096 weights of 2⁻¹² stops at one half.
    q, v = np.zeros((1, 1, 2, 4), np.float16), np.ones((1, 1, 4096, 2), np.float16)
    k = normal(142, (1, 1, 4096, 4), dtype=np.float16)
    yield Case("a long mean in float16", q, k, v)

    # Only keys beyond 65536.
    qkv = normal(143, (1, 1, 1, 4), (1, 1, 70_000, 4), (1, 1, 70_000, 2))
    mask = (np.arange(70_000) >= 65_536)[None]
    yield Case("seventy thousand keys", *qkv, {"mask": mask}, tolerance=(1e-4, 1e-5))

    # A negative scale has no square root.
    qkv = normal(144, (1, 2, 4, 4), (1, 2, 5, 4), (1, 2, 5, 4))
    yield Case("a negative scale", *qkv, {"scale": -0.7})


def gradients():
    # NaN that is repaired after the softmax comes back in its gradient.
    q, k, v, cotangent = normal(151, (2, 2, 4, 3), (2, 2, 5, 3), (2, 2, 5, 4), (2, 2, 4, 4))
    mask = where((2, 1, 4, 5), False, np.s_[0, 0, 1], np.s_[1, 0, :, :2])
    name = "gradient with a row that may attend nothing"
    yield Case(name, q, k, v, {"mask": mask}, (1e-4, 1e-5), cotangent)

    # A shared key head collects the gradients of its whole group.
    q, k, v, cotangent = normal(152, (1, 4, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4), (1, 4, 3, 4))
    options = {"causal": True, "bias": normal(153, (4, 1, 3))}
    yield Case("gradient of shared heads", q, k, v, options, (1e-4, 1e-5), cotangent)


def refused():
    # Three query heads cannot share four key heads.
    qkv = normal(161, (1, 3, 2, 4), (1, 4, 5, 4), (1, 4, 5, 4))
    yield Case("heads that do not divide", *qkv), ValueError
    # Zeros and ones would be added as a bias and mask nothing.
    qkv = normal(162, *[(1, 2, 4, 4)] * 3)
    yield Case("a mask of floats", *qkv, {"mask": np.tri(4, dtype=np.float32)}), TypeError


CASES = [*masks(), *biases(), *orders(), *shapes(), *numbers()]
GRADIENTS = [*gradients()]
REFUSED = [*refused()]
