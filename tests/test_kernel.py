"""The kernel's own door: it reads halves exactly, and nothing outside its arrays, whoever calls.

`regard.attention` checks every argument before; this is for whoever comes to the kernel directly.
Whole problems of any shape are the work of kernel/tests/, in C++.
"""

import ml_dtypes
import numpy as np
import pytest

import regard
from regard import _kernel

pytestmark = pytest.mark.usefixtures("kernel")

HALVES = [np.float16, ml_dtypes.bfloat16]
every_half = pytest.mark.parametrize("dtype", HALVES, ids=["float16", "bfloat16"])

H, G, T, S, D, V = 6, 3, 5, 7, 11, 2
RULE = (0.25, 0.0, *[None] * 10, 0)
PLACES = [
    "scale", "softcap", "mask", "bias", "sinks", "lower", "upper", "lengths", "first", "past",
    "query_segments", "key_segments", "row_offset",
]  # fmt: skip


def ones(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


def rule(**given) -> tuple:
    return tuple(given.get(name, value) for name, value in zip(PLACES, RULE, strict=True))


# ---------------------------------------------------------------------------- half types


@every_half
def test_every_half_is_read_and_written_exactly(dtype):
    """A row that sees one key gives its value back: all 65,536 of them, NaN as NaN."""
    value = np.arange(2**16, dtype=np.uint16).view(dtype).reshape(1, 1, -1)
    query = ones(1, 1, 1, dtype=dtype)
    output = regard.attention(query, query, value)
    numbers = ~np.isnan(value.astype(np.float32))
    assert np.array_equal(np.isnan(output), ~numbers)
    # 0 · weight may lose the sign of a zero; nothing else may change.
    assert np.array_equal(output[numbers].astype(float), value[numbers].astype(float))


@every_half
def test_halves_are_rounded_to_nearest_and_ties_to_even(dtype):
    """The mean of two neighbours lies in the middle, and goes to the even one, as in ml_dtypes."""
    bits = np.arange(2**15 - 1, dtype=np.uint16)
    low, high = bits.view(dtype), (bits + 1).astype(np.uint16).view(dtype)
    finite = np.isfinite(high.astype(np.float32))
    pair = np.stack([low[finite], high[finite]])[None]  # two keys, a column for each pair
    expected = pair.astype(np.float64).mean(axis=1)
    if dtype is ml_dtypes.bfloat16:  # the sum of two of the largest is beyond float32
        keep = np.abs(expected[0]) < 1e38
        pair, expected = pair[..., keep], expected[:, keep]
    query = np.zeros((1, 1, 1), dtype)
    key = np.zeros((1, 2, 1), dtype)
    output = regard.attention(query, key, pair)
    normal = expected >= 1e-37  # below, float32's own subnormals decide
    assert np.array_equal(output[0][normal], expected.astype(dtype)[normal])


# ---------------------------------------------------------------------------- refusals


def forward(**changed):
    arrays = {
        "query": ones(2, H, T, D), "key": ones(2, G, S, D), "value": ones(2, G, S, V),
        "output": ones(2, H, T, V), "lse": ones(2, H, T),
    }  # fmt: skip
    limits = {name: changed.pop(name) for name in list(changed) if name in PLACES}
    return _kernel.forward(*(arrays | changed).values(), *rule(**limits), 0.0, 0, False)


def whole(*shape: int) -> np.ndarray:
    return np.ones(shape, np.int64)


def true(*shape: int) -> np.ndarray:
    return np.ones(shape, np.bool_)


WRONG = {
    "query": [ones(H, T), ones(2, H, T, D + 1), ones(2, 5, T, D), ones(2, H, T, D, dtype=np.int32)],
    "key": [ones(2, G, S, D - 1), ones(3, G, S, D), ones(G, S), ones(2, 4, S, D), ones(2, 0, S, D)],
    "value": [ones(2, G, S - 1, V), ones(2, H, S, V), ones(V), ones(2, G, S, V, dtype=np.float64)],
    "output": [ones(2, H, T, V + 1), ones(1, H, T, V), ones(H, T, V), ones(2, H, T - 1, V)],
    "lse": [ones(2, H, T + 1), ones(H, T), ones(2, H, T, 1), ones(2, H, T, dtype=np.float16)],
    "mask": [ones(T, S), true(T, S + 1), true(3, 1, T, S), true(2, 2, T, S)],
    "bias": [ones(T + 1, S), ones(2, 4, T, S), true(T, S), whole(T, S)],
    "sinks": [ones(H), np.ones(H + 1), np.ones((2, H)), np.float64(1)],
    "lower": [whole(3), whole(2, 2), np.ones(2, np.int32)],
    "upper": [whole(3), ones(2)],
    "lengths": [whole(3), whole(2, 1, 2)],
    "first": [whole(2, T + 1), whole(3, T), whole(S)],
    "past": [whole(2, T - 1), whole(4)],
    "query_segments": [whole(2, T)],  # without the keys'
    "key_segments": [whole(2, S)],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "number"), [(name, i) for name, wrong in WRONG.items() for i in range(len(wrong))]
)
def test_the_kernel_refuses_what_does_not_fit(name, number):
    with pytest.raises((TypeError, ValueError)):
        forward(**{name: WRONG[name][number]})


