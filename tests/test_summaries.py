"""What a look says of all weights together, against the same said of the textbook's weights."""

import subprocess
import sys
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from test_look import CASES, H, S, T, arrays, naive_baseline, naive_by_distance, some_padding

import regard
from regard.core import indexing, passes, tiles
from regard.core.attention import look
from regard.core.look import Look
from regard.core.steps import steps

TIGHT = {"rtol": 1e-9, "atol": 1e-12}


@pytest.fixture(params=[False, True], ids=["whole", "in small tiles, padded"])
def pieces(request, monkeypatch):
    """Once as it comes, once by rectangles of a few rows and with rows of padding."""
    if request.param:
        monkeypatch.setattr(tiles, "TILE_BYTES", 300)
    return request.param


@cache
def computed(name):
    sizes, options = CASES[name]
    given = arrays(**sizes)
    return look(*given, **options), steps(*given, **options)


@pytest.fixture(params=CASES)
def case(request, pieces):
    seen, true = computed(request.param)
    real = np.ones((*seen.call.batch, seen.shape[-2]), bool)
    if pieces:
        real = some_padding(seen)
        seen = Look(seen.call, seen._output, seen._lse, real_rows=real)
    return seen, true, real[..., None, :, None]


def test_received(case):
    seen, true, real = case
    total = (true.weights * real).sum(-2)
    assert_allclose(seen.received(), total, **TIGHT)
    rows = (true.allowed & real).sum(-2)
    mean = np.where(rows > 0, total / np.maximum(rows, 1), np.nan)
    assert_allclose(seen.received(mean=True), mean, **TIGHT)
    assert_allclose(seen.received(), total, **TIGHT)  # and nothing was overwritten


def test_entropy(case):
    seen, true, _ = case
    weights = true.weights
    terms = weights * np.log(weights, where=weights > 0, out=np.zeros_like(weights))
    assert_allclose(seen.entropy(), -terms.sum(-1), **TIGHT)


def test_mass(case):
    seen, true, _ = case
    for keys in (0, -1, slice(None, None, 3), [0, 0], np.arange(seen.shape[-1]) % 4 == 0):
        chosen = np.unique(np.arange(seen.shape[-1])[keys])
        assert_allclose(seen.mass(keys), true.weights[..., chosen].sum(-1), **TIGHT)
    assert_array_equal(seen.mass([]), np.zeros(seen.shape[:-1]))


def test_carry(case):
    seen, true, _ = case
    x = np.random.default_rng(5).standard_normal(seen.shape[:-1])
    expected = (x[..., None, :] @ true.weights)[..., 0, :]
    assert_allclose(seen.carry(x), expected, **TIGHT)
    assert_allclose(seen.carry(1), true.weights.sum(-2), **TIGHT)
    assert_allclose(
        seen.carry(np.arange(seen.shape[-2])), np.arange(seen.shape[-2]) @ true.weights, **TIGHT
    )


def test_distance(case):
    for edges in (None, [-3, -1, 0, 1, 5], np.linspace(-20.5, 20.5, 7)):
        check_distance(*case, edges)


def check_distance(seen, true, real, edges):
    rows, keys = seen.shape[-2:]
    offset = np.broadcast_to(seen.call.query_offset, seen.call.batch)[..., None, None]
    distance = np.arange(keys) - np.arange(rows)[:, None] - offset
    weights = true.weights * real
    found, share = seen.distance(edges)
    if edges is None:
        assert_array_equal(found, np.arange(distance.min(), distance.max() + 2))
    else:
        assert_array_equal(found, edges)
    for at in np.ndindex(seen.shape[:-2]):
        total = weights[at].sum()
        bins, _ = np.histogram(distance[at[:-1]], found, weights=weights[at])
        expected = bins / total if total else np.full(len(bins), np.nan)
        assert_allclose(share[at], expected, **TIGHT)


@pytest.mark.parametrize("how", ["mean", "max"])
def test_map(case, how):
    for cells in ((1, 1), (3, 4), (20, 2)):
        check_map(*case, cells, how)


