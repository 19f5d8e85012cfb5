"""`dot_product_attention` as `jax.nn` has it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from regard.jax.door import computed


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """`jax.nn.dot_product_attention`, exact, faster, and in memory linear in T + S.

    Arguments and answers are JAX's: B items, T queries, S keys, N query heads, K key heads, width
    H. What differs: a row that may attend nothing is 0 (its residual is -inf), where JAX gives
    the mean of all values or NaN; what lies behind a mask never shows, NaN included; float64 is
    float64 throughout.

    Args:
        query: (B, T, N, H) or (T, N, H).
        key: (B, S, K, H) or (S, K, H); N is a multiple of K.
        value: likewise.
        bias: floats that broadcast to (B, N, T, S), added to the scaled scores.
        mask: booleans that broadcast likewise; True = may attend.
        scale: 1 / √H unless given.
        is_causal: query i sees key j where j <= i, also where T ≠ S.
        query_seq_lengths: (B,) ints; rows from there on are 0.
        key_value_seq_lengths: (B,) ints; keys from there on do not exist.
        local_window_size: (left, right) or one number for both: i - left <= j <= i + right.
        implementation: None or "xla"; the kernel computes either way.
        return_residual: also return the log-sum-exp of each row, (B, T, N) or (T, N), in the
            key's dtype and without a gradient.

    Raises:
        TypeError: an array is of no floating dtype.
        ValueError: shapes or dtypes do not fit.

    >>> x = jax.random.normal(jax.random.key(0), (2, 5, 3, 8))
    >>> ours = dot_product_attention(x, x, x, is_causal=True)
    >>> bool(jnp.allclose(ours, jax.nn.dot_product_attention(x, x, x, is_causal=True), atol=1e-5))
    True
    """
    if implementation not in (None, "xla"):
        raise ValueError(f"implementation: expected None or 'xla', received {implementation!r}")
    shape = jnp.shape(query)
    query, key, value, bias, mask = (_four_axes(x) for x in (query, key, value, bias, mask))
    _refuse_wrong(query, key, value, bias, mask)
    batch, rows, keys = query.shape[0], query.shape[1], key.shape[1]
    arguments = {"query": query, "key": key, "value": value, "mask": mask, "bias": bias}
    arguments |= {"scale": scale}
    if is_causal:
        arguments |= {"causal": True, "query_offset": 0}
    first: Any = 0
    past: Any = keys
    if local_window_size is not None:
        window = local_window_size
        left, right = (window, window) if isinstance(window, int) else window
        if left >= 0 and right >= 0:
            arguments |= {"window": (left, right), "query_offset": 0}
        else:  # a window that leaves the query itself out
            place = np.arange(rows)
            first, past = (place - left).clip(0, keys), (place + right + 1).clip(0, keys)
    query_lengths, key_lengths = (
        _lengths(name, given, batch)
        for name, given in (
            ("query_seq_lengths", query_seq_lengths),
            ("key_value_seq_lengths", key_value_seq_lengths),
        )
    )
    if key_lengths is not None:
        arguments["key_lengths"] = key_lengths.clip(0, keys)
    if query_lengths is not None:
        past = jnp.where(np.arange(rows) < query_lengths[:, None], past, 0)
    if np.ndim(past):
        arguments["ranges"] = (
            jnp.broadcast_to(jnp.asarray(first), (batch, rows)),
            jnp.broadcast_to(jnp.asarray(past), (batch, rows)),
        )
    output, *lse = computed(arguments, 2 if return_residual else 1, heads_axis=-2)
    output = output.reshape(shape)
    if not return_residual:
        return output
    residual = jax.lax.stop_gradient(lse[0]).swapaxes(1, 2).reshape(shape[:-1])
    return output, residual.astype(key.dtype)


def _four_axes(given: Any) -> Any:
    if given is None:
        return None
    array = jnp.asarray(given)
    return array[(None,) * (4 - array.ndim)] if array.ndim < 4 else array


def _refuse_wrong(query: Any, key: Any, value: Any, bias: Any, mask: Any) -> None:
    """Refuse what JAX refuses."""
    for name, array in {"query": query, "key": key, "value": value, "mask": mask}.items():
        if array is not None and array.ndim != 4:
            raise ValueError(f"{name}: expected at most four axes, received {array.shape}")
    if value.shape != key.shape or value.dtype != key.dtype:
        raise ValueError(
            f"value: expected key's shape and dtype {key.shape} {key.dtype}, "
            f"received {value.shape} {value.dtype}"
        )
    fits = query.shape[0] == key.shape[0] and query.shape[3] == key.shape[3]
    if not fits or query.dtype != key.dtype:
        raise ValueError(
            f"query: expected the items, width and dtype of key {key.shape} {key.dtype}, "
            f"received {query.shape} {query.dtype}"
        )
    if mask is not None and mask.dtype != bool:
        raise ValueError(f"mask: expected booleans, received {mask.dtype}")
    if bias is not None and not jnp.issubdtype(bias.dtype, jnp.floating):
        raise ValueError(f"bias: expected floats, received {bias.dtype}")


def _lengths(name: str, given: Any, batch: int) -> Any:
    if given is None:
        return None
    array = jnp.asarray(given)
    if array.shape != (batch,) or not jnp.issubdtype(array.dtype, jnp.integer):
        raise ValueError(
            f"{name}: expected integers of shape ({batch},), received {array.dtype} {array.shape}"
        )
    return array
