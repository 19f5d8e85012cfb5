"""`attention`, `look` and `merge` for JAX's arrays: what `regard.attention` and others come to."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from regard.core import changed
from regard.core.call import check
from regard.core.compute import compute
from regard.core.given import Given
from regard.core.look import Look
from regard.jax.op import attend, traced

_NUMBERS = ("causal", "window", "softcap", "scale", "dropout", "precision")


def attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    mask: Any = None,
    bias: Any = None,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    query_offset: Any = None,
    key_lengths: Any = None,
    segments: Any = None,
    ranges: Any = None,
    softcap: float | None = None,
    sinks: Any = None,
    scale: float | None = None,
    dropout: float = 0.0,
    seed: Any = None,
    precision: str = "highest",
    return_lse: bool = False,
) -> Any:
    """Compute exact attention of JAX's arrays, with gradients: `regard.attention` for JAX.

    The arguments mean what they mean there; all arrays may be traced. Gradients reach query, key,
    value, bias and sinks, also through lse. Works under `jit`, `grad`, `vmap`, `scan` and
    `checkpoint`. `seed` may be one of JAX's random keys.

    Returns:
        The output (B…, H, T, V) in the query's dtype; with `return_lse` also lse (B…, H, T).

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: shapes or numbers do not fit. A row that may attend a bias that is +inf or NaN
            raises it too, but is NaN where the call is traced.

    >>> query = jnp.array([[1.0, 0.0]])
    >>> keys = jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> values = jnp.array([[10.0, 0.0], [0.0, 20.0], [30.0, 30.0]])
    >>> print(np.asarray(attention(query, keys, values, scale=1)).round(4))
    [[16.8928 15.7768]]
    >>> print(jax.grad(lambda q: attention(q, keys, values, scale=1).sum())(query).round(4))
    [[1.9684 9.5738]]
    """
    arguments = {"query": query, "key": key, "value": value, "mask": mask, "bias": bias}
    arguments |= {"causal": causal, "window": window, "query_offset": query_offset}
    arguments |= {"key_lengths": key_lengths, "segments": segments, "ranges": ranges}
    arguments |= {"softcap": softcap, "sinks": sinks, "scale": scale, "dropout": dropout}
    arguments |= {"seed": _seed(seed), "precision": precision}
    found = computed(arguments, 2 if return_lse else 1)
    return found if return_lse else found[0]


def computed(arguments: dict[str, Any], count: int, heads_axis: int = -3) -> tuple[Any, ...]:
    """Tell JAX's arrays from all other arguments, and compute the first `count` of output, lse."""
    for name in _NUMBERS:
        if traced(arguments.get(name)):
            hint = " Multiply query by it, with scale=1." if name == "scale" else ""
            raise TypeError(f"{name}: expected a value of Python's, received a traced one.{hint}")
        if _is_jax(arguments.get(name)):
            arguments = arguments | {name: np.asarray(arguments[name])[()]}
    arguments = arguments | {n: _array(n, arguments[n]) for n in ("query", "key", "value")}
    given, arrays = Given.of(arguments, heads_axis, _is_jax)
    return attend(given, count, *arrays)


def look(query: Any, key: Any, value: Any, *, copy: bool = False, **options: Any) -> Look:
    """Compute attention of JAX's arrays and keep sight of every weight: `regard.look` for JAX.

    What is asked of the `Look` comes as NumPy arrays; its `output` is an array of JAX.

    Raises:
        TypeError: an argument has the wrong type or dtype, or no value yet.

    >>> x = jnp.eye(3)
    >>> print(look(x, x, x, causal=True).weights[1].round(4))
    [0.3595 0.6405 0.    ]
    """
    arrays = {name: _number(given) for name, given in options.items()}
    call = check(*(_number(_array("look", one)) for one in (query, key, value)), **arrays)
    if copy:
        call = changed.copied(call)
    seen = Look(call, *compute(call, exact=True))
    seen.output = jnp.asarray(seen.output)
    return seen


def merge(outputs: Sequence[Any], lses: Sequence[Any]) -> tuple[Any, Any]:
    """Put attention over parts of the keys together, differentiably: `regard.merge` for JAX.

    >>> query, key, value = jax.random.normal(jax.random.key(0), (3, 2, 5, 4))
    >>> left = attention(query, key[:, :2], value[:, :2], return_lse=True)
    >>> right = attention(query, key[:, 2:], value[:, 2:], return_lse=True)
    >>> output, lse = merge([left[0], right[0]], [left[1], right[1]])
    >>> bool(jnp.allclose(output, attention(query, key, value), atol=1e-6))
    True
    """
    parts = [_array("outputs", output) for output in outputs]
    sums = [_array("lses", lse) for lse in lses]
    if len({one.dtype for one in parts}) > 1 or len({one.dtype for one in sums}) > 1:
        raise TypeError(
            "outputs and lses: expected one dtype for all outputs, and one for all lses"
        )
    shape = parts[0].shape
    if any(o.shape != shape or s.shape != shape[:-1] for o, s in zip(parts, sums, strict=True)):
        shapes = ", ".join(f"{o.shape} and {s.shape}" for o, s in zip(parts, sums, strict=True))
        raise ValueError(
            f"outputs and lses: expected (…, T, V) and (…, T), equal for all, received {shapes}"
        )
    wide = jnp.promote_types(parts[0].dtype, sums[0].dtype)
    # A row without any key: exp(-inf - 0) is 0, not NaN.
    peak = jax.lax.stop_gradient(jnp.stack(sums).max(0))
    peak = jnp.where(peak == -jnp.inf, 0, peak)
    total, summed = jnp.zeros_like(peak), jnp.zeros(shape, wide)
    for output, lse in zip(parts, sums, strict=True):
        absent = lse == -jnp.inf
        share = jnp.where(absent, 0, jnp.exp(jnp.where(absent, peak, lse) - peak))
        total += share
        # What a part without keys holds does not matter, NaN included.
        summed += share[..., None] * jnp.where(absent[..., None], 0, output.astype(wide))
    filled = jnp.where(total == 0, 1, total)
    whole = jnp.where(total == 0, -jnp.inf, peak + jnp.log(filled))
    return (summed / filled[..., None]).astype(parts[0].dtype), whole


# ----------------------------------------------------------------------------------------- inside


def _is_jax(given: Any) -> bool:
    return isinstance(given, jax.Array)


def _array(name: str, given: Any) -> Any:
    """Read anything that JAX can read."""
    if _is_jax(given):
        return given
    if isinstance(given, np.ma.MaskedArray):
        raise TypeError(
            f"{name}: expected a plain array, received a NumPy masked array; "
            "say with mask= what may be attended"
        )
    try:
        return jnp.asarray(given)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name}: expected an array, received {type(given).__name__}: {error}"
        ) from None


def _seed(seed: Any) -> Any:
    """A random key as a number that it draws; anything else as it is."""
    if _is_jax(seed) and (jnp.issubdtype(seed.dtype, jax.dtypes.prng_key) or seed.ndim):
        return jax.random.bits(seed)
    return seed


def _number(given: Any) -> Any:
    """JAX's arrays as NumPy's, also those in a pair; anything else as it is."""
    if isinstance(given, tuple):
        return tuple(map(_number, given))
    if traced(given):
        raise TypeError(
            "look: expected arrays with values, received those of a function that is being "
            "traced; look outside of jax.jit"
        )
    return np.asarray(given) if _is_jax(given) else given
