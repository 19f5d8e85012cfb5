"""Keras's tensors as arrays, and its masks as arguments of `regard.attention`."""

from typing import Any

import keras  # type: ignore[import-untyped]
import numpy as np

from regard.core.arguments import Array
from regard.keras.masks import Masks
from regard.recording import rules
from regard.recording.rules import Options, compact


def have_values(given: Any) -> bool:
    """Whether no tensor in it is only a name in a graph."""
    return not any(_is_symbolic(one) for one in keras.tree.flatten(given))


def _is_symbolic(tensor: Any) -> bool:
    if not hasattr(tensor, "shape") or isinstance(tensor, np.ndarray | np.generic):
        return False
    if isinstance(tensor, keras.KerasTensor):
        return True
    backend = keras.backend.backend()
    if backend == "tensorflow":
        return not hasattr(tensor, "numpy")
    if backend == "jax":
        from jax.core import Tracer

        return isinstance(tensor, Tracer)
    return bool(getattr(tensor, "is_meta", False))


def array(tensor: Any) -> Array:
    """A tensor of the backend as an array, without copying it where it is on the CPU."""
    if isinstance(tensor, keras.Variable):
        tensor = keras.ops.convert_to_tensor(tensor)
    return rules.array(tensor) if hasattr(tensor, "detach") else np.asarray(tensor)


def same(one: Any, other: Any) -> bool:
    """Whether two tensors hold the same; one that was cast to another dtype is a new object."""
    if one is other:
        return True
    return one.shape == other.shape and np.array_equal(array(one), array(other), equal_nan=True)


def rule(masks: Masks, window: int | None) -> Options:
    """Keras's masks as arguments of `regard.attention`, and `real` (B, T), False for padding."""
    rows, keys = masks.query.shape[1], masks.value.shape[1]
    options: Options = {}
    if masks.attention_mask is not None:
        mask = array(masks.attention_mask).astype(bool)
        while mask.ndim < 4:
            mask = np.expand_dims(mask, -3)
        options = compact(np.broadcast_to(mask, (*mask.shape[:2], rows, keys)))
    of_keys = [
        array(mask).astype(bool) for mask in (masks.value_mask, masks.key_mask) if mask is not None
    ]
    if of_keys:
        options = _either(options, compact((of_keys[0] & of_keys[-1])[:, None, None]), rows)
    if masks.query_mask is not None:
        real = array(masks.query_mask).astype(bool)
        past = np.where(real, keys, 0).astype(np.int64)
        options = _either(options, {"ranges": (np.zeros_like(past), past)}, rows)
        options["real"] = real
    if "ranges" in options:
        first, past = options.pop("ranges")
        options |= _reaching(first, past, keys, options.get("mask"))
    if masks.use_causal_mask:
        options |= {"causal": True, "query_offset": 0}
    if window is not None:
        options |= {"window": (window - 1,) * 2, "query_offset": 0}
    return options


def _either(one: Options, other: Options, rows: int) -> Options:
    """What both allow."""
    found = one | other
    if "mask" in one and "mask" in other:
        found["mask"] = one["mask"] & other["mask"]
    ranges = [given["ranges"] for given in (one, other) if "ranges" in given]
    if ranges:
        first = np.maximum(ranges[0][0], ranges[-1][0])
        past = np.minimum(ranges[0][1], ranges[-1][1])
        shape = (len(first), rows)
        found["ranges"] = np.broadcast_to(first, shape), np.broadcast_to(past, shape)
    return found


def _reaching(first: Array, past: Array, keys: int, mask: Array | None) -> Options:
    """Ranges that reach the last key, for no key is left out: each is a token of the text."""
    empty = past <= first
    first, past = np.where(empty, keys, first), np.where(empty, keys, past)
    if past.max(initial=0) == keys:
        return {"ranges": (first, past)}
    same = (first == first[:, :1]).all() and (past == past[:, :1]).all()
    lines = slice(0, 1 if same else None)
    column = np.arange(keys)
    inside = (column >= first[:, lines, None]) & (column < past[:, lines, None])
    return {"mask": inside[:, None] if mask is None else inside[:, None] & mask}


def real_keys(options: Options, key: Array) -> Array:
    """(B, S): which keys some row may see."""
    items, keys = len(key), key.shape[-2]
    real = np.ones((items, keys), bool)
    if "ranges" in options:
        first, past = (bound[..., None] for bound in options["ranges"])
        column = np.arange(keys)
        real = real & ((column >= first) & (column < past)).any(axis=1)
    if "mask" in options:
        real = real & options["mask"].any(axis=(1, 2))
    return real