def check_map(seen, true, real, cells, how):
    found = seen.map(*cells, how=how)
    inside = true.allowed & real
    assert found.shape == (*seen.shape[:-2], *cells)
    rows, keys = (
        [range(i * n // m, (i + 1) * n // m) for i in range(m)]
        for n, m in zip(seen.shape[-2:], cells, strict=True)
    )
    for at in np.ndindex(found.shape):
        cell = (*at[:-2], *np.ix_(rows[at[-2]], keys[at[-1]]))
        numbers = true.weights[cell][inside[cell]]
        expected = getattr(np, how)(numbers) if numbers.size else np.nan
        assert_allclose(found[at], expected, **TIGHT)


def naive_top(rank, ranked, k):
    """Positions of the k highest in rank among those that are ranked; ties to the lower."""
    out = np.full((*rank.shape[:-1], k), -1)
    for at in np.ndindex(rank.shape[:-1]):
        order = sorted(np.flatnonzero(ranked[at]), key=lambda j: (-rank[at][j], j))[:k]
        out[at][: len(order)] = order
    return out


@pytest.mark.parametrize("by", ["weight", "lift"])
def test_top(case, by):
    for k in (1, 4, 71):
        check_top(*case[:2], k, by)


@pytest.mark.parametrize("by", ["weight", "lift"])
@pytest.mark.parametrize("k", [13, 59, 67])
def test_top_of_many_keys(k, by):
    """More keys than places, some of them alike; short and long lists are kept in two ways."""
    query, key, value = arrays(rows=53, keys=211)
    key[..., 100:200, :] = key[..., :100, :]
    seen = look(query, key, value, causal=True, query_offset=97)
    check_top(seen, steps(query, key, value, causal=True, query_offset=97), k, by)


def check_top(seen, true, k, by):
    # The numbers that are ranked are the look's own, so that ties are the same.
    weights, baseline, far = (v[...] for v in (seen.weights, seen.baseline, seen.by_distance))
    rank = weights - np.maximum(baseline, far) if by == "lift" else weights
    found = seen.top(k, by=by)
    expected = naive_top(rank, true.allowed & ~np.isnan(rank), k)
    assert_array_equal(found.positions, expected)
    none = expected < 0
    taken = [np.take_along_axis(a, np.maximum(expected, 0), -1) for a in (weights, baseline)]
    if seen.shape[-1]:
        assert_allclose(found.weights, np.where(none, 0, taken[0]), **TIGHT)
        assert_allclose(found.baseline, np.where(none, np.nan, taken[1]), **TIGHT)


@pytest.mark.parametrize("k", [1, 4, 71])
def test_top_and_sums_in_one_pass(case, k):
    seen = case[0]
    seen.__dict__.pop("sums", None)
    first = seen.top(k)
    together = seen.__dict__["sums"]
    for one, apart in zip(first, seen.top(k), strict=True):
        assert_array_equal(one, apart)
    apart = passes.sums(seen.call, seen._lse, seen.real_rows)
    for one, other in zip(together, apart, strict=True):
        assert_array_equal(one, other)


def asked(seen):
    """Everything that `prepare(top=5, map=(3, 4))` is for."""
    maps = seen.map(3, 4), seen.map(3, 4, "max")
    sums = seen.received(), seen.entropy(), *seen.distance()
    return [*seen.top(5), *seen.top(2), *seen.top(3, rows=[-1, 0]), *maps, *sums]


def test_prepared_answers_are_the_same_in_one_pass(case, monkeypatch):
    seen = case[0]
    seen.__dict__.pop("sums", None)
    expected = asked(seen)
    seen.__dict__.pop("sums")
    before = seen.nbytes
    assert seen.prepare(top=5, map=(3, 4)) is seen
    assert all(seen.shape[-2:]) <= (seen.nbytes > before)
    if all(seen.shape[-2:]):
        for name in ("sums", "top", "map"):
            monkeypatch.setattr(passes._kernel, name, None)
    for one, other in zip(asked(seen), expected, strict=True):
        assert_array_equal(one, other)


def test_prepared_answers_are_whole_new_arrays():
    seen = look(*arrays()).prepare(top=5, map=(3, 4))
    first = [array.copy() for array in asked(seen)]
    for array in asked(seen):
        array[...] = 7
    for one, other in zip(asked(seen), first, strict=True):
        assert_array_equal(one, other)


def test_what_is_not_prepared_is_found_as_ever():
    seen, plain = look(*arrays()).prepare(top=2, map=(3, 4)), look(*arrays())
    for ask in (
        lambda seen: seen.top(3).positions,
        lambda seen: seen.top(2, by="lift").positions,
        lambda seen: seen.map(4, 3),
        lambda seen: seen.baseline[...],
    ):
        assert_array_equal(ask(seen), ask(plain))
    with pytest.raises(ValueError, match="top: expected 0 or more, received -1"):
        seen.prepare(top=-1)
    with pytest.raises(ValueError, match="rows, columns: expected at least 1, received 0 and 2"):
        seen.prepare(map=(0, 2))
    seen.limit = 100
    for wanted, name in (({"top": 9}, "top"), ({"map": (9, 9)}, "map")):
        with pytest.raises(ValueError, match=rf"{name}\(.*limit"):
            seen.prepare(**wanted)


@pytest.mark.parametrize("by", ["weight", "lift"])
def test_top_of_some_rows(pieces, by):
    seen = look(*arrays(), causal=True, query_offset=2)
    whole = seen.top(3, by=by)
    for rows in (slice(2, 9, 3), [5, 0, 5], slice(3, 3), slice(None), np.arange(T) > 8):
        found = seen.top(3, by=by, rows=rows)
        for one, all_rows in zip(found, whole, strict=True):
            assert_array_equal(one, all_rows[..., rows, :])
    for row in (4, -1, np.int64(2)):
        found = seen.top(3, by=by, rows=row)
        assert found.positions.shape == (2, H, 3)
        for one, all_rows in zip(found, whole, strict=True):
            assert_array_equal(one, all_rows[..., row, :])


def test_ties_go_to_the_lower_position():
    query, key, value = arrays()
    seen = look(query * 0, key, value, window=(2, 2), query_offset=0)
    found = seen.top(3)
    for row in range(T):
        assert_array_equal(found.positions[0, 0, row], range(max(0, row - 2), max(0, row - 2) + 3))


def test_a_weight_of_zero_is_ranked_where_it_may_be_seen():
    """A key that may be seen and gets nothing is not the same as one that may not be seen."""
    query, key, value = np.ones((1, 2, 1)), np.zeros((1, 5, 1)), np.ones((1, 5, 1))
    key[0, [1, 3]] = -2000
    seen = look(query, key, value, mask=[True, True, False, True, False])
    assert_array_equal(seen.top(5).positions[0, 0], [0, 1, 3, -1, -1])
    assert_array_equal(seen.top(5).weights[0, 0], [1, 0, 0, 0, 0])
    assert_array_equal(np.isnan(seen.top(5).baseline[0, 0]), [False, False, False, True, True])


def test_lift_finds_what_only_this_row_looks_at():
    """A key that all rows like, and the row before, rank below what one row alone looks at."""
    logits = np.zeros((1, 9, 9))
    logits[0, :, 1] = 6  # whoever asks
    logits[0, 6, 4] = 5.5  # this row alone
    zero = np.zeros((1, 9, 1))
    seen = look(zero, zero, zero, bias=logits)
    assert seen.top(1, rows=6).positions[0, 0] == 1
    assert seen.top(1, by="lift", rows=6).positions[0, 0] == 4
    logits = np.zeros((1, 9, 9))
    logits[0] += 6 * np.eye(9, k=-1)  # one back, whatever stands there
    logits[0, 6, 2] = 5.5
    seen = look(zero, zero, zero, bias=logits)
    assert seen.top(1, rows=6).positions[0, 0] == 5
    assert seen.top(1, by="lift", rows=6).positions[0, 0] == 2


def test_one_row_has_nothing_to_be_compared_with():
    seen = look(*arrays(rows=1))
    assert np.isnan(seen.baseline[...]).all()
    assert (seen.top(2, by="lift").positions == -1).all()
    assert (seen.top(2).positions >= 0).all()


def test_a_row_that_is_not_finite_shows_in_its_row():
    query, key, value = arrays()
    query[0, 0, 3] = np.nan
    seen = look(query, key, value)
    assert np.isnan(seen.top(2).weights[0, 0, 3]).all()
    assert_array_equal(seen.top(2).positions[0, 0, 3], [0, 1])
    assert np.isfinite(seen.top(2).weights[0, 0, 4]).all()
    for how in ("mean", "max"):  # also where finite rows of its cell come after it
        assert_array_equal(np.isnan(seen.map(2, 1, how=how)[0, 0]), [[True], [False]])
    assert seen.check().verified


@settings(max_examples=60)
@given(
    rows=st.integers(0, 9),
    keys=st.integers(0, 9),
    heads=st.sampled_from([(1, 1), (4, 2), (3, 3)]),
    batch=st.sampled_from([(), (1,), (2,)]),
    offset=st.integers(-9, 9),
    density=st.sampled_from([0.1, 0.5, 1.0]),
    tile_bytes=st.sampled_from([1, 200, 1 << 20]),
    seed=st.integers(0, 99),
)
def test_any_shape(rows, keys, heads, batch, offset, density, tile_bytes, seed):
    rng = np.random.default_rng(seed)
    given = arrays(batch=batch, heads=heads, rows=rows, keys=keys, seed=seed)
    mask = rng.random((*batch, 1, rows, keys)) < density
    options = {"mask": mask, "causal": bool(seed % 2), "query_offset": offset}
    real = rng.random((*batch, rows)) < 0.8
    seen, true = look(*given, **options), steps(*given, **options)
    seen = Look(seen.call, seen._output, seen._lse, real_rows=real)
    before = tiles.TILE_BYTES, indexing.TILE_BYTES
    tiles.TILE_BYTES = indexing.TILE_BYTES = tile_bytes
    try:
        inside = true.allowed & real[..., None, :, None]
        assert_allclose(seen.received(), np.where(inside, true.weights, 0).sum(-2), **TIGHT)
        assert_array_equal(seen.sums.seen, inside.sum(-2))
        assert_allclose(
            seen.baseline[...], naive_baseline(true.weights, true.allowed, real), **TIGHT
        )
        assert_allclose(
            seen.by_distance[...], naive_by_distance(true.weights, true.allowed, real), **TIGHT
        )
        assert seen.check().verified
        whole = seen.map(max(rows, 1), max(keys, 1))
        if rows and keys:
            assert_allclose(whole, np.where(inside, true.weights, np.nan), **TIGHT)
    finally:
        tiles.TILE_BYTES, indexing.TILE_BYTES = before


@pytest.mark.parametrize("cells", [(7, 3), (2, 5), (4999, 2)])
@pytest.mark.parametrize("rows", [1031, 4099])
def test_many_rows_in_parts_of_their_own(rows, cells):
    """Rows of a head are summed in parts, which T decides; the threads that there are do not."""
    random = np.random.default_rng(rows)
    heads, keys, width = 3, 41, 5
    query, key, value = (
        random.standard_normal((2, h, n, width)) for h, n in ((heads, rows), (1, keys), (1, keys))
    )
    real = random.random((2, rows)) < 0.9
    seen = look(query, key, value, causal=True, query_offset=-rows // 2, window=(rows // 3, 0))
    seen = Look(seen.call, seen._output, seen._lse, real_rows=real)
    tokens = random.integers(0, 4, (2, rows)), random.integers(0, 4, (2, keys))

    def found(threads):
        same = np.zeros((2, heads, 2))
        with regard.threads(threads):
            sums = passes.sums(seen.call, seen._lse, real, (*tokens, same))
            own = passes.together(seen.call, seen._lse, real, 3, cells)
            alone = passes.maps(seen.call, seen._lse, real, cells)
            best = passes.strongest(seen.call, seen._lse, 3)
        return [*sums, same, *own[0], *own[1], *own[2], *alone, *best]

    first = found(1)
    for threads in (2, 5):
        for one, other in zip(found(threads), first, strict=True):
            assert_array_equal(one, other)
    weights, allowed = seen.weights[...], seen.allowed[...] & real[:, None, :, None]
    counted = np.where(allowed, weights, 0)
    sums, same = first[:5], first[5]
    assert_allclose(sums[0], counted.sum(axis=-2), **TIGHT)
    assert_array_equal(sums[1], allowed.sum(axis=-2))
    distance = np.arange(keys) - np.arange(rows)[:, None] + rows - 1
    for at in np.ndindex(2, heads):
        along = np.bincount(distance.ravel(), counted[at].ravel(), rows + keys - 1)
        assert_allclose(sums[2][at], along, **TIGHT)
        met = np.bincount(distance.ravel(), allowed[at].ravel(), rows + keys - 1)
        assert_array_equal(sums[3][at], met)
        alike = tokens[0][at[0]][:, None] == tokens[1][at[0]]
        assert_allclose(same[at][0], counted[at][alike].sum(), **TIGHT)
        assert_allclose(same[at][1], counted[at][:, 1:][alike[:, :-1]].sum(), **TIGHT)
    true = type("True", (), {"weights": weights, "allowed": seen.allowed[...]})
    for how in ("mean", "max"):
        check_map(seen, true, real[:, None, :, None], cells, how)
    for one, other in zip(first[14:16], first[16:18], strict=True):
        assert_allclose(one, other, **TIGHT)


def test_baselines_in_float32_where_nearly_all_is_ones_own():
    """received - weight loses no more than the last bit of a float64, and never falls below 0."""
    given = arrays(dtype=np.float32)
    bias = np.full((T, S), -60, np.float32)
    bias[np.arange(T), np.arange(T)] = 0
    seen = look(*given, bias=bias)
    true = steps(*given, bias=bias)
    real = np.ones((2, T), bool)
    assert_allclose(
        seen.baseline[...], naive_baseline(true.weights, true.allowed, real), rtol=1e-4, atol=1e-16
    )
    assert (seen.baseline[...] >= 0).all()


def test_sums_are_computed_once(monkeypatch):
    calls = []
    original = passes.sums
    monkeypatch.setattr(passes, "sums", lambda *a: calls.append(1) or original(*a))
    seen = look(*arrays())
    seen.received(), seen.received(mean=True), seen.distance(), seen.top(2, by="lift")
    assert seen.baseline[0, 0, 0, 0] > 0
    assert seen.by_distance[0, 0, 0, 0] > 0
    assert len(calls) == 1
    assert sum(a.nbytes for a in seen.sums) <= 2 * H * (4 * S + 3 * T) * 8  # entropy too


MEMORY = """
import sys, tracemalloc
import numpy as np
from regard.core.attention import look
rng = np.random.default_rng(0)
T = int(sys.argv[1])
query, key, value = rng.standard_normal((3, 2, T, 2)).astype(np.float32)
mask = np.arange(T) < T - 9
seen = look(query, key, value, mask=mask, causal=True)
seen.labels(keys=range(T))
asked = {
    "sums": lambda: seen.sums,
    "received": lambda: seen.received(mean=True),
    "entropy": seen.entropy,
    "top": lambda: seen.top(3),
    "top by lift": lambda: seen.top(3, by="lift"),
    "distance": seen.distance,
    "map": lambda: seen.map(64, 64),
    "prepare": lambda: seen.prepare(top=1, map=(64, 64)).removed,
    "mass": lambda: seen.mass([0, 5, T - 10]),
    "carry": lambda: seen.carry(np.ones((2, T))),
    "without": lambda: seen.without(0),
    "check": seen.check,
    "weights of a key": lambda: seen.weights[0, :, 5],
    "weights of far keys": lambda: seen.weights[..., [0, T - 10]],
    "pairs": lambda: seen.weights[0, np.arange(T), np.arange(T)],
    "baseline of a row": lambda: seen.baseline[0, T // 2],
    "by distance of a key": lambda: seen.by_distance[:, :, 7],
    "copy": lambda: look(query, key, value, mask=mask, copy=True),
}
tracemalloc.start()
for name, ask in asked.items():
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    answer = ask()
    del answer
    print(name, tracemalloc.get_traced_memory()[1] - before, sep=":")
"""


def peaks(size):
    run = subprocess.run(
        [sys.executable, "-c", MEMORY, str(size)], capture_output=True, text=True, check=True
    )
    return {name: int(peak) for name, peak in (line.split(":") for line in run.stdout.splitlines())}


def test_memory_is_linear():
    """Doubling T quadruples the weights; what a summary takes stays at a few tiles."""
    small, large = peaks(1511), peaks(3011)
    assert len(small) == 18
    dense = 2 * 3011**2 * 4
    for name, peak in large.items():
        print(f"{name:20} {small[name]:10} {peak:10}")
        assert peak < 12 * tiles.TILE_BYTES < dense / 2, (name, peak)
        assert peak - small[name] < 1500 * 2 * 200, (name, small[name], peak)
