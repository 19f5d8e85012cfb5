"""Nothing to attend to, and numbers that are none: what is masked never matters."""

import numpy as np
import pytest
from cases import normal
from near import floats, judged, near, same

import regard

pytestmark = pytest.mark.usefixtures("kernel")


# ----------------------------------------------------------------------------- nothing, and no key


@floats
@pytest.mark.parametrize("empty", ["batch", "heads", "queries", "keys", "value width"])
def test_empty(empty, dtype):
    B, H, G, T, S, V = (
        0 if empty == name else n
        for name, n in zip(
            ["batch", "heads", "heads", "queries", "keys", "value width"],
            [2, 6, 3, 5, 7, 3],
            strict=True,
        )
    )
    q, k, v = normal(6, (B, H, T, 11), (B, G, S, 11), (B, G, S, V), dtype=dtype)
    for options in ({}, {"causal": True, "query_offset": 2}, {"sinks": np.ones(H)}):
        output, lse = regard.attention(q, k, v, return_lse=True, **options)
        assert output.shape == (B, H, T, V)
        assert lse.shape == (B, H, T)
        if empty == "keys":
            assert not output.any()
            assert (lse == (1 if "sinks" in options else -np.inf)).all()


EMPTYING = {
    "mask": {"mask": np.arange(2) < 0},
    "mask of rows": {"mask": np.zeros((5, 1), bool)},
    "bias": {"bias": np.full((5, 7), -np.inf, np.float32)},
    "offset": {"causal": True, "query_offset": -5},
    "far offset": {"causal": True, "query_offset": -(10**30)},
    "window": {"window": (0, 0), "query_offset": 7},
    "key lengths": {"key_lengths": np.array([0, 0])},
    "ranges": {"ranges": (np.full((2, 5), 4), np.full((2, 5), 3))},
    "segments": {"segments": (np.zeros((2, 5), int), np.ones((2, 7), int))},
    "unsorted segments": {"segments": (np.full(5, 9), np.array([3, 1, 2, 1, 1, 4, 0]))},
    "several": {"mask": np.arange(7) >= 3, "key_lengths": 3},
}
EMPTYING["mask"]["mask"] = np.zeros(7, bool)


@floats
@pytest.mark.parametrize("options", EMPTYING.values(), ids=EMPTYING)
def test_a_row_that_may_attend_nothing(options, dtype):
    q, k, v = normal(7, (2, 6, 5, 11), (2, 3, 7, 11), (2, 3, 7, 13), dtype=dtype)
    q[0], k[0, 0, 0], v[1, 1] = np.nan, np.inf, -np.inf
    output, lse = regard.attention(q, k, v, return_lse=True, **options)
    assert not output.astype(float).any()
    assert (lse == -np.inf).all()
    sinks = np.linspace(-1, 1, 6)
    output, lse = regard.attention(q, k, v, sinks=sinks, return_lse=True, **options)
    assert not output.astype(float).any()
    np.testing.assert_allclose(lse, np.broadcast_to(sinks[:, None], lse.shape), rtol=1e-6)


# --------------------------------------------------------------------------- numbers that are none

HIDING = {
    "mask": {"mask": np.arange(41) != 5},
    "dense mask": {"mask": np.broadcast_to(np.arange(41) != 5, (6, 23, 41)).copy()},
    "bias": {"bias": np.where(np.arange(41) == 5, -np.inf, 0.0).astype(np.float32)},
    "causal": {"causal": True, "query_offset": -18},
    "window": {"window": (4, None), "query_offset": 10},
    "key lengths": {"key_lengths": 5},
    "ranges": {"ranges": (6, 41)},
    "segments": {"segments": (np.zeros(23, int), np.repeat([0, 1, 2], [5, 1, 35]))},
    "unsorted segments": {"segments": (np.zeros(23, int), (np.arange(41) == 5).astype(int))},
}


@floats
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("options", HIDING.values(), ids=HIDING)
def test_what_is_masked_never_matters(options, bad, dtype):
    q, k, v = normal(8, (2, 6, 23, 16), (2, 3, 41, 16), (2, 3, 41, 16), dtype=dtype)
    q, k, v = (np.where(np.isnan(x.astype(float)), 0, x).astype(dtype) for x in (q, k, v))
    clean, clean_lse = regard.attention(q, k, v, return_lse=True, **options)
    k[..., 5, :], v[..., 5, :] = bad, bad
    if "causal" in options:  # the last row sees key 4; all rows from there on are hidden
        k[..., 5:, :], v[..., 5:, :] = bad, bad
    output, lse = regard.attention(q, k, v, return_lse=True, **options)
    assert same(output, clean)
    assert same(lse, clean_lse)
    look = regard.look(q, k, v, **options)
    assert np.isfinite(look.weights[...]).all()


