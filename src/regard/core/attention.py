"""`attention`: exact softmax attention that never holds a T × S array; `look`, `merge` beside it.

Arrays of PyTorch, TensorFlow and JAX go to the door of their framework, which is imported only
when such an array comes.
"""

import math
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from regard import _kernel
from regard.core import changed
from regard.core.arguments import Array, floating
from regard.core.call import check
from regard.core.compute import compute, output_of
from regard.core.look import Look


def attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    query_offset: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    segments: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
    ranges: tuple[ArrayLike, ArrayLike] | None = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    precision: str = "highest",
    return_lse: bool = False,
) -> Any:
    """Compute softmax(scale · Q Kᵀ) V, exactly, in memory linear in T + S.

    Shapes: `B…` any batch axes, `H` query heads, `G` key heads (H is a multiple of G, and query
    head h reads key head h // (H / G)), `T` queries, `S` keys, `D` query and key width, `V` value
    width. Order: scale, softcap, bias, masks, sinks, softmax, dropout, values. A key is attended
    where all of mask, bias, causal, window, key_lengths, segments and ranges allow it.

    Args:
        query: (B…, H, T, D), or (T, D) without heads. float64, float32, bfloat16 or float16;
            lists of floats are float64. Arrays of PyTorch, TensorFlow and JAX too.
        key: (B…, G, S, D), of the query's dtype and number of axes; batch axes of 1 broadcast.
        value: (B…, G, S, V), likewise.
        mask: booleans that broadcast against (B…, H, T, S); True = may attend.
        bias: floats that broadcast likewise, added to the scaled scores; -inf excludes a key, a
            finite number never does.
        causal: query i sees key j where j <= i + query_offset.
        window: (before, after), distances around the query's own position, both included; None
            is an open side.
        query_offset: position of the first query among the keys, an int or (B…) of them. 0 where
            T = S; with causal or window it must be given where T ≠ S.
        key_lengths: (B…) ints in 0..S; keys from there on do not exist.
        segments: ints (B…, T), or a tuple of (B…, T) and (B…, S); a query attends only within
            its own number. For sequences packed into one.
        ranges: (first, past), ints (B…, T) in 0..S; the keys a row may see, first <= j < past.
        softcap: c > 0; scores become c · tanh(score / c).
        sinks: (H,) floats; one more logit a head that takes part in the softmax and has no value.
        scale: factor of the dot products; 1 / √D unless given.
        dropout: probability in [0, 1) that a weight is dropped; kept ones are divided by 1 - p.
        seed: int, required with dropout; the same seed drops the same weights.
        precision: "highest", or "high" for about 2⁻¹⁶ relative error where that is faster.
        return_lse: also return the log-sum-exp of each row.

    Returns:
        The output (B…, H, T, V) in the query's dtype; with `return_lse` also lse (B…, H, T),
        float64 for float64 and else float32: natural log, sinks included, before dropout.
        A row that may attend nothing has output 0 and lse -inf (or its sink's logit).

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: shapes or numbers do not fit (the message holds all shapes), or a row may
            attend a bias that is +inf or NaN.

    The formula is "Scaled Dot-Product Attention" of Vaswani et al. 2017, computed as in Milakov
    and Gimelshein 2018 ("Online normalizer calculation for softmax").

    >>> query = [[1.0, 0.0]]
    >>> keys = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    >>> values = [[10.0, 0.0], [0.0, 20.0], [30.0, 30.0]]
    >>> attention(query, keys, values, scale=1).round(4)
    array([[16.8928, 15.7768]])
    """
    if type(query) is type(key) is type(value) is np.ndarray:
        bare = mask is None and bias is None and window is None and query_offset is None
        bare = bare and key_lengths is None and segments is None and ranges is None
        bare = bare and softcap is None and sinks is None and seed is None
        if bare and return_lse is False and type(dropout) is float and dropout == 0:
            found = _direct(query, key, value, causal, scale, precision)
            if found is not None:
                return found
    else:
        framework = door(query, key, value)
        if framework is not None:
            return framework.attention(
                query, key, value, mask=mask, bias=bias, causal=causal, window=window,
                query_offset=query_offset, key_lengths=key_lengths, segments=segments,
                ranges=ranges, softcap=softcap, sinks=sinks, scale=scale, dropout=dropout,
                seed=seed, precision=precision, return_lse=return_lse,
            )  # fmt: skip
    call = check(
        query, key, value, mask=mask, bias=bias, causal=causal, window=window,
        query_offset=query_offset, key_lengths=key_lengths, segments=segments, ranges=ranges,
        softcap=softcap, sinks=sinks, scale=scale, dropout=dropout, seed=seed, precision=precision,
    )  # fmt: skip
    if return_lse:
        output, lse = compute(call)
        return (output[0], lse[0]) if call.flat else (output, lse)
    output = output_of(call, None)
    return output[0] if call.flat else output


def _direct(
    query: Array, key: Array, value: Array, causal: Any, scale: Any, precision: Any
) -> Array | None:
    """The shortest way, for arrays of four axes without options; None: the checked way knows.

    A small call takes some microseconds in all, so each of these lines counts.
    """
    if causal is not False and (causal is not True or query.shape[-2:-1] != key.shape[-2:-1]):
        return None
    if precision != "highest" or query.ndim != 4:
        return None
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[3] or 1)
    elif type(scale) is not float or not -math.inf < scale < math.inf:
        return None
    output = np.empty((*query.shape[:3], value.shape[-1]), query.dtype)
    try:
        _kernel.forward_arrays(query, key, value, output, scale, causal)
    except (BufferError, TypeError, ValueError):
        return None
    return output


