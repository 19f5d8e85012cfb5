"""How near is near enough: the one rule by which all numbers are judged.

`regard.steps` in float64 is the truth. The yardstick is the naive formula in the inputs' own dtype,
which holds the whole table of weights: an answer may be off twice as far as that, and by two units
in the last place of the largest number besides. In float64 it is 1e-11 of the largest number.
"""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import regard

FLOATS = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]
floats = pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: np.dtype(dtype).name)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Bit for bit."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def near(
    found: Any, truth: np.ndarray, naive: np.ndarray, dtype: Any, what: str = "", more: float = 0
) -> None:
    """Assert that `found`, computed in `dtype`, is as near to the truth as it must be."""
    found, naive = np.asarray(found).astype(np.float64), np.asarray(naive).astype(np.float64)
    assert found.shape == truth.shape, f"{what}: shape {found.shape}, expected {truth.shape}"
    finite = np.isfinite(truth)
    assert np.array_equal(np.isfinite(found), finite), f"{what}: other elements are not finite"
    assert np.array_equal(np.isneginf(found), np.isneginf(truth)), f"{what}: other -inf"
    if not finite.any():
        return
    error = np.abs(found[finite] - truth[finite]).max()
    largest = np.abs(truth[finite]).max()
    if np.dtype(dtype) == np.float64:
        bound = 1e-11 * max(1.0, largest)
    else:
        yardstick = np.nan_to_num(np.abs(naive[finite] - truth[finite])).max()
        bound = 2 * yardstick + (2 + more) * float(ml_dtypes.finfo(dtype).eps) * largest
    assert error <= bound, f"{what}: off by {error:.3g}, may be off by {bound:.3g}"


def naive(judge: regard.Steps, query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
    """The formula in the inputs' own dtype: output, weights, sink and lse.

    Halves are computed in float32 with their weights and output rounded, as frameworks do.
    """
    dtype = np.asarray(query).dtype
    wide = np.float64 if dtype == np.float64 else np.float32
    q, k, v = (np.asarray(x).astype(wide) for x in (query, key, value))
    with np.errstate(all="ignore"):
        if q.ndim > 2:
            k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], axis=-3) for x in (k, v))
        scores = (q @ k.swapaxes(-1, -2)) * wide(judge.scale)
        if options.get("softcap") is not None:
            cap = wide(options["softcap"])
            scores = cap * np.tanh(scores / cap)
        if options.get("bias") is not None:
            scores = scores + np.asarray(options["bias"]).astype(wide)
        scores = np.where(judge.allowed, scores, wide(-np.inf))
        sinks = options.get("sinks")
        sink = wide(-np.inf) if sinks is None else np.asarray(sinks).astype(wide)
        sink = sink[..., None] if q.ndim > 2 and sinks is not None else sink
        sink = np.broadcast_to(sink, judge.lse.shape)[..., None]
        logits = np.concatenate([scores, sink], -1)
        peak = logits.max(axis=-1, keepdims=True)
        powers = np.exp(logits - peak)
        total = powers.sum(axis=-1, keepdims=True)
        shares = powers / total
        weights = np.where(judge.allowed, shares[..., :-1], wide(0))
        used = (weights * judge.kept.astype(wide)).astype(dtype).astype(wide)
        output = (used @ v).astype(dtype)
        return output, weights, shares[..., -1], (peak + np.log(total))[..., 0]


def judged(query: Any, key: Any, value: Any, **options: Any) -> Any:
    """Call `attention` and `look`, judge output, lse and weights, and return the output."""
    dtype = np.asarray(query).dtype
    judge = regard.steps(query, key, value, **options)
    by_formula = naive(judge, query, key, value, options)
    output, lse = regard.attention(query, key, value, return_lse=True, **options)
    assert output.dtype == dtype
    assert lse.dtype == (np.float64 if dtype == np.float64 else np.float32)
    near(output, judge.output, by_formula[0], dtype, "output")
    near(lse, judge.lse, by_formula[3], lse.dtype, "lse")
    look = regard.look(query, key, value, **without_dropout(options))
    found = look.weights[...]
    # A weight is e^(score - lse): the rounding of both is relative to them, not to the weight.
    finite = np.abs(judge.lse[np.isfinite(judge.lse)])
    more = min(float(finite.max(initial=0)), 10) / 2
    near(found, judge.weights, by_formula[1], lse.dtype, "weights", more)
    assert not found[~judge.allowed].any(), "a key that may not be attended has weight"
    near(look.sink, judge.sink, by_formula[2], lse.dtype, "sink", more)
    return output


def without_dropout(options: dict[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in options.items() if name not in ("dropout", "seed")}
