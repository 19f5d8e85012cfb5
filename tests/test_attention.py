"""`attention` and `merge`: the right numbers, on every kernel that this processor can run."""

import subprocess
import sys
from itertools import pairwise
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from cases import CASES, REFUSED, normal
from near import judged, near

import regard

FLOATS = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]
pytestmark = pytest.mark.usefixtures("kernel")

# A row whose lse is so large that it cannot also hold what tells its weights apart.
(LOWEST,) = (case for case in CASES if case.name == "the lowest finite bias is no mask")

cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
floats = pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: np.dtype(dtype).name)


def same(a, b) -> bool:
    """Bit for bit."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


# ------------------------------------------------------------------------------ right numbers


@cases
def test_cases(case):
    relative, absolute = case.tolerance
    output = regard.attention(*case.inputs, **case.options)
    assert output.dtype == case.query.dtype
    np.testing.assert_allclose(output.astype(float), case.answer("output"), relative, absolute)


@cases
def test_cases_with_weights(case):
    relative, absolute = case.tolerance
    look = regard.look(*case.inputs, **case.options)
    assert same(look.output, regard.attention(*case.inputs, **case.options))
    judge = regard.steps(*case.inputs, **case.options)
    expected = judge.weights if judge.weights.size > 1000 else case.answer("weights")
    if case is not LOWEST:
        np.testing.assert_allclose(look.weights[...], expected, relative, absolute)
    assert not look.weights[...][~judge.allowed].any()


@cases
@floats
def test_cases_in_every_dtype(case, dtype):
    with np.errstate(over="ignore"):
        inputs = [x.astype(dtype) for x in case.inputs]
    judged(*inputs, weights=case is not LOWEST, **case.options)


@pytest.mark.xfail(reason="one float64 cannot hold the lowest float32 and a logarithm", strict=True)
def test_weights_beside_the_lowest_bias():
    judged(*LOWEST.inputs, **LOWEST.options)


@pytest.mark.parametrize(("case", "error"), REFUSED, ids=lambda x: getattr(x, "name", ""))
def test_refused_cases(case, error):
    with pytest.raises(error):
        regard.attention(*case.inputs, **case.options)


def spread(kind: str, random: np.random.Generator, width: int) -> list[np.ndarray]:
    """Query, key and value that are hard on sums of few bits."""
    q, k, v = (
        random.standard_normal(shape)
        for shape in ((4, 67, width), (2, 131, width), (2, 131, width))
    )
    if kind.startswith("scores"):
        q = q * float(kind.split()[-1])
    if kind == "outlier channels":
        k[..., 3] *= 20
        v[..., 5] *= 100
    if kind == "values of mean 10":
        v += 10
    return [q, k, v]


@floats
@pytest.mark.parametrize("width", [37, 64])
@pytest.mark.parametrize(
    "kind", ["normal", "scores x 8", "scores x 32", "outlier channels", "values of mean 10"]
)
def test_error_rule(kind, dtype, width):
    arrays = [x.astype(dtype) for x in spread(kind, np.random.default_rng(width), width)]
    judged(*arrays)
    judged(*arrays, causal=True, query_offset=64)


def test_the_mission_example():
    query = np.float32([[1, 0]])
    keys = np.float32([[1, 0], [0, 1], [1, 1]])
    values = np.float32([[10, 0], [0, 20], [30, 30]])
    output, lse = regard.attention(query, keys, values, scale=1, return_lse=True)
    e = np.e
    np.testing.assert_allclose(lse, [np.log(2 * e + 1)], rtol=1e-6)
    np.testing.assert_allclose(
        output, [[40 * e / (2 * e + 1), (20 + 30 * e) / (2 * e + 1)]], rtol=1e-6
    )


@floats
def test_shapes_and_dtypes(dtype):
    q, k, v = normal(1, (2, 3, 4, 5, 7), (2, 1, 2, 11, 7), (1, 3, 2, 11, 13), dtype=dtype)
    output, lse = regard.attention(q, k, v, return_lse=True)
    assert output.shape == (2, 3, 4, 5, 13)
    assert output.dtype == dtype
    assert lse.shape == (2, 3, 4, 5)
    assert lse.dtype == (np.float64 if dtype == np.float64 else np.float32)


def test_without_heads():
    q, k, v = normal(2, (5, 7), (11, 7), (11, 3))
    output, lse = regard.attention(q, k, v, sinks=np.float32([0.5]), return_lse=True)
    assert output.shape == (5, 3)
    assert lse.shape == (5,)
    whole = regard.attention(q[None], k[None], v[None], sinks=np.float32([0.5]))
    assert same(output, whole[0])
    judged(q, k, v, sinks=np.float32([0.5]), mask=np.arange(11) != 4, key_lengths=7)


def test_lists_are_float64():
    output = regard.attention([[1.0, 2.0]], [[1.0, 0.0], [0.0, 1.0]], [[1.0], [2.0]])
    assert output.dtype == np.float64


def test_query_batch_of_one_broadcasts():
    q, k, v = normal(3, (1, 2, 5, 7), (3, 2, 11, 7), (3, 2, 11, 7))
    whole = regard.attention(q, k, v)
    for item in range(3):
        assert same(whole[item], regard.attention(q[0], k[item], v[item]))
    judged(q, k, v, weights=False)


def test_high_precision_is_a_legal_wish():
    q, k, v = normal(5, (2, 5, 7), (2, 11, 7), (2, 11, 7))
    high = regard.attention(q, k, v, precision="high")
    np.testing.assert_allclose(high, regard.attention(q, k, v), rtol=2**-14, atol=2**-14)


# ------------------------------------------------------------------------- nothing, and no key


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


# ------------------------------------------------------------------------- numbers that are none

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
    judged(*spoilt.values(), softcap=3.0, **options, weights=False)


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
    judged(q, k, v, sinks=[-np.inf, np.nan, np.inf], weights=False)


def test_scores_beyond_their_width():
    # 1e25 · 1e25 overflows float32: the row is what IEEE arithmetic makes of it, and no other is.
    q, k, v = normal(14, (5, 7), (11, 7), (11, 3))
    q[2], k[4] = 1e25, 1e25
    judged(q.astype(np.float64), k.astype(np.float64), v.astype(np.float64), weights=False)
    output = regard.attention(q, k, v)
    assert np.isfinite(output[[0, 1, 3, 4]]).all()


# ------------------------------------------------------------------------------ the same bits


def strided(x: np.ndarray, how: str) -> np.ndarray:
    """An array with the same numbers and other strides."""
    if how == "negative":
        return x[..., ::-1, ::-1].copy()[..., ::-1, ::-1]
    if how == "swapped":
        return x.swapaxes(1, 2).copy().swapaxes(1, 2)
    if how == "columns":
        return x.swapaxes(-1, -2).copy().swapaxes(-1, -2)
    if how == "gaps":
        wide = np.full((*x.shape[:-2], x.shape[-2] * 3, x.shape[-1] * 2), np.nan, x.dtype)
        wide[..., ::3, ::2] = x
        return wide[..., ::3, ::2]
    if how == "odd address":
        raw = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
        raw[...] = x
        return raw
    if how == "read-only":
        x = x.copy()
        x.flags.writeable = False
        return x
    fields = np.zeros(x.shape, [("flag", "i1"), ("x", x.dtype)])  # strides that are no multiple
    fields["x"] = x
    return fields["x"]


WAYS = ["negative", "swapped", "columns", "gaps", "odd address", "read-only", "a field"]


@floats
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("width", [11, 16])
def test_any_strides(how, dtype, width):
    q, k, v = normal(15, *[(2, 6, 19, width)], *[(2, 3, 37, width)] * 2, dtype=dtype)
    mask = np.random.default_rng(2).random((2, 6, 19, 37)) < 0.8
    bias = normal(16, (2, 6, 19, 37))
    expected, expected_lse = regard.attention(q, k, v, mask=mask, bias=bias, return_lse=True)
    output, lse = regard.attention(
        *(strided(x, how) for x in (q, k, v)),
        mask=strided(mask, how),
        bias=strided(bias, how),
        return_lse=True,
    )
    assert same(output, expected)
    assert same(lse, expected_lse)


def test_strides_of_zero():
    q, k, v = normal(17, (1, 1, 1, 11), (1, 1, 1, 11), (1, 1, 1, 11))
    shapes = (2, 6, 5, 11), (2, 3, 7, 11), (2, 3, 7, 11)
    wide = [np.broadcast_to(x, shape) for x, shape in zip((q, k, v), shapes, strict=True)]
    assert same(regard.attention(*wide), regard.attention(*(x.copy() for x in wide)))


def test_other_byte_orders():
    q, k, v = normal(18, (6, 5, 11), (3, 7, 11), (3, 7, 11))
    bias = normal(19, (5, 7))
    swapped = [x.astype(">f4") for x in (q, k, v)]
    lengths = np.array(4, ">i4")
    output = regard.attention(*swapped, bias=bias.astype(">f8"), key_lengths=lengths)
    assert output.dtype == np.dtype("=f4")
    assert same(output, regard.attention(q, k, v, bias=bias.astype(float), key_lengths=4))


@floats
@pytest.mark.parametrize(("T", "S"), [(1, 67), (5, 7), (67, 131)])
def test_batch(T, S, dtype):
    q, k, v = normal(20, (3, 6, T, 16), (3, 3, S, 16), (3, 3, S, 16), dtype=dtype)
    lengths, offsets = np.array([S, S // 2, 1]), np.array([S - T, 0, -1])
    mask = np.random.default_rng(3).random((3, 1, T, S)) < 0.8
    segments = [
        np.sort(np.random.default_rng(i).integers(0, 3, (3, n))) for i, n in enumerate((T, S))
    ]
    options = {"key_lengths": lengths, "query_offset": offsets, "segments": tuple(segments)}
    whole = regard.attention(q, k, v, causal=True, mask=mask, return_lse=True, **options)
    for i in range(3):
        options = {"key_lengths": lengths[i], "query_offset": offsets[i]}
        options["segments"] = (segments[0][i], segments[1][i])
        alone = regard.attention(
            q[i], k[i], v[i], causal=True, mask=mask[i], return_lse=True, **options
        )
        assert same(alone[0], whole[0][i])
        assert same(alone[1], whole[1][i])


def test_unsorted_segments_of_one_item_change_no_bits_of_another():
    q, k, v = normal(21, (2, 6, 23, 16), (2, 3, 23, 16), (2, 3, 23, 16))
    segments = np.sort(np.random.default_rng(4).integers(0, 4, (2, 23)))
    before = regard.attention(q, k, v, segments=segments)
    segments[1] = segments[1][::-1]
    assert same(regard.attention(q, k, v, segments=segments)[0], before[0])


@floats
def test_any_number_of_threads(dtype):
    q, k, v = normal(22, (2, 6, 131, 16), (2, 3, 257, 16), (2, 3, 257, 16), dtype=dtype)
    with regard.threads(1):
        expected = regard.attention(q, k, v, return_lse=True)
    for count in (2, 3, 7):
        with regard.threads(count):
            found = regard.attention(q, k, v, return_lse=True)
        assert same(found[0], expected[0])
        assert same(found[1], expected[1])


# ------------------------------------------------------------------------- what is the same call


@floats
def test_grouped_heads_are_repeated_heads(dtype):
    q, k, v = normal(23, (2, 6, 23, 16), (2, 2, 41, 16), (2, 2, 41, 16), dtype=dtype)
    repeated = [np.repeat(x, 3, axis=1) for x in (k, v)]
    grouped = judged(q, k, v).astype(float)
    np.testing.assert_allclose(
        grouped, judged(q, *repeated).astype(float), atol=8 * float(ml_dtypes.finfo(dtype).eps)
    )


@pytest.mark.parametrize("window", [(2, 0), (0, 3), (None, 1), (4, None), (None, None), (99, 99)])
@pytest.mark.parametrize("offset", [-3, 0, 5, 100])
def test_a_window_is_a_mask(window, offset):
    q, k, v = normal(24, (6, 23, 16), (3, 41, 16), (3, 41, 16))
    at, keys = np.arange(23)[:, None] + offset, np.arange(41)
    before, after = (10**6 if n is None else n for n in window)
    mask = (keys >= at - before) & (keys <= at + after)
    found = regard.attention(q, k, v, window=window, query_offset=offset, return_lse=True)
    expected = regard.attention(q, k, v, mask=mask, return_lse=True)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@floats
def test_permuted_keys(dtype):
    q, k, v = normal(25, (6, 23, 16), (3, 41, 16), (3, 41, 16), dtype=dtype)
    mask = np.random.default_rng(5).random((6, 23, 41)) < 0.7
    order = np.random.default_rng(6).permutation(41)
    a = judged(q, k, v, mask=mask)
    b = judged(q, k[:, order], v[:, order], mask=mask[..., order])
    eps = float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(a.astype(float), b.astype(float), atol=8 * eps)


def test_numbers_of_any_size():
    q, k, v = normal(26, (2, 6, 5, 7), (2, 3, 11, 7), (2, 3, 11, 7))
    huge = 10**30
    expected = regard.attention(q, k, v, window=(2, 1), query_offset=4)
    found = regard.attention(q, k, v, ranges=(np.arange(5) + 2, np.arange(5) + 6))
    assert same(found, expected)
    shifted = regard.attention(q, k, v, window=(huge, 1), query_offset=4)
    assert same(shifted, regard.attention(q, k, v, window=(None, 1), query_offset=4))
    # The row that stands at 10³⁰ sees from 10³⁰ - before on, exactly.
    far = regard.attention(q, k, v, window=(huge - 3, 0), query_offset=[huge, huge - 2])
    each = [
        regard.attention(q[i], k[i], v[i], ranges=(np.arange(5) + first, 11))
        for i, first in enumerate((3, 1))
    ]
    assert same(far, np.stack(each))


# ---------------------------------------------------------------------------------- dropout


@floats
@pytest.mark.parametrize("seed", [0, 7, 2**40 + 3, 2**64 - 1, -5])
def test_dropout_drops_what_the_textbook_drops(seed, dtype):
    q, k, v = normal(27, (2, 2, 6, 13, 16), (2, 2, 3, 29, 16), (2, 2, 3, 29, 16), dtype=dtype)
    options = {"dropout": 0.4, "seed": seed, "causal": True, "query_offset": 16}
    judged(q, k, v, **options)
    # With a value of its own for each key, the output is the pattern itself.
    kept = regard.attention(
        0 * q,
        k,
        np.broadcast_to(np.eye(29, dtype=dtype), (2, 2, 3, 29, 29)),
        dropout=0.4,
        seed=seed,
    )
    assert np.array_equal(kept != 0, regard.steps(0 * q, k, v, dropout=0.4, seed=seed).kept != 0)


def test_dropout_leaves_lse_alone():
    q, k, v = normal(28, (6, 13, 16), (3, 29, 16), (3, 29, 16))
    _, expected = regard.attention(q, k, v, return_lse=True)
    _, lse = regard.attention(q, k, v, dropout=0.9, seed=1, return_lse=True)
    assert same(lse, expected)


# ------------------------------------------------------------------------------------ merge


@floats
@pytest.mark.parametrize("cuts", [[20], [0, 41], [1, 2, 3, 30], [13, 13, 13], list(range(1, 41))])
def test_merged_parts_are_the_whole(cuts, dtype):
    q, k, v = normal(29, (2, 6, 23, 16), (2, 3, 41, 16), (2, 3, 41, 16), dtype=dtype)
    mask = np.random.default_rng(7).random((2, 1, 23, 41)) < 0.5
    mask[:, :, 3] = False
    mask[:, :, 4, 20:] = False
    judge = regard.steps(q, k, v, mask=mask)
    edges = [0, *cuts, 41]
    parts = [
        regard.attention(q, k[..., a:b, :], v[..., a:b, :], mask=mask[..., a:b], return_lse=True)
        for a, b in pairwise(edges)
    ]
    for order in (parts, parts[::-1]):
        output, lse = regard.merge(*zip(*order, strict=True))
        assert output.dtype == dtype
        assert lse.dtype == parts[0][1].dtype
        # Each part is rounded once more than the whole.
        eps = float(ml_dtypes.finfo(dtype).eps)
        wide = float(ml_dtypes.finfo(lse.dtype).eps)
        np.testing.assert_allclose(output.astype(float), judge.output, atol=8 * eps)
        np.testing.assert_allclose(lse, judge.lse, rtol=8 * wide, atol=8 * wide)


def test_merging_with_itself_changes_nothing_but_lse():
    output, lse = regard.attention(
        *normal(30, (6, 23, 16), (3, 41, 16), (3, 41, 16)), return_lse=True
    )
    twice, more = regard.merge([output, output], [lse, lse])
    np.testing.assert_allclose(twice, output, rtol=1e-6)
    np.testing.assert_allclose(more, lse + np.log(2), rtol=1e-6)


def test_parts_without_keys_are_the_identity():
    output, lse = regard.attention(
        *normal(31, (6, 23, 16), (3, 41, 16), (3, 41, 16)), return_lse=True
    )
    nothing = np.full_like(output, np.nan), np.full_like(lse, -np.inf)
    found = regard.merge([nothing[0], output, nothing[0]], [nothing[1], lse, nothing[1]])
    np.testing.assert_allclose(found[0], output, rtol=1e-6)
    assert same(found[1], lse)
    empty = regard.merge([nothing[0]] * 2, [nothing[1]] * 2)
    assert not empty[0].any()
    assert (empty[1] == -np.inf).all()


def test_merge_of_large_scores_and_one_sink():
    q, k, v = normal(32, (6, 23, 16), (3, 41, 16), (3, 41, 16))
    q *= 300
    sinks = np.linspace(-500, 500, 6)
    judge = regard.steps(q, k, v, sinks=sinks)
    left = regard.attention(q, k[:, :9], v[:, :9], sinks=sinks, return_lse=True)
    right = regard.attention(q, k[:, 9:], v[:, 9:], return_lse=True)
    output, lse = regard.merge([left[0], right[0]], [left[1], right[1]])
    # An lse near 1000 is rounded to 3e-5.
    np.testing.assert_allclose(output, judge.output, atol=5e-4)
    np.testing.assert_allclose(lse, judge.lse, rtol=1e-6)


def test_merge_of_a_single_row():
    parts = [np.array([1.0, 2.0]), np.array([3.0, 4.0])], [np.float64(0), np.float64(0)]
    output, lse = regard.merge(*parts)
    assert output.tolist() == [2, 3]
    assert lse == np.log(2)


def test_merge_refuses():
    output, lse = np.zeros((2, 5, 3)), np.zeros((2, 5))
    with pytest.raises(ValueError, match=r"at least one part.*0 and 0"):
        regard.merge([], [])
    with pytest.raises(ValueError, match="1 and 2"):
        regard.merge([output], [lse, lse])
    with pytest.raises(ValueError, match=r"\(2, 5, 3\) and \(5, 2\)"):
        regard.merge([output], [lse.T])
    with pytest.raises(ValueError, match=r"\(2, 4, 3\)"):
        regard.merge([output, output[:, :4]], [lse, lse[:, :4]])
    with pytest.raises(TypeError, match="one dtype"):
        regard.merge([output, output.astype(np.float32)], [lse, lse])
    with pytest.raises(TypeError, match=r"outputs.*int64"):
        regard.merge([output.astype(int)], [lse])


# ------------------------------------------------------------------------- other frameworks' arrays


def test_arrays_of_a_framework_go_to_its_door(monkeypatch):
    class Tensor:
        pass

    asked = []
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor))
    door = SimpleNamespace(attention=lambda *arrays, **options: asked.append((arrays, options)))
    monkeypatch.setitem(sys.modules, "regard.torch", door)
    query, key, value = np.zeros((3, 2)), np.zeros((3, 2)), Tensor()
    regard.attention(query, key, value, causal=True)
    (arrays, options) = asked[0]
    assert arrays[2] is value
    assert options["causal"] is True
    assert set(options) == set(regard.attention.__kwdefaults__)


def test_a_missing_door_says_so(monkeypatch):
    class Array:
        pass

    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(Array=Array))
    monkeypatch.setattr("regard.core.attention._ARRAYS", {"jax": ("Array",)})
    monkeypatch.setitem(sys.modules, "regard.jax", None)
    with pytest.raises(TypeError, match=r"Array.*jax"):
        regard.attention(Array(), Array(), Array())


# ------------------------------------------------------------------------------- speed and memory


def test_memory():
    # Inputs and output, and 64 MiB: one head's table of weights alone would take 1 GiB.
    code = """
