"""`attention`: the right numbers, on every kernel that this processor can run."""

import subprocess
import sys
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from cases import CASES, REFUSED, normal
from near import floats, judged, same

import regard

pytestmark = pytest.mark.usefixtures("kernel")

# A row whose lse is so large that it cannot also hold what tells its weights apart.

cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


# ----------------------------------------------------------------------------------- right numbers


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
    np.testing.assert_allclose(look.weights[...], expected, relative, absolute)
    assert not look.weights[...][~judge.allowed].any()


@cases
@floats
def test_cases_in_every_dtype(case, dtype):
    with np.errstate(over="ignore"):
        inputs = [x.astype(dtype) for x in case.inputs]
    judged(*inputs, **case.options)


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
    judged(q, k, v)


# Sizes from which matrix tiles are used, where there are any.
LARGE = (2, 211, 37), (2, 223, 37), (2, 223, 41)


@floats
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True, "query_offset": 12, "softcap": 3.0},
        {"bias": 1, "window": (50, 7), "query_offset": 12},
    ],
)
def test_error_rule_at_larger_sizes(dtype, options):
    q, k, v = normal(9, *LARGE, dtype=dtype)
    if "bias" in options:
        options = options | {"bias": normal(2, (2, 211, 223))[0].astype(np.float32)}
    judged(q, k, v, **options)


@pytest.mark.parametrize("large", [1e20, 3e38, 1e-30, 1e-42])
def test_numbers_near_the_limits_at_larger_sizes(large):
    q, k, v = (x.astype(np.float32) for x in normal(4, *LARGE))
    judged(q, k, v / np.abs(v).max() * np.float32(large))
    k[:, 5] *= np.float32(min(large, 1e30))
    q[:, :, 0] = 0
    k[:, 5, 1:] = 0
    judged(q, k, v)
    k[:, 7], v[:, 9] = -np.inf, np.nan
    mask = np.ones(223, bool)
    mask[[7, 9]] = False
    assert same(
        regard.attention(q, k, v, mask=mask), regard.attention(q, k, np.nan_to_num(v), mask=mask)
    )
    assert np.isfinite(regard.attention(q, k, v, mask=mask)).all()


@pytest.mark.parametrize("shapes", [((2, 5, 7), (2, 11, 7), (2, 11, 7)), LARGE])
def test_high_precision_is_a_legal_wish(shapes):
    q, k, v = (x.astype(np.float32) for x in normal(5, *shapes))
    high = regard.attention(q, k, v, precision="high")
    np.testing.assert_allclose(high, regard.attention(q, k, v), rtol=2**-14, atol=2**-14)


# ----------------------------------------------------------------------------------- the same bits


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


# --------------------------------------------------------------------------- what is the same call


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


# ------------------------------------------------------------------------ other frameworks' arrays


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


# ------------------------------------------------------------------------------------------ memory


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
