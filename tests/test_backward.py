"""The kernel's gradients against the closed formula in float64, on every kernel of this machine."""

from typing import Any

import cases
import numpy as np
import pytest

import regard
from regard import _kernel
from regard.core.arguments import bits, real
from regard.core.call import check


def sum_to(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Undo broadcasting."""
    array = array.sum(axis=tuple(range(array.ndim - len(shape))))
    axes = tuple(i for i, n in enumerate(shape) if n == 1 and array.shape[i] != 1)
    return array.sum(axis=axes, keepdims=True) if axes else array


def backward(query, key, value, grad_output, grad_lse=None, **options: Any) -> dict[str, Any]:
    """Run the kernel forward and backward; gradients by name."""
    call = check(query, key, value, **options)
    q, k, v = call.query, call.key, call.value
    rows = call.shape[:-1]
    output = np.empty((*rows, v.shape[-1]), q.dtype)
    lse = np.empty(rows)
    given = [bits(a) for a in (q, k, v, output)]
    _kernel.forward(*given, lse, *call.rule, call.dropout, call.seed, call.high)
    heads = (*call.batch, k.shape[-3], k.shape[-2])
    wide = real(q.dtype)
    grads = {
        "query": np.full(q.shape, 9, wide),
        "key": np.full((*heads, k.shape[-1]), 9, wide),
        "value": np.full((*heads, v.shape[-1]), 9, wide),
        "bias": None if call.rule.bias is None else np.zeros(call.rule.bias.shape, wide),
        "sinks": None if call.rule.sinks is None else np.full(call.rule.sinks.shape, 9.0),
    }
    _kernel.backward(
        *given, lse, grad_output, grad_lse, *grads.values(), *call.rule, call.dropout, call.seed
    )
    return {name: grad for name, grad in grads.items() if grad is not None}


def closed_formula(query, key, value, grad_output, grad_lse=None, **options: Any) -> dict[str, Any]:
    """The same from the textbook's weights, with all of them at once."""
    judge = regard.steps(query, key, value, **options)
    q, k, v, do = (np.asarray(a, np.float64) for a in (query, key, value, grad_output))
    group = q.shape[-3] // k.shape[-3]
    k2, v2 = np.repeat(k, group, -3), np.repeat(v, group, -3)
    weights, kept = judge.weights, judge.kept
    given = kept * (do @ v2.swapaxes(-1, -2))
    through = (weights * given).sum(-1, keepdims=True)
    if grad_lse is not None:
        through = through - np.asarray(grad_lse, np.float64)[..., None]
    of_scores = weights * (given - through)
    grads = {}
    if options.get("bias") is not None:
        grads["bias"] = sum_to(of_scores, np.shape(options["bias"]))
    if options.get("sinks") is not None:
        of_sinks = -judge.sink * through[..., 0]
        grads["sinks"] = of_sinks.sum(axis=(*range(of_sinks.ndim - 2), -1))
    if options.get("softcap") is not None:
        of_scores = of_scores * (1 - (judge.capped / options["softcap"]) ** 2)
    of_scores = of_scores * judge.scale
    grouped = (*q.shape[:-3], k.shape[-3], group)

    def of_group(array: np.ndarray) -> np.ndarray:
        return array.reshape(*grouped, *array.shape[-2:]).sum(axis=-3)

    grads["query"] = of_scores @ k2
    grads["key"] = of_group(of_scores.swapaxes(-1, -2) @ q)
    grads["value"] = of_group((weights * kept).swapaxes(-1, -2) @ do)
    return grads


def drawn(seed: int, dtype: Any) -> tuple[tuple[np.ndarray, ...], dict[str, Any]]:
    """A random call: arrays, gradients and options."""
    rng = np.random.default_rng(seed)
    batch, groups, group = rng.integers(1, 3), rng.integers(1, 3), rng.integers(1, 4)
    heads, rows, keys = groups * group, int(rng.integers(1, 80)), int(rng.integers(1, 200))
    width, columns = int(rng.integers(1, 70)), int(rng.integers(1, 40))
    sizes = (
        (batch, heads, rows, width),
        (batch, groups, keys, width),
        (batch, groups, keys, columns),
    )
    arrays = [rng.standard_normal(size).astype(dtype) for size in sizes]
    arrays.append(rng.standard_normal((batch, heads, rows, columns)).astype(dtype))

    def now(chance: float = 0.4) -> bool:
        return bool(rng.random() < chance)

    arrays.append(rng.standard_normal((batch, heads, rows)).astype(dtype) if now() else None)
    options: dict[str, Any] = {}
    if now():
        options["mask"] = (
            rng.random((batch, 1 if now() else heads, 1 if now() else rows, keys)) < 0.7
        )
    if now():
        shape = [n if now(0.7) else 1 for n in (batch, heads, rows, keys)]
        options["bias"] = rng.standard_normal(shape).astype(dtype)
        options["bias"][rng.random(shape) < 0.1] = -np.inf
    if now():
        options |= {"causal": True, "query_offset": int(rng.integers(-3, keys))}
    if now():
        options |= {"window": (int(rng.integers(0, keys)), None), "query_offset": keys - rows}
    if now():
        options["key_lengths"] = rng.integers(0, keys + 1, batch)
    if now():
        segments = rng.integers(0, 3, (batch, rows)), rng.integers(0, 3, (batch, keys))
        options["segments"] = segments
    if now(0.3):
        options["softcap"] = 3.0
    if now(0.3):
        options["sinks"] = rng.standard_normal(heads).astype(dtype)
    if now(0.3):
        options |= {"dropout": 0.3, "seed": int(rng.integers(2**62))}
    options["scale"] = float(rng.choice([width**-0.5, -0.3, 0.5]))
    return tuple(arrays), options


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(60))
def test_any_call(kernel, seed, dtype):
    arrays, options = drawn(seed, dtype)
    found = backward(*arrays, **options)
    for name, expected in closed_formula(*arrays, **options).items():
        bound = (1e-4 if dtype == np.float32 else 1e-10) * max(1.0, np.abs(expected).max(initial=0))
        error = np.abs(found[name] - expected.reshape(found[name].shape)).max(initial=0)
        assert error <= bound, f"{name}: off by {error:.2g} of {bound:.2g}"


