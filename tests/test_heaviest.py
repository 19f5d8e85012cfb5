"""The heaviest link of each head, found with bounds, beside all weights."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.core.compute import compute
from regard.recording import heaviest as module
from regard.recording.heaviest import heaviest
from regard.recording.layer import Kept, Layer

RULES = ("causal", "window", "holes", "empty", "bias", "both ways", "sinks")


def layer(rule, sharpness, rows=23, keys=23, heads=6, seed=0, dtype=np.float32, offset=0):
    """One item's attention of grouped heads under some rule."""
    rng = np.random.default_rng(seed)
    query = (sharpness * rng.standard_normal((heads, rows, 5))).astype(dtype)
    key, value = rng.standard_normal((2, 2, keys, 5)).astype(dtype)
    key = key + np.linspace(0, 3, keys)[:, None].astype(dtype) * (sharpness < 1)
    past = np.minimum(np.arange(rows) + offset + 1, keys)
    options = {
        "causal": {"causal": True, "query_offset": offset},
        "window": {"ranges": (np.maximum(past - 4, 0), past)},
        "holes": {"mask": rng.random((1, 1, keys)) < 0.7},
        "empty": {"ranges": (np.minimum(past, 3), past)},  # the first rows attend to nothing
        "bias": {"bias": 3 * rng.standard_normal((heads, rows, keys)).astype(dtype), "scale": 0.3},
        "both ways": {"softcap": 4.0},
        "sinks": {"sinks": rng.standard_normal(heads) + 3, "ranges": (0 * past, past)},
    }[rule]
    kept = Kept("x", 0, "decoder", np.arange(heads), query, key, value, np.empty(0), options, 0, 0)
    call = module.check(query, key, value, **options)
    return Layer(replace(kept, lse=compute(call, True)[1]))


def plainly(shown, special, own):
    """The same from all weights at once."""
    weights = shown.weights[...].astype(float)
    i, j = np.indices(weights.shape[1:])
    fits = shown.allowed[...] & ~special & ~((i + shown.offset == j) & own)
    weights = np.where(fits, weights, -1)
    flat = weights.reshape(len(weights), -1)
    best = flat.argmax(-1)
    return flat[np.arange(len(flat)), best], best // weights.shape[-1], best % weights.shape[-1]


@pytest.mark.parametrize("rule", RULES)
@given(
    sharpness=st.sampled_from([0.0, 0.3, 1.0, 5.0, 40.0]),
    seed=st.integers(0, 99),
    specials=st.sampled_from([(), (0,), (0, 7, 22)]),
    own=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float64]),
)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_no_heavier_link_is_missed(rule, sharpness, seed, specials, own, dtype):
    special = np.isin(np.arange(23), specials)
    shown = layer(rule, sharpness, seed=seed, dtype=dtype)
    weight, row, key = plainly(shown, special, own)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FEW", 1)
        patch.setattr(module, "FIRST", 2)
        found = heaviest(shown, special, own)
    np.testing.assert_allclose(found.weight, weight, atol=1e-6)
    if sharpness > 0:  # else many are equal
        assert found.row.tolist() == row.tolist()
        assert found.key.tolist() == key.tolist()
    whole = heaviest(shown, special, own)
    np.testing.assert_allclose(whole.weight, weight, atol=1e-6)


def test_most_rows_of_a_long_text_are_never_computed(monkeypatch):
    looked, strongest = [], module.passes.strongest

    def counted(call, *rest):
        looked.append(call.shape[-3] * call.shape[-2])
        return strongest(call, *rest)

    monkeypatch.setattr(module.passes, "strongest", counted)
    shown, special = layer("causal", 3.0, rows=1999, keys=1999), np.arange(1999) == 0
    found = heaviest(shown, special, True)
    weight, row, key = plainly(shown, special, True)
    np.testing.assert_allclose(found.weight, weight, atol=1e-6)
    assert (found.row.tolist(), found.key.tolist()) == (row.tolist(), key.tolist())
    assert sum(looked) < 0.3 * 6 * 1999


def test_rows_that_came_later_and_rows_without_numbers():
    shown = layer("causal", 5.0, rows=11, keys=23, offset=12)
    special = np.arange(23) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FEW", 1)
        found = heaviest(shown, special, True)
        weight, row, key = plainly(shown, special, True)
        np.testing.assert_allclose(found.weight, weight, atol=1e-6)
        assert (found.row.tolist(), found.key.tolist()) == (row.tolist(), key.tolist())
        shown = layer("both ways", 5.0)
        shown.kept.query[3, 7] = np.nan
        shown.kept.lse[3, 7] = np.nan
        other = heaviest(shown, special, True)
        assert np.isfinite(other.weight).all()
        assert other.row[3] != 7