@pytest.mark.parametrize(
    ("rows", "keys", "row_begin", "key_begin"),
    [(T + 1, 2, 0, 0), (2, S + 1, 0, 0), (2, 2, T - 1, 0), (2, 2, 0, S - 1), (2, 2, -1, 0),
     (2, 2, 0, -1), (2, 2, 2**63 - 2, 0), (2, 2, 0, 2**63 - 2)],
)  # fmt: skip
def test_a_tile_outside_of_the_table_is_refused(rows, keys, row_begin, key_begin):
    query, key, out = ones(H, T, D), ones(G, S, D), ones(H, rows, keys)
    with pytest.raises(ValueError, match="outside"):
        _kernel.tile("scores", query, key, None, out, row_begin, key_begin, *RULE)


def test_a_tile_of_weights_needs_lse():
    with pytest.raises(ValueError, match="lse"):
        _kernel.tile("weights", ones(H, T, D), ones(G, S, D), None, ones(H, 1, 1), 0, 0, *RULE)


def test_outputs_that_may_not_be_written_are_refused():
    output = ones(2, H, T, V)
    output.flags.writeable = False
    with pytest.raises((TypeError, ValueError)):
        forward(output=output)


def test_limits_beyond_the_keys_only_clip():
    """Whatever the numbers, no key outside is read: bounds are cut to the keys there are."""
    expected = regard.steps(ones(2, H, T, D), ones(2, G, S, D), ones(2, G, S, V)).output
    for far in (2**40, 10**6, S + 1):
        output = ones(2, H, T, V)
        edges = {"lower": whole(2) * -far, "upper": whole(2) * far, "lengths": whole(2) * far}
        forward(output=output, **edges, first=whole(2, T) * -far, past=whole(2, T) * far)
        np.testing.assert_allclose(output, expected, rtol=1e-6)


# ---------------------------------------------------------------------------- empty calls

EMPTY = [
    (0, 3, 3, 5, 7, 2), (2, 0, 0, 5, 7, 2), (2, 0, 3, 5, 7, 2), (2, 6, 3, 0, 7, 2),
    (2, 6, 3, 5, 0, 2), (2, 6, 3, 5, 7, 0), (2, 6, 3, 0, 0, 0), (0, 0, 0, 0, 0, 0),
]  # fmt: skip


@pytest.mark.parametrize(("items", "heads", "groups", "rows", "keys", "wide"), EMPTY)
def test_empty_calls(items, heads, groups, rows, keys, wide):
    query, key = ones(items, heads, rows, D), ones(items, groups, keys, D)
    value = ones(items, groups, keys, wide)
    output, lse = regard.attention(query, key, value, return_lse=True)
    assert output.shape == (items, heads, rows, wide)
    assert lse.shape == (items, heads, rows)
    assert not output.size or not (output.any() or keys)
    assert keys or (lse == -np.inf).all()
