"""Anything at all as an argument: an answer, the textbook's, or a TypeError or ValueError.

Never another exception, never a crash, whatever objects, dtypes, layouts and numbers come in.
tests/test_call.py has what is nearly right; here is also what no one would mean.
"""

import datetime
import warnings
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import regard

FLOATS = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]
ARGUMENTS = [
    "mask", "bias", "causal", "window", "query_offset", "key_lengths", "segments", "ranges",
    "softcap", "sinks", "scale", "dropout", "seed", "precision",
]  # fmt: skip


class Indexed:
    def __index__(self):
        return 3


class Floated:
    def __float__(self):
        return 0.5


class Arrayed:
    def __array__(self, dtype=None, copy=None):
        return np.ones((2, 3), np.float32)


class Liar:
    """Says that it is an array, and breaks."""

    shape, ndim, dtype = (2, 3), 2, np.dtype("f4")

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("no array after all")


class Subclass(np.ndarray):
    pass


def structured() -> np.ndarray:
    return np.zeros((2, 3), [("a", "f4"), ("b", "i2")])


def ring() -> list:
    ring: list = []
    ring.append(ring)
    return ring


NONSENSE = [
    None, True, False, 0, 1, -1, 3, 2**31, 2**63, -(2**63), 2**64, 10**400, 0.0, -0.0, 0.5, -1.5,
    1e308, 1e-320, float("inf"), float("-inf"), float("nan"), 1j, "", "causal", "1", b"\0", (), [],
    {}, set(), (None, None), (0, None), (None, 1), (1, 2, 3), (2**70, 0), (-1, 0), ("a", "b"),
    [None], [[]], [[1], [1, 2]], [["a"]], [True], [1.5, "x"], range(3), range(0), object(), int,
    print, Ellipsis, NotImplemented, slice(None), Decimal("0.5"), Fraction(1, 2),
    datetime.date(2020, 2, 2), Indexed(), Floated(), Arrayed(), Liar(), np.float32(0.5),
    np.float64("nan"), np.int8(-1), np.uint64(2**64 - 1), np.bool_(True), np.str_("x"),
    np.datetime64("2020-02-02"), np.array(2.0), np.array(2), np.array(None), np.array("x"),
    np.array([]), np.zeros((0, 0)), np.zeros((1,) * 32), np.zeros((1,) * 33), np.ones(3, complex),
    np.ones((2, 3), object), np.ones((2, 3), "S1"), np.ones((2, 3), "M8[s]"),
    np.ones((2, 3), np.longdouble), np.ones((2, 3), ml_dtypes.float8_e4m3fn),
    np.ones((2, 3), ml_dtypes.int4), np.ma.ones((2, 3)), structured(),
    np.ones((2, 3)).view(Subclass), np.broadcast_to(np.float32(1), (2, 3)), memoryview(b"abc"),
    bytearray(6), np.array([2**63], np.uint64), np.array([[-(2**63)]]), iter([1.0]),
    (x for x in [1.0]), ring(),
]  # fmt: skip


def laid_out(array: np.ndarray, how: int) -> np.ndarray:
    """The same numbers in another layout: in reverse, every other, columns first, swapped bytes."""
    if array.ndim == 0:
        return array
    if how == 1:
        return array[..., ::-1].copy()[..., ::-1]
    if how == 2:
        return np.repeat(array, 2, axis=-1)[..., ::2]
    if how == 3:
        return np.asfortranarray(array)
    if how == 4:
        return array.astype(array.dtype.newbyteorder()) if array.dtype.kind in "fi" else array
    if how == 5:
        return np.frombuffer(b"\0" + array.tobytes(), array.dtype, offset=1).reshape(array.shape)
    if how == 6:
        return np.broadcast_to(array[:1], array.shape) if array.shape[0] else array
    return array.tolist() if how == 7 and array.dtype == np.float64 else array