@pytest.mark.parametrize("seed", range(12))
def test_the_same_bits_however_the_work_is_cut(kernel, seed):
    arrays, options = drawn(100 + seed, np.float32)
    found = []
    for threads in (1, 2, 7):
        with regard.threads(threads):
            found.append(backward(*arrays, **options))
    for name, first in found[0].items():
        assert all(np.array_equal(first, other[name]) for other in found[1:]), name


def test_enough_work_to_be_cut_by_rows_and_by_keys(kernel):
    rng = np.random.default_rng(7)
    query, key, value, grad = rng.standard_normal((4, 1, 1, 331, 17), np.float32)
    with regard.threads(1):
        whole = backward(query, key, value, grad, causal=True)
    with regard.threads(3):
        cut = backward(query, key, value, grad, causal=True)
    for name, expected in closed_formula(query, key, value, grad, causal=True).items():
        np.testing.assert_array_equal(whole[name], cut[name], err_msg=name)
        np.testing.assert_allclose(whole[name], expected, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("case", cases.GRADIENTS, ids=lambda case: case.name)
def test_hard_cases(kernel, case):
    found = backward(*case.inputs, case.cotangent, **case.options)
    relative, absolute = case.tolerance
    for name, grad in found.items():
        expected = case.answer(name)
        grad = grad.reshape(expected.shape)
        np.testing.assert_allclose(grad, expected, rtol=relative, atol=absolute, err_msg=name)


def test_what_a_mask_hides_never_matters(kernel):
    rng = np.random.default_rng(3)
    query, key, value, grad = rng.standard_normal((4, 1, 2, 13, 7)).astype(np.float32)
    mask = rng.random((13, 13)) < 0.6
    mask[:, 5], mask[4] = False, False  # nobody sees key 5, and row 4 sees nobody
    clean = backward(query, key, value, grad, mask=mask)
    for array, place in ((key, 5), (value, 5), (query, 4), (grad, 4)):
        array[..., place, :] = rng.choice([np.nan, np.inf, -np.inf], array.shape[-1])
    spoilt = backward(query, key, value, grad, mask=mask)
    for name in ("query", "key", "value"):
        np.testing.assert_array_equal(clean[name], spoilt[name], err_msg=name)
    assert not clean["query"][..., 4, :].any()
    assert not clean["key"][..., 5, :].any()


def test_a_gradient_that_is_not_finite_spoils_only_what_its_row_attends(kernel):
    rng = np.random.default_rng(4)
    query, key, value, grad = rng.standard_normal((4, 1, 1, 11, 5)).astype(np.float32)
    grad[0, 0, 3, 2] = np.nan
    found = backward(query, key, value, grad, causal=True)
    assert np.isnan(found["value"][0, 0, :4]).any(axis=-1).all()
    assert np.isfinite(found["value"][0, 0, 4:]).all()
    assert np.isfinite(found["query"][0, 0, np.arange(11) != 3]).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_summed_in_float32(kernel, dtype):
    import ml_dtypes

    rng = np.random.default_rng(5)
    arrays = rng.standard_normal((4, 1, 3, 67, 13)).astype(
        np.dtype(getattr(ml_dtypes, dtype, dtype))
    )
    exact = closed_formula(*arrays, causal=True)
    found = backward(*arrays[:3], arrays[3].astype(np.float32), causal=True)
    for name, expected in exact.items():
        error = np.abs(found[name] - expected).max() / np.abs(expected).max()
        assert error < 4 * float(ml_dtypes.finfo(arrays.dtype).eps), f"{name}: {error}"
