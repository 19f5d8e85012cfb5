"""`look` against the textbook: every view and every row, on all kinds of calls."""

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from regard.core.attention import attention, look
from regard.core.call import check
from regard.core.look import Look
from regard.core.steps import steps

B, H, G, T, S, D, V = 2, 6, 3, 11, 13, 5, 7


def arrays(*, batch=(B,), heads=(H, G), rows=T, keys=S, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return tuple(
        rng.standard_normal((*batch, n, length, width)).astype(dtype)
        for n, length, width in zip(
            (heads[0], heads[1], heads[1]), (rows, keys, keys), (D, D, V), strict=True
        )
    )


def _rng():
    return np.random.default_rng(99)


def _bias():
    bias = _rng().standard_normal((B, 1, T, S))
    bias[0, 0, 2, [1, 4]] = -np.inf
    bias[1, 0, 5] = -np.inf
    return bias


def _mask(*shape):
    return _rng().random(shape) < 0.6


CASES = {
    "plain": ({}, {}),
    "no batch": ({"batch": ()}, {}),
    "several batch axes": ({"batch": (3, 2)}, {}),
    "ungrouped": ({"heads": (H, H)}, {}),
    "one key head": ({"heads": (H, 1)}, {"mask": _mask(H, T, S)}),
    "causal": ({"keys": T}, {"causal": True}),
    "causal with an offset": ({}, {"causal": True, "query_offset": 2}),
    "causal before the keys": ({}, {"causal": True, "query_offset": -4}),
    "an offset an item": ({}, {"causal": True, "query_offset": np.array([2, -3])}),
    "window": ({}, {"window": (2, 1), "query_offset": 1}),
    "mask": ({}, {"mask": _mask(B, 1, T, S)}),
    "mask of heads": ({}, {"mask": _mask(H, T, S)}),
    "mask of rows": ({}, {"mask": _mask(B, 1, T, 1)}),
    "bias": ({}, {"bias": _bias()}),
    "bias of heads": ({}, {"bias": _rng().standard_normal((H, 1, S))}),
    "lengths": ({}, {"key_lengths": np.array([4, 0])}),
    "segments": ({"keys": T}, {"segments": np.array([0, 1, 1, 0, 2, 2, 0, 1, 3, 0, 3])}),
    "ranges": ({}, {"ranges": (np.arange(T) // 2, np.minimum(np.arange(T) + 1, 9))}),
    "soft cap": ({}, {"softcap": 1.5, "scale": 2.0}),
    "sinks": ({}, {"sinks": np.array([0.5, -1, 2, -np.inf, 0, 1]), "key_lengths": [5, 0]}),
    "negative scale": ({}, {"scale": -0.7}),
    "one row": ({"rows": 1}, {}),
    "one key": ({"keys": 1}, {}),
    "two rows": ({"rows": 2}, {"causal": True, "query_offset": 1}),
    "all at once": (
        {"keys": T},
        {
            "causal": True,
            "window": (5, None),
            "mask": _mask(B, 1, 1, T),
            "bias": _rng().standard_normal((H, T, T)),
            "key_lengths": np.array([9, 11]),
            "softcap": 3.0,
            "sinks": _rng().standard_normal(H),
        },
    ),
}


@pytest.fixture(params=CASES, scope="module")
def case(request):
    """A look at a call, the textbook's steps of the same, and the call itself."""
    sizes, options = CASES[request.param]
    given = arrays(**sizes)
    return look(*given, **options), steps(*given, **options), (given, options)


def test_output_and_lse(case):
    seen, true, (given, options) = case
    assert_array_equal(seen.output, attention(*given, **options))
    assert_allclose(seen.output, true.output, rtol=1e-11, atol=1e-12)
    assert_allclose(seen.lse, true.lse, rtol=1e-11, atol=1e-12)
    assert seen.shape == true.weights.shape


@pytest.mark.parametrize("name", ["weights", "allowed"])
def test_views(case, name):
    seen, true, _ = case
    view = getattr(seen, name)
    assert view.shape == seen.shape == view[...].shape
    assert_allclose(view[...], getattr(true, name), rtol=1e-10, atol=1e-13)
    assert view[...].dtype == view.dtype == (bool if name == "allowed" else np.float64)


def test_scores(case):
    seen, true, _ = case
    expected = np.where(true.allowed, true.biased, -np.inf)
    assert_allclose(seen.scores[...], expected, rtol=1e-10, atol=1e-13)


def test_sink(case):
    seen, true, _ = case
    assert_allclose(seen.sink, true.sink, rtol=1e-10, atol=1e-13)
    assert_allclose(
        seen.weights[...].sum(-1) + seen.sink, seen.allowed[...].any(-1) | (seen.sink > 0)
    )


def naive_baseline(weights, allowed, real):
    """What every other row that may see the key gives it, written down as it is said."""
    out = np.full(weights.shape, np.nan)
    for at in np.ndindex(weights.shape[:-2]):
        for i, j in np.ndindex(weights.shape[-2:]):
            others = [
                weights[(*at, k, j)]
                for k in range(weights.shape[-2])
                if k != i and allowed[(*at, k, j)] and real[(*at[:-1], k)]
            ]
            out[(*at, i, j)] = np.mean(others) if others else np.nan
    return out


def naive_by_distance(weights, allowed, real):
    out = np.full(weights.shape, np.nan)
    rows, keys = weights.shape[-2:]
    for at in np.ndindex(weights.shape[:-2]):
        for i, j in np.ndindex(rows, keys):
            others = [
                weights[(*at, k, k + j - i)]
                for k in range(rows)
                if k != i
                and 0 <= k + j - i < keys
                and allowed[(*at, k, k + j - i)]
                and real[(*at[:-1], k)]
            ]
            out[(*at, i, j)] = np.mean(others) if others else np.nan
    return out


def some_padding(seen):
    """Rows of padding: another number of them in each item."""
    real = np.ones((*seen.call.batch, seen.shape[-2]), bool)
    for n, item in enumerate(np.ndindex(seen.call.batch)):
        real[item][: n % 4] = False
        real[item][-1:] = n % 2 == 0
    return real


@pytest.mark.parametrize("padded", [False, True])
def test_baseline_and_by_distance(case, padded):
    seen, true, _ = case
    real = some_padding(seen) if padded else np.ones((*seen.call.batch, seen.shape[-2]), bool)
    seen = Look(seen.call, seen._output, seen._lse, real_rows=real if padded else None)
    for view, naive in (
        (seen.baseline, naive_baseline),
        (seen.by_distance, naive_by_distance),
    ):
        expected = naive(true.weights, true.allowed, real)
        assert_allclose(view[...], expected, rtol=1e-9, atol=1e-12)
        assert_array_equal(view[..., 0, :], view[...][..., 0, :])


def test_contribution(case):
    seen, true, _ = case
    expected = np.linalg.norm(true.terms, axis=-1)
    assert_allclose(seen.contribution[...], expected, rtol=1e-9, atol=1e-12)


def test_check(case):
    seen, _, _ = case
    found = seen.check()
    assert found.verified
    assert max(found) < 1e-13
    assert str(found).startswith("matches the output")


def test_steps_of_a_row(case):
    seen, true, _ = case
    item = tuple(n - 1 for n in seen.call.batch)
    head, query = seen.shape[-3] - 1, seen.shape[-2] // 2
    one = seen.steps(query, head, item)
    at = (*item, head, slice(query, query + 1))
    assert_allclose(one.weights, true.weights[at], rtol=1e-12)
    assert_allclose(one.output, true.output[at], rtol=1e-12)
    assert_allclose(one.scores, true.scores[at], rtol=1e-12)
    assert_array_equal(one.allowed, true.allowed[at])


def test_without_is_a_masked_call(case):
    seen, true, (given, options) = case
    keys = [0, 3, 4] if seen.shape[-1] > 4 else [0]
    kept = np.ones(seen.shape[-1], bool)
    kept[keys] = False
    mask = kept if options.get("mask") is None else options["mask"] & kept
    expected = look(*given, **(options | {"mask": mask}))
    left = seen.without(keys)
    assert_allclose(left.output, expected.output, rtol=1e-11, atol=1e-13)
    assert_allclose(left.lse, expected.lse, rtol=1e-11, atol=1e-13)
    assert_allclose(left.weights[...], expected.weights[...], rtol=1e-11, atol=1e-13)
    assert_allclose(left.removed, true.weights[..., keys].sum(-1), rtol=1e-11, atol=1e-13)
    assert "renormalised, not the model's" in str(left.check())
    assert not left.check().verified


def test_without_the_sinks():
    given, sinks = arrays(), np.arange(6.0)
    left = look(*given, sinks=sinks).without(2, sink=True)
    mask = np.arange(S) != 2
    assert_allclose(left.weights[...], look(*given, mask=mask).weights[...], rtol=1e-11)
    true = steps(*given, sinks=sinks)
    assert_allclose(left.removed, true.weights[..., 2] + true.sink, rtol=1e-11)
    assert not left.sink.any()


def test_without_twice_and_its_names():
    seen = look(*arrays()).labels(queries="abcdefghijk", keys=map_of("abcdefghijklm"))
    left = seen.without(1).without(slice(2, 4))
    assert_array_equal(left.allowed[0, 0, 0], [j not in (1, 2, 3) for j in range(S)])
    assert left.key_labels == list("abcdefghijklm")


def map_of(text):
    return list(text)


def test_without_every_key():
    left = look(*arrays()).without(slice(None))
    assert not left.output.any()
    assert_allclose(left.removed, 1)
    assert np.isneginf(left.lse).all()


# ------------------------------------------------------------------------------------ precisions


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_other_dtypes(dtype):
    given = arrays(dtype=dtype)
    bias = _rng().standard_normal((H, T, S)).astype(dtype)
    options = {"bias": bias, "causal": True, "query_offset": 2}
    seen, true = look(*given, **options), steps(*given, **options)
    assert seen.output.dtype == dtype
    for name in ("weights", "scores", "baseline", "by_distance", "contribution"):
        assert getattr(seen, name)[...].dtype == np.float32
    assert_allclose(seen.weights[...], true.weights, rtol=3e-5, atol=1e-6)
    assert_allclose(
        seen.contribution[...], np.linalg.norm(true.terms, axis=-1), rtol=1e-4, atol=1e-6
    )
    for summary in (seen.entropy(), seen.received(), seen.mass(3), seen.sink, seen.carry(1.0)):
        assert summary.dtype == np.float32
    assert seen.check().verified
    assert_allclose(seen.steps(3, 2, 1).weights[0], true.weights[1, 2, 3], rtol=1e-9)


# ------------------------------------------------------------------ a call that has no head axis


def test_without_heads():
    query, key, value = (a[0] for a in arrays(batch=(), heads=(1, 1)))
    options = {"mask": _mask(T, S), "sinks": [0.5]}
    seen, true = look(query, key, value, **options), steps(query, key, value, **options)
    assert seen.shape == (T, S)
    assert seen.axes == ("query", "key")
    assert_allclose(seen.output, true.output, rtol=1e-11, atol=1e-13)
    assert_allclose(seen.weights[3], true.weights[3], rtol=1e-11)
    assert_allclose(seen.weights[[1, 2], [3, 4]], true.weights[[1, 2], [3, 4]], rtol=1e-11)
    assert seen.lse.shape == seen.sink.shape == seen.entropy().shape == seen.mass(0).shape == (T,)
    assert seen.received().shape == seen.carry(np.ones(T)).shape == (S,)
    assert seen.map(2, 3).shape == (2, 3)
    assert seen.top(2).positions.shape == (T, 2)
    assert seen.distance()[1].shape == (T + S - 1,)
    assert seen.without(0).removed.shape == (T,)
    assert_allclose(seen.steps(4).output[0], true.output[4], rtol=1e-11)
    assert "steps(query)" in repr(seen)


@pytest.mark.parametrize("empty", [{"batch": (0,)}, {"rows": 0}, {"keys": 0}, {"heads": (0, 0)}])
def test_nothing_to_see(empty):
    seen = look(*arrays(**empty))
    shape = seen.shape
    for name in ("weights", "scores", "allowed", "baseline", "by_distance", "contribution"):
        assert getattr(seen, name)[...].shape == shape
    assert seen.received().shape == seen.received(mean=True).shape == (*shape[:-2], shape[-1])
    assert seen.carry(1.0).shape == (*shape[:-2], shape[-1])
    assert seen.entropy().shape == seen.sink.shape == seen.mass([]).shape == shape[:-1]
    assert_array_equal(seen.top(3).positions, np.full((*shape[:-1], 3), -1))
    assert np.isnan(seen.map(2, 3)).all()
    edges, share = seen.distance()
    assert share.shape == (*shape[:-2], len(edges) - 1)
    assert seen.check() == (0, 0, 0)
    assert repr(seen)


# -------------------------------------------------------------------------- what is not attended


def test_what_is_masked_never_matters():
    query, key, value = arrays()
    mask = np.ones(S, bool)
    mask[[2, 7]] = False
    seen = look(query, key, value, mask=mask)
    key[:, :, 2], value[:, :, 2] = np.nan, np.inf
    key[:, :, 7], value[:, :, 7] = np.inf, np.nan
    spoilt = look(query, key, value, mask=mask)
    for name in ("weights", "scores", "baseline", "by_distance", "contribution"):
        assert_array_equal(getattr(seen, name)[...], getattr(spoilt, name)[...])
    assert_array_equal(seen.received(), spoilt.received())
    assert_array_equal(seen.map(3, 4, "max"), spoilt.map(3, 4, "max"))
    assert spoilt.check().verified


def test_an_attended_value_that_is_not_finite_is_no_difference():
    query, key, value = arrays()
    value[0, 0, 3, 1] = np.inf
    value[1, 2, 5, 0] = np.nan
    assert look(query, key, value).check().verified


def test_an_output_that_is_wrongly_finite_is_one():
    query, key, value = arrays()
    seen = look(query, key, value)
    value[0, 0, 3, 1] = np.inf
    assert seen.check().output == np.inf
    assert not seen.check().verified


# ------------------------------------------------------------------------------------- the proof


@pytest.mark.parametrize("which", [0, 1, 2])
def test_overwritten_arrays_are_found(which):
    given = arrays(dtype=np.float32)
    seen, kept = look(*given), look(*given, copy=True)
    before = kept.weights[...]
    given[which][...] = given[which][..., ::-1].copy()
    assert not seen.check().verified
    assert str(seen.check()).startswith("not verified: ")
    assert kept.check().verified
    assert_array_equal(kept.weights[...], before)


def test_an_overwritten_mask_is_found():
    mask = _mask(H, T, S)
    given = arrays()
    seen, kept = look(*given, mask=mask), look(*given, mask=mask, copy=True)
    mask[...] = ~mask
    assert not seen.check().verified
    assert kept.check().verified


def test_a_copy_does_not_grow():
    given = arrays()
    mask = np.broadcast_to(np.arange(S) > 2, (B, H, T, S))
    query = np.broadcast_to(given[0][:1], given[0].shape)
    seen = look(query, *given[1:], mask=mask, copy=True)
    assert seen.nbytes < look(*given).nbytes + S
    assert_array_equal(seen.weights[...], look(query, *given[1:], mask=mask).weights[...])


def test_padding_is_left_out_of_the_proof():
    given = arrays()
    seen = look(*given)
    real = some_padding(seen)
    output = seen._output.copy()
    output[np.broadcast_to(~real[:, None], output.shape[:-1])] = 17
    assert not Look(seen.call, output, seen._lse).check().verified
    assert Look(seen.call, output, seen._lse, real_rows=real).check().verified


def test_the_check_says_how_far():
    seen = look(*arrays(dtype=np.float32))
    output = seen._output.copy()
    output[1, 2, 3, 4] += 0.5
    found = Look(seen.call, output, seen._lse).check()
    assert found.output == pytest.approx(0.5, rel=1e-4)
    assert found.relative == pytest.approx(0.5 / np.abs(output).max(), rel=1e-4)
    assert found.rows < 1e-6
    output, relative, rows = found
    assert (output, relative, rows) == found


def test_a_wrong_lse_is_found_though_the_values_hide_it():
    query, key, value = arrays()
    seen = look(query, key, np.zeros_like(value))
    found = Look(seen.call, seen._output, seen._lse + 0.1).check()
    assert found.relative == 0
    assert found.rows == pytest.approx(1 - np.exp(-0.1))
    assert str(found) == "not verified: weights of a row miss their sum by 0.1"


# -------------------------------------------------------------------------- refusals and manners


def test_a_part_over_the_limit_is_refused_with_its_size():
    given = arrays(batch=(), heads=(2, 1), rows=40_000, keys=40_000, dtype=np.float32)
    seen = Look(check(*given), given[2], np.zeros((2, 40_000), np.float32))
    with pytest.raises(ValueError, match=r"weights\[...\] .*11\.9 GiB.* limit of 1\.0 GiB.*limit"):
        seen.weights[...]
    with pytest.raises(ValueError, match=r"baseline.*6\.0 GiB"):
        seen.baseline[0]
    with pytest.raises(ValueError, match=r"top\(40000\)"):
        seen.top(40_000)
    with pytest.raises(ValueError, match=r"map\(\).*GiB"):
        seen.map(40_000, 40_000)
    seen.limit = 1 << 16
    with pytest.raises(ValueError, match=r"distance\(\)"):
        seen.distance()


def test_the_limit_can_be_set():
    seen = look(*arrays())
    seen.limit = 8 * S
    assert seen.weights[0, 0, 0].shape == (S,)
    with pytest.raises(ValueError, match=r"ask for a smaller part, or set \.limit"):
        seen.weights[0, 0, :2]
    assert Look.limit == 1 << 30


def test_labels():
    seen = look(*arrays())
    assert seen.query_labels is None
    assert seen.labels(queries=range(T), keys="abcdefghijklm") is seen
    assert seen.query_labels == [str(n) for n in range(T)]
    assert seen.key_labels == list("abcdefghijklm")
    with pytest.raises(
        ValueError, match=f"queries: expected {T} labels, received {S}.*{T} queries"
    ):
        seen.labels(queries="abcdefghijklm", keys="abcdefghijk")


TOLD_ELSEWHERE = {"shape", "axes", "nbytes", "limit", "sums"}


def test_the_repr_teaches():
    text = repr(look(*arrays(dtype=np.float32)))
    assert "2 items × 6 heads × 11 queries × 13 keys, float32" in text
    for name in dir(Look):
        if not name.startswith("_") and name not in TOLD_ELSEWHERE:
            assert f".{name}" in text, name
    assert "weights[item, head, query, key]" in text
    assert "not computed yet" in repr(look(*arrays()).weights)


def test_nbytes():
    given = arrays()
    seen = look(*given, mask=_mask(1, T, S))
    assert (
        seen.nbytes == sum(a.nbytes for a in given) + seen.output.nbytes + seen.lse.nbytes + T * S
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda seen: seen.top(0), "k: expected at least 1, received 0"),
        (lambda seen: seen.top(2, by="weights"), "by: expected 'weight' or 'lift'"),
        (lambda seen: seen.map(0, 2), "rows, columns: expected at least 1"),
        (lambda seen: seen.map(2, 2, "median"), "how: expected 'mean' or 'max'"),
        (lambda seen: seen.distance([3]), "edges"),
        (lambda seen: seen.distance([3, 1]), "edges: expected two or more rising numbers"),
        (lambda seen: seen.carry(np.ones(3)), r"x: expected shape \(2, 6, 11\), received \(3,\)"),
    ],
)
def test_wrong_values(wrong, words):
    with pytest.raises(ValueError, match=words):
        wrong(look(*arrays()))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda seen: seen.top(2, rows=T), f"rows: position {T} is outside of the axis of {T}"),
        (lambda seen: seen.mass(-S - 1), "positions: position -14 is outside"),
        (lambda seen: seen.mass([[1]]), "positions: expected an int, a slice, a Word or a list"),
        (lambda seen: seen.without(S), "positions: position 13"),
        (lambda seen: seen.steps(0), r"item: expected one of a batch \(2,\)"),
        (lambda seen: seen.steps(0, H, 1), "head: position 6"),
        (lambda seen: seen.steps(slice(0, 2), 0, 1), "query: expected one position"),
        (lambda seen: seen.weights[0, "it"], "received 'it'"),
    ],
)
def test_wrong_positions(wrong, words):
    with pytest.raises(IndexError, match=words):
        wrong(look(*arrays()))


def test_wrong_arguments_are_those_of_attention():
    query, key, value = arrays()
    with pytest.raises(TypeError, match="mask: expected booleans"):
        look(query, key, value, mask=np.ones((T, S)))
    with pytest.raises(TypeError, match="dropout"):
        look(query, key, value, dropout=0.5)
    with pytest.raises(TypeError, match="x: expected real numbers"):
        look(query, key, value).carry("abc")