@st.composite
def anything(draw):
    """Three arrays and any options; each argument is right, or right but odd, or nonsense."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    batch = tuple(draw(st.sampled_from([(), (), (1,), (2,), (2, 3), (0,)])))
    groups, rows, keys = (draw(st.sampled_from(x)) for x in ([1, 2, 0], [1, 5, 2, 0], [3, 7, 1, 0]))
    heads, width, wide = groups * draw(st.integers(1, 3)), *random.integers([1, 0], 9)
    dtype = draw(st.sampled_from(FLOATS))
    nonsense = draw(st.sampled_from([0.0, 0.0, 0.03, 0.3]))

    def numbers(*shape, kind=dtype):
        array = random.standard_normal(shape) * random.choice([1, 1, 1, 30])
        return laid_out(array.astype(kind), int(random.integers(0, 12)))

    def integers(low, high, *shape):
        kind = random.choice([np.int64, np.int64, np.int32, np.uint8])
        return laid_out(
            random.integers(max(low, 0) if kind is np.uint8 else low, high, shape, kind), 4
        )

    full = (*batch, heads, rows, keys)
    right = {
        "mask": lambda: laid_out(random.random(full) < 0.7, int(random.integers(0, 4))),
        "bias": lambda: numbers(*full[int(random.integers(0, 2)) :], kind=random.choice(FLOATS)),
        "causal": lambda: bool(random.integers(2)),
        "window": lambda: tuple(int(n) for n in random.integers(0, 9, 2)),
        "query_offset": lambda: integers(-9, 9, *batch) if random.integers(2) else 10**30,
        "key_lengths": lambda: integers(0, keys + 1, *batch),
        "segments": lambda: (integers(0, 3, *batch, rows), integers(0, 3, *batch, keys)),
        "ranges": lambda: tuple(integers(0, keys + 1, 2, *batch, rows)),
        "softcap": lambda: random.choice([0.1, 5, 1e6, 2**40]),
        "sinks": lambda: numbers(heads, kind=random.choice(FLOATS)),
        "scale": lambda: random.choice([0, -1, 0.3, 1e-40]),
        "dropout": lambda: random.choice([0, 0.5]),
        "seed": lambda: int(random.integers(2**63)),
        "precision": lambda: "highest",
    }
    arrays = [
        numbers(*batch, heads, rows, width),
        numbers(*batch, groups, keys, width),
        numbers(*batch, groups, keys, wide),
    ]
    options = {
        name: right[name]() for name in draw(st.sets(st.sampled_from(ARGUMENTS), max_size=5))
    }
    if {"causal", "window"} & options.keys():
        options.setdefault("query_offset", 0)
    if "dropout" in options:
        options.setdefault("seed", 7)
    for i in range(3):
        if random.random() < nonsense / 3:
            arrays[i] = NONSENSE[random.integers(len(NONSENSE))]
    for name in options:
        if random.random() < nonsense:
            options[name] = NONSENSE[random.integers(len(NONSENSE))]
    return arrays, options


def fault(arrays: list, options: dict) -> str | None:
    """What is wrong with the answer or refusal that these arguments get."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, of ragged lists and odd casts
        try:
            output, lse = regard.attention(*arrays, **options, return_lse=True)
        except (TypeError, ValueError) as error:
            return None if str(error) else "an error without words"
        judge = regard.steps(*arrays, **options)
    assert output.shape == judge.output.shape
    assert lse.shape == judge.lse.shape
    eps = float(ml_dtypes.finfo(output.dtype).eps)
    largest = max((np.abs(part).max(initial=1) for part in (judge.output, judge.value)), default=1)
    scores = np.abs(judge.biased[judge.allowed & np.isfinite(judge.biased)]).max(initial=1)
    # Scores are float32 or wider; what their rounding does to a weight grows with their size.
    wide = 2.0**-52 if output.dtype == np.float64 else 2.0**-23
    within = (
        (4 * eps + 64 * wide * min(scores, 1e4)) * largest * (2 if options.get("dropout") else 1)
    )
    np.testing.assert_allclose(output.astype(np.float64), judge.output, rtol=0, atol=within)
    np.testing.assert_allclose(lse, judge.lse, rtol=8 * wide, atol=64 * wide * scores)
    return None


@settings(max_examples=400)
@given(anything())
def test_anything(soup):
    assert fault(*soup) is None


@pytest.mark.long
@pytest.mark.timeout(1800)
@settings(max_examples=20_000, derandomize=False, database=None, print_blob=True)
@given(anything())
def test_anything_for_minutes(soup):
    assert fault(*soup) is None
