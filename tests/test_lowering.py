"""A right call is lowered to the kernel's form: ranges of keys, and nothing copied or expanded."""

import ml_dtypes
import numpy as np
import pytest

from regard.core.call import check

Q = np.zeros((2, 6, 5, 7), np.float32)
K = np.zeros((2, 3, 11, 7), np.float32)
V = np.zeros((2, 3, 11, 13), np.float32)


def numbers(x) -> list:
    return np.asarray(x).tolist()


def test_nothing_is_copied_or_expanded():
    mask = np.ones((2, 1, 1, 11), bool)
    bias = np.ones((6, 1, 11), ml_dtypes.bfloat16)
    call = check(Q, K, V, mask=mask, bias=bias)
    assert call.query is Q
    assert call.key is K
    assert call.value is V
    assert call.rule.mask is mask
    assert call.rule.bias.shape == bias.shape
    assert call.rule.bias.dtype == np.uint16
    assert np.shares_memory(call.rule.bias, bias)
    wide = check(Q[:1], K, V)
    assert wide.query.shape == Q.shape
    assert np.shares_memory(wide.query, Q)
    assert wide.batch == (2,)
    assert wide.shape == (2, 6, 5, 11)
    assert wide.dtype == np.float32


def test_defaults():
    call = check(Q, K, V)
    assert call.rule == (1 / 7**0.5, 0, *[None] * 10, 0)
    assert (call.dropout, call.seed, call.query_offset, call.flat) == (0, 0, 0, False)
    assert check(Q[0, 0], K[0, 0], V[0, 0]).flat


@pytest.mark.parametrize(
    ("options", "lower", "upper"),
    [
        ({"causal": True, "query_offset": 6}, None, 7),
        ({"causal": True, "query_offset": np.int8(-3)}, None, -2),
        ({"causal": True, "query_offset": [0, 6]}, None, [1, 7]),
        ({"causal": np.True_, "query_offset": np.array(2)}, None, 3),
        ({"causal": False, "query_offset": 2}, None, None),
        ({"window": (2, 3), "query_offset": 1}, -1, 5),
        ({"window": (2, None), "query_offset": 1}, -1, None),
        ({"window": [None, 0], "query_offset": 1}, None, 2),
        ({"window": (2, 3), "query_offset": 1, "causal": True}, -1, 2),
        ({"window": (2, 10**40), "query_offset": [4, 10**40]}, [2, 12], [12, 12]),
        ({"window": (10**40, 1), "query_offset": [4, 10**40 + 3]}, [-6, 3], [6, 12]),
        ({"window": (0, 0), "query_offset": -(10**40)}, -6, -6),
        (
            {"window": (2**63, 0), "query_offset": np.array([2**63 + 1, 0], np.uint64)},
            [1, -6],
            [12, 1],
        ),
    ],
)
def test_bounds(options, lower, upper):
    rule = check(Q, K, V, **options).rule
    for found, expected in ((rule.lower, lower), (rule.upper, upper)):
        assert (found is None) == (expected is None)
        if found is not None:
            assert found.dtype == np.int64
            assert numbers(found) == expected


def test_square_calls_need_no_offset():
    call = check(Q, K[:, :, :5], V[:, :, :5], causal=True, window=(2, None))
    assert numbers(call.rule.lower) == -2
    assert numbers(call.rule.upper) == 1


def test_query_offset_is_kept_for_distances():
    assert numbers(check(Q, K, V, query_offset=[3, -4]).query_offset) == [3, -4]
    assert numbers(check(Q, K, V, query_offset=10**40).query_offset) == 2**62


def test_key_lengths_and_ranges():
    rule = check(Q, K, V, key_lengths=[0, 11], ranges=(np.uint8([1, 2, 3, 4, 5]), 6)).rule
    assert numbers(rule.lengths) == [0, 11]
    assert numbers(rule.first) == [1, 2, 3, 4, 5]
    assert numbers(rule.past) == [6] * 5
    assert rule.past.strides == (0,)
    assert {x.dtype for x in (rule.lengths, rule.first, rule.past)} == {np.dtype(np.int64)}
    assert numbers(check(Q, K, V, key_lengths=4).rule.lengths) == 4
    empty = check(Q[:0], K[:0], V[:0], key_lengths=[], query_offset=[])
    assert empty.rule.lengths.shape == (0,)


def test_sorted_segments_are_ranges():
    of_queries = np.array([[3, 3, 7, 9, 4], [0, 0, 0, 0, 0]])
    of_keys = np.array([1, 3, 3, 3, 4, 7, 7, 8, 8, 8, 10])
    rule = check(Q, K, V, segments=(of_queries, of_keys)).rule
    assert numbers(rule.first) == [[1, 1, 5, 10, 4], [0] * 5]
    assert numbers(rule.past) == [[4, 4, 7, 10, 5], [0] * 5]
    assert rule.query_segments is rule.key_segments is None
    both = check(Q, K, V, segments=(of_queries, of_keys), ranges=(2, 6)).rule
    assert numbers(both.first) == [[2, 2, 5, 10, 4], [2] * 5]
    assert numbers(both.past) == [[4, 4, 6, 6, 5], [0] * 5]


def test_unsorted_segments_stay_segments():
    of_keys = np.array([1, 3, 2, 3, 4, 7, 7, 8, 8, 8, 10], np.int16)
    rule = check(Q, K, V, segments=(np.int32([[1], [2]]), of_keys)).rule
    assert numbers(rule.query_segments) == [[1] * 5, [2] * 5]
    assert numbers(rule.key_segments) == of_keys.tolist()
    assert rule.first is rule.past is None
    assert rule.query_segments.dtype == rule.key_segments.dtype == np.int64


def test_segments_of_a_square_call_are_one_array():
    q = Q[:, :, :2]
    for segments in ([0, 1], (0, 1), [[0, 1], [1, 0]], np.array([0, 1])):
        check(q, K[:, :, :2], V[:, :, :2], segments=segments)


def test_any_floating_bias_and_sinks():
    for dtype in (np.float64, np.float16, ml_dtypes.bfloat16):
        assert (
            check(Q, K, V, bias=np.ones((5, 11), dtype)).rule.bias.itemsize
            == np.dtype(dtype).itemsize
        )
    eight = check(Q, K, V, bias=np.full((5, 11), 0.5, ml_dtypes.float8_e5m2)).rule.bias
    assert eight.dtype == np.float64
    assert (eight == 0.5).all()
    huge = np.longdouble("1e400") if np.finfo(np.longdouble).max > 1e308 else np.longdouble(1e300)
    bias = check(
        Q, K, V, bias=np.array([-huge, -np.inf, np.inf, np.nan, 1] + [0] * 6, np.longdouble)
    ).rule.bias
    assert np.isfinite(bias[0])  # only -inf excludes
    assert numbers(bias[1:3]) == [-np.inf, np.inf]
    assert np.isnan(bias[3])
    assert check(Q, K, V, sinks=np.ones(6, ml_dtypes.bfloat16)).rule.sinks.dtype == np.float64


def test_numbers_of_numpy_are_numbers():
    call = check(
        Q,
        K,
        V,
        scale=np.float32(0.5),
        softcap=np.int64(3),
        dropout=np.float16(0.5),
        seed=np.int8(-1),
    )
    assert call.rule[:2] == (0.5, 3.0)
    assert (call.dropout, call.seed) == (0.5, 2**64 - 1)
    assert check(Q, K, V, scale=0).rule.scale == 0
    assert check(Q, K, V, scale=-2).rule.scale == -2