import resource, sys
import numpy as np, regard
from regard import _kernel
_kernel.use_kernel(sys.argv[1])
random = np.random.default_rng(0)
q, k, v = (random.standard_normal((1, 4, 16384, 8), dtype=np.float32) for _ in range(3))
mask = (np.arange(16384) < 16000)[None]
regard.attention(q[:, :, :64], k[:, :, :64], v[:, :, :64])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
output = regard.attention(q, k, v, causal=True, mask=mask)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) * 1024 - output.nbytes)
"""
    kernel = regard._kernel.kernel()
    done = subprocess.run([sys.executable, "-c", code, kernel], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64 << 20


GUARDED = """
import ctypes, itertools, mmap, sys
import ml_dtypes, numpy as np, regard
from regard import _kernel
_kernel.use_kernel(sys.argv[1])
page, kept = mmap.PAGESIZE, []
libc = ctypes.CDLL(None, use_errno=True)

def guarded(array, at_end):
    # A copy that ends (or begins) where memory that may not be touched begins (or ends).
    pages = -(-max(array.nbytes, 1) // page)
    room = mmap.mmap(-1, (pages + 2) * page)
    kept.append(room)
    start = ctypes.addressof(ctypes.c_char.from_buffer(room))
    for edge in (start, start + (pages + 1) * page):
        assert libc.mprotect(ctypes.c_void_p(edge), page, 0) == 0
    offset = page + (pages * page - array.nbytes if at_end else 0)
    copy = np.frombuffer(room, np.uint8, array.nbytes, offset).view(array.dtype)
    copy = copy.reshape(array.shape)
    copy[...] = array
    return copy

random = np.random.default_rng(0)
sizes = itertools.product((1, 30), (1, 7, 65), (1, 16, 23), (16, 19))
types = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)
sides = [(dtype, True) for dtype in types] + [(np.float32, False)]
for (T, S, D, V), (dtype, at_end) in itertools.product(sizes, sides):
    make = lambda *shape: guarded(random.standard_normal(shape).astype(dtype), at_end)
    q, k, v = make(4, T, D), make(2, S, D), make(2, S, V)
    mask = guarded(random.random((4, T, S)) < 0.8, at_end)
    options = [
        {}, {"mask": mask}, {"bias": make(4, T, S)}, {"sinks": make(4)},
        {"causal": True, "query_offset": S - T},
        {"ranges": guarded(np.sort(random.integers(0, S + 1, (2, T)), axis=0), at_end)},
        {"segments": (guarded(random.integers(0, 3, T), at_end),
                      guarded(random.integers(0, 3, S), at_end))},
    ]
    for option in options:
        regard.look(q, k, v, **option).weights[...]
    regard.attention(q[..., ::-1, ::-1], k, v[..., ::-1, ::-1], mask=mask[..., ::-1])
print("done")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="machine: needs mprotect")
def test_nothing_outside_an_array_is_touched():
    kernel = regard._kernel.kernel()
    done = subprocess.run([sys.executable, "-c", GUARDED, kernel], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.returncode} {done.stderr}"
    assert done.stdout == "done\n"