def look(
    query: Any,
    key: Any,
    value: Any,
    *,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    query_offset: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    segments: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
    ranges: tuple[ArrayLike, ArrayLike] | None = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    scale: float | None = None,
    precision: str = "highest",
    copy: bool = False,
) -> Look:
    """Compute attention as `regard.attention` does, and keep sight of every weight.

    The arguments are those of `attention` and mean the same; dropout has no part here. The
    `Look` refers to your arrays: what is written into them later changes what it shows, and
    `check()` says so. With `copy=True` it keeps copies.

    Returns:
        A `Look`; its `repr` says what can be asked.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: shapes or numbers do not fit.

    >>> rng = np.random.default_rng(0)
    >>> query, key, value = rng.standard_normal((3, 2, 4, 8))
    >>> seen = look(query, key, value, causal=True)
    >>> seen.weights[0, 3].sum().round(6)
    np.float64(1.0)
    >>> seen.weights[0, 0]
    array([1., 0., 0., 0.])
    """
    options: dict[str, Any] = {
        "mask": mask, "bias": bias, "causal": causal, "window": window, "softcap": softcap,
        "query_offset": query_offset, "key_lengths": key_lengths, "segments": segments,
        "ranges": ranges, "sinks": sinks, "scale": scale, "precision": precision,
    }  # fmt: skip
    if (framework := door(query, key, value)) is not None:
        seen: Look = framework.look(query, key, value, **options, copy=copy)
        return seen
    call = check(query, key, value, **options)
    if copy:
        call = changed.copied(call)
    return Look(call, *compute(call, exact=True))


def merge(outputs: Sequence[Any], lses: Sequence[Any]) -> Any:
    """Put attention over parts of the keys together: (output, lse) over all of them, exactly.

    Any split and any order; a part without keys (lse -inf) changes nothing. Give sinks to one
    part only. This is how long contexts are computed in pieces, or on several machines.

    Args:
        outputs: the output of each part, (…, T, V), of one shape and dtype.
        lses: the lse of each part, (…, T).

    Raises:
        TypeError: no floats, or mixed dtypes.
        ValueError: no parts, or shapes that do not fit.

    >>> query, key, value = np.random.default_rng(0).standard_normal((3, 2, 5, 4))
    >>> left = attention(query, key[:, :2], value[:, :2], return_lse=True)
    >>> right = attention(query, key[:, 2:], value[:, 2:], return_lse=True)
    >>> output, lse = merge([left[0], right[0]], [left[1], right[1]])
    >>> bool(np.allclose(output, attention(query, key, value)))
    True
    """
    if len(outputs) != len(lses) or not len(outputs):
        raise ValueError(
            "outputs and lses: expected one of each for every part, at least one part, "
            f"received {len(outputs)} and {len(lses)}"
        )
    if (framework := door(*outputs, *lses)) is not None:
        return framework.merge(outputs, lses)
    parts = [
        (floating("outputs", output), floating("lses", lse))
        for output, lse in zip(outputs, lses, strict=True)
    ]
    if len({(output.dtype, lse.dtype) for output, lse in parts}) > 1:
        raise TypeError(
            "outputs and lses: expected one dtype for all outputs, and one for all lses"
        )
    shape = parts[0][0].shape
    if any(output.shape != shape or lse.shape != shape[:-1] for output, lse in parts):
        shapes = ", ".join(f"{output.shape} and {lse.shape}" for output, lse in parts)
        raise ValueError(
            f"outputs and lses: expected (…, T, V) and (…, T), equal for all, received {shapes}"
        )
    with np.errstate(all="ignore"):
        peak = np.maximum.reduce([lse for _, lse in parts]).astype(np.float64)
        peak = np.where(peak == -np.inf, 0, peak)  # without any key: exp(-inf - 0) is 0, not NaN
        total, summed = np.zeros(shape[:-1]), np.zeros(shape)
        for output, lse in parts:
            share = np.exp(lse - peak)
            total += share
            # What a part without keys holds does not matter, NaN included.
            summed += np.where((lse == -np.inf)[..., None], 0, share[..., None] * output)
        summed /= np.where(total == 0, 1, total)[..., None]
        whole = peak + np.log(total)
    return summed.astype(parts[0][0].dtype), whole.astype(parts[0][1].dtype)


# Whose arrays go where: the types that each framework calls its arrays.
_ARRAYS = {"torch": ("Tensor",), "tensorflow": ("Tensor", "Variable"), "jax": ("Array",)}


def door(*arrays: Any) -> Any:
    """Import the door of the first array that belongs to a framework; None for NumPy's and lists.

    A framework that was never imported has no arrays, so none is imported here.
    """
    for array in arrays:
        if type(array) is np.ndarray:
            continue
        for name, types in _ARRAYS.items():
            framework = sys.modules.get(name)
            kinds = tuple(k for k in (getattr(framework, t, None) for t in types) if k is not None)
            if isinstance(array, kinds):
                try:
                    # A compiler of the framework can't look into an import, but into this.
                    return sys.modules.get(f"regard.{name}") or import_module(f"regard.{name}")
                except ModuleNotFoundError as error:
                    if error.name != f"regard.{name}":
                        raise
                    raise TypeError(
                        f"{type(array).__name__}: regard has no door for {name} here; "
                        "pass NumPy arrays"
                    ) from None
    return None