@floats
def test_what_a_masked_bias_holds_never_matters(dtype):
    q, k, v = normal(9, (2, 6, 5, 7), (2, 3, 11, 7), (2, 3, 11, 7), dtype=dtype)
    bias = normal(10, (5, 11))
    mask = np.random.default_rng(1).random((5, 11)) < 0.7
    clean = regard.attention(q, k, v, mask=mask, bias=bias)
    for bad in (np.nan, np.inf, -np.inf):
        spoilt = np.where(mask, bias, np.float32(bad))
        assert same(regard.attention(q, k, v, mask=mask, bias=spoilt), clean)


@floats
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("place", ["query", "key", "value"])
def test_what_is_attended_shows_in_its_row_only(place, bad, dtype):
    arrays = normal(11, (2, 6, 23, 16), (2, 3, 41, 16), (2, 3, 41, 16), dtype=dtype)
    options = {"causal": True, "query_offset": 3}  # key 19 is seen from row 16 on
    clean = regard.attention(*arrays, **options)
    spoilt = dict(zip(("query", "key", "value"), (x.copy() for x in arrays), strict=True))
    spoilt[place][1, 1, 16 if place == "query" else 19, 5] = bad
    output = judged(*spoilt.values(), **options)
    assert same(output[0], clean[0])
    heads = [1] if place == "query" else [2, 3]
    rows = [16] if place == "query" else list(range(16, 23))
    for head in range(6):
        for row in range(23):
            if head not in heads or row not in rows:
                assert same(output[1, head, row], clean[1, head, row])
    judged(*spoilt.values(), softcap=3.0, **options)


@floats
@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=str)
def test_a_bias_that_is_no_number_is_an_error_where_it_is_attended(bad, dtype):
    q, k, v = normal(12, (2, 6, 23, 7), (2, 3, 41, 7), (2, 3, 41, 7), dtype=dtype)
    bias = np.zeros((23, 41), np.float32)
    bias[11, 17] = bad
    with pytest.raises(ValueError, match=r"bias.*expected.*received"):
        regard.attention(q, k, v, bias=bias)
    with pytest.raises(ValueError, match="bias"):
        regard.look(q, k, v, bias=bias)
    regard.attention(q, k, v, bias=bias, causal=True, query_offset=0)


@floats
@pytest.mark.parametrize("low", [-1e300, -1e39, -3e38, -1e30])
def test_a_finite_bias_never_excludes(low, dtype):
    # Beside such a number all scores are equal, in any width: each row is the mean of its values.
    q, k, v = normal(13, (6, 5, 7), (3, 11, 7), (3, 11, 7), dtype=dtype)
    bias = np.full(11, low, np.float64)
    output = regard.attention(q, k, v, bias=bias)
    judge = regard.steps(q, k, v, bias=bias)
    mean = np.repeat(v.astype(float).mean(axis=1), 2, axis=0)[:, None]
    np.testing.assert_allclose(judge.output, np.broadcast_to(mean, judge.output.shape))
    near(output, judge.output, judge.output.astype(dtype), dtype)


@floats
@pytest.mark.parametrize("softcap", [1e-300, 1e-40, 1e-3, 1e30, 1e40, 1e300])
def test_soft_caps_of_any_size(softcap, dtype):
    judged(*normal(33, (6, 5, 16), (3, 11, 16), (3, 11, 16), dtype=dtype), softcap=softcap)


@floats
@pytest.mark.parametrize("scale", [-1e3, -1e-300, 0, 1e-40, 1e3])
def test_scales_of_any_size(scale, dtype):
    arrays = normal(34, (6, 5, 16), (3, 11, 16), (3, 11, 16), dtype=dtype)
    judged(*arrays, scale=scale)


def test_sinks_that_are_no_numbers():
    q, k, v = normal(35, (3, 5, 16), (3, 11, 16), (3, 11, 16))
    output, lse = regard.attention(q, k, v, sinks=[-np.inf, np.nan, np.inf], return_lse=True)
    assert same(output[0], regard.attention(q, k, v)[0])
    assert np.isnan(output[1:]).all()
    assert not np.isfinite(lse[1:]).any()
    judged(q, k, v, sinks=[-np.inf, np.nan, np.inf])


def test_scores_beyond_their_width():
    # 1e25 · 1e25 overflows float32: the row is what IEEE arithmetic makes of it, and no other is.
    q, k, v = normal(14, (5, 7), (11, 7), (11, 3))
    q[2], k[4] = 1e25, 1e25
    judged(q.astype(np.float64), k.astype(np.float64), v.astype(np.float64))
    output = regard.attention(q, k, v)
    assert np.isfinite(output[[0, 1, 3, 4]]).all()
