"""Attention of the backend's tensors, as layers have them: (B…, T, H, D).

Each backend has its own door; where one is missing, blocks of rows are computed by `keras.ops`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import keras  # type: ignore[import-untyped]
import numpy as np
from keras import ops

from regard.core.attention import attention
from regard.core.call import check
from regard.core.compute import compute
from regard.core.look import Look
from regard.keras.blocks import by_blocks

_watching: ContextVar[list[Look] | None] = ContextVar("watching", default=None)


@contextmanager
def watched() -> Iterator[list[Look]]:
    """Inside, every attention that is computed by this thread is also looked at."""
    seen: list[Look] = []
    token = _watching.set(seen)
    try:
        yield seen
    finally:
        _watching.reset(token)


def attend(query: Any, key: Any, value: Any, real_rows: Any = None, **options: Any) -> Any:
    """Compute softmax(scale · Q Kᵀ) V for (B…, T, H, D), (B…, S, G, D) and (B…, S, G, V).

    Options are those of `regard.attention`; `real_rows` (B, T) only says which rows are padding.
    """
    if (seen := _watching.get()) is not None:
        seen.append(_look(query, key, value, real_rows, options))
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from regard.tensorflow import dot_product_attention

        return dot_product_attention(query, key, value, heads_axis=-2, **options)
    turned = [ops.swapaxes(one, -2, -3) for one in (query, key, value)]
    if backend == "torch":
        from regard.torch import attention as of_torch

        return ops.swapaxes(of_torch(*turned, **options), -2, -3)
    if backend == "numpy":
        return ops.swapaxes(attention(*turned, **options), -2, -3)
    if backend == "jax" and find_spec("regard.jax"):
        of_jax = import_module("regard.jax").attention
        return ops.swapaxes(of_jax(*turned, **options), -2, -3)
    return ops.swapaxes(by_blocks(*turned, **options), -2, -3)


def seed_from(generator: Any) -> Any:
    """Draw a seed for dropout from one of Keras's generators."""
    seed = keras.random.randint((), 0, 2**31 - 1, dtype="int32", seed=generator)
    return int(seed) if keras.backend.backend() in ("torch", "numpy") else seed


def _look(query: Any, key: Any, value: Any, real_rows: Any, options: dict[str, Any]) -> Look:
    turned = (_number(one).swapaxes(-2, -3) for one in (query, key, value))
    call = check(*turned, **{name: _number(given) for name, given in options.items()})
    return Look(call, *compute(call, exact=True), real_rows=_number(real_rows))


def _number(given: Any) -> Any:
    """Tensors as arrays, also those in a pair; anything else as it is."""
    if isinstance(given, tuple):
        return tuple(map(_number, given))
    if not hasattr(given, "shape"):
        return given
    try:
        if keras.backend.backend() == "tensorflow":  # Keras would make a copy
            return np.asarray(given)
        return ops.convert_to_numpy(given)
    except (NotImplementedError, TypeError, RuntimeError):
        raise TypeError(
            "look: expected arrays with values, received those of a function that is being traced"
        ) from None
