"""Few query rows on many keys, as in decoding: keys are cut into parts, which are joined again."""

import numpy as np
import pytest
from near import judged

import regard

S = 4211  # several parts, and a ragged last one


def call(seed: int, heads: int, groups: int, rows: int, width: int, columns: int, dtype="float32"):
    rng = np.random.default_rng(seed)
    shapes = (2, heads, rows, width), (2, groups, S, width), (2, groups, S, columns)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


OPTIONS = {
    "plain": {},
    "causal": {"causal": True, "query_offset": S - 1},
    "lengths that leave out parts": {"key_lengths": [1031, 4]},
    "an item without keys": {"key_lengths": [0, S]},
    "a window within a part": {"window": (300, 0), "query_offset": 2500},
    "a mask": {"mask": np.random.default_rng(1).random((2, 1, 1, S)) < 0.5},
    "a mask that hides whole parts": {"mask": (np.arange(S) > 1500) & (np.arange(S) < 2900)},
    "a bias": {"bias": np.random.default_rng(2).standard_normal(S).astype(np.float32)},
    "sinks": {"sinks": np.linspace(-2, 9, 6)},
    "a soft cap": {"softcap": 2.0},
    "dropout": {"dropout": 0.4, "seed": 7},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize(("groups", "rows"), [(6, 1), (3, 1), (2, 1), (6, 2), (1, 1)])
def test_options(kernel, name, groups, rows):
    arrays = call(3, 6, groups, rows, 17, 13)
    judged(*arrays, **OPTIONS[name])


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize(("width", "columns"), [(67, 31), (48, 64)])
def test_types(kernel, dtype, width, columns):
    judged(*call(4, 6, 2, 1, width, columns, np.dtype(dtype)), key_lengths=[S, 2999])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_half_is_read_as_the_number_it_is(kernel, dtype):
    halves = np.arange(2**16, dtype=np.uint16).view(np.dtype(dtype)).reshape(1, 1, 1024, 64)
    query, key = (
        np.zeros((1, 1, 1, 16), np.dtype(dtype)),
        np.zeros((1, 1, 1024, 16), np.dtype(dtype)),
    )
    for position in (3, 500, 1020):  # subnormals, infinities and NaN among them
        mask = np.arange(1024) == position
        found = regard.attention(query, key, halves, mask=mask)
        assert np.array_equal(found[0, 0, 0], halves[0, 0, position], equal_nan=True)
    for first in range(0, 1024, 64):
        with np.errstate(invalid="ignore"):
            rows = halves[:, :, first : first + 64].astype(np.float64)
        block = np.where(np.isfinite(rows), rows, 0).astype(halves.dtype)
        key = np.zeros((1, 1, 64, 16), halves.dtype)
        judged(query, key, block)


def test_the_same_bits_for_any_threads_and_any_batch(kernel):
    query, key, value = call(5, 6, 2, 1, 64, 64)
    answers = []
    for threads in (1, 2, 5):
        with regard.threads(threads):
            answers.append(regard.attention(query, key, value))
    assert all(np.array_equal(answers[0], other) for other in answers)
    assert np.array_equal(regard.attention(query[1], key[1], value[1]), answers[0][1])


def test_a_value_that_is_not_finite_shows_in_its_rows_alone(kernel):
    query, key, value = call(6, 6, 2, 1, 8, 8)
    clean = regard.attention(query, key, value, key_lengths=[4000, S])
    value[0, 0, 4100], value[1, 1, 4200, 3] = np.nan, np.inf
    spoilt = regard.attention(query, key, value, key_lengths=[4000, S])
    assert np.array_equal(spoilt[0], clean[0])  # beyond its length
    assert np.array_equal(spoilt[1, :3], clean[1, :3])
    assert np.isinf(spoilt[1, 3:, :, 3]).all()
    assert np.isfinite(np.delete(spoilt[1, 3:], 3, axis=-1)).all()


@pytest.mark.parametrize(("keys", "scale"), [(1, None), (1, 3.0), (43, None)])
def test_weights_are_rebuilt_from_the_scores_that_lse_was_summed_of(kernel, keys, scale):
    """Sums in another order would leave a lone key with a weight that is not 1."""
    rng = np.random.default_rng(5)
    for rows in (1, 2, 3):
        query, key, value = (
            rng.standard_normal((3, 2, n, 64)).astype(np.float32) for n in (rows, keys, keys)
        )
        judged(query, key, value, scale=scale)
