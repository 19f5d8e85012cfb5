"""A call that is traced, made whole: every array one of JAX's with all its axes, in one order."""

# mypy: allow-untyped-calls

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from regard.core.arguments import FLOATS as DTYPES
from regard.core.arguments import addends, booleans, integers
from regard.core.call import Call
from regard.core.given import Given

# All arrays of a call, in the order in which the kernel takes them (kernel/ffi_call.h).
ROLES = (
    "query", "key", "value", "mask", "bias", "sinks", "query_offset", "key_lengths",
    "ranges.0", "ranges.1", "segments.0", "segments.1", "seed",
)  # fmt: skip
# How many axes an argument has less than query, at most.
_FEWER = {"query_offset": 3, "key_lengths": 3, "segments": 2, "ranges": 2}
FAR = 2**29  # farther than arrays are long, and 32 bits can still add three of them


def whole(given: Given, arrays: Any) -> tuple[Given, list[Any]]:
    """Make a checked call whole; `rest` then holds numbers and flags alone.

    All axes there are, so that `vmap` may put further ones in front of them.
    """
    parts = dict(given.rest) | dict(zip(given.names, arrays, strict=True))
    rest = {}
    for name in ("segments", "ranges"):
        if (pair := parts.pop(name, None)) is not None:
            if name == "segments" and not (isinstance(pair, tuple) and np.ndim(pair[0])):
                pair = (pair, pair)
            parts |= {f"{name}.{n}": part for n, part in enumerate(pair)}
    rank = max(np.ndim(parts["query"]), 3)
    found = {}
    for name, part in parts.items():
        scalar = name in ("query_offset", "seed") and not isinstance(part, jnp.ndarray)
        if name not in ROLES or (scalar and not np.ndim(part)):
            rest[name] = part
            continue
        array = _array(name, part)
        if name not in ("sinks", "seed"):
            missing = rank - _FEWER.get(name.split(".")[0], 0) - array.ndim
            array = array[(None,) * missing] if missing > 0 else array
        found[name] = array
    names = tuple(name for name in ROLES if name in found)
    return Given(names, rest, given.heads_axis), [found[name] for name in names]


def bounds(given: Given, call: Call) -> tuple[int | None, int | None]:
    """Row i sees key j where i + lower <= j < i + upper; to both adds a `query_offset` array."""
    if "query_offset" not in given.names:
        lower, upper = call.rule.lower, call.rule.upper
        return (None if lower is None else int(lower)), (None if upper is None else int(upper))
    before, after = given.rest.get("window") or (None, None)
    if given.rest.get("causal"):
        after = 0
    return (
        None if before is None else -min(int(before), FAR),
        None if after is None else min(int(after), FAR) + 1,
    )


def _array(name: str, part: Any) -> Any:
    """An array of JAX; of its own dtypes, since JAX may not have the argument's."""
    if name == "mask":
        return jnp.asarray(part if isinstance(part, jnp.ndarray) else booleans(name, part))
    if name in ("bias", "sinks"):
        if isinstance(part, jnp.ndarray):
            return part if part.dtype in DTYPES else part.astype(jnp.float32)
        exact = addends(name, part)
        array = jnp.asarray(exact)
        if array.dtype != exact.dtype:  # what is finite must stay finite, since -inf excludes
            most = np.finfo(array.dtype).max
            array = jnp.asarray(np.where(np.isfinite(exact), exact.clip(-most, most), exact))
        return array
    if isinstance(part, jnp.ndarray):
        return part
    exact = integers(name, part)
    narrow = exact.astype(jax.dtypes.canonicalize_dtype(exact.dtype))
    if not np.array_equal(narrow, exact):
        raise ValueError(
            f"{name.split('.')[0]}: expected integers of 32 bits, which is what JAX has unless "
            f"jax_enable_x64 is set, received {exact[narrow != exact].flat[0]}"
        )
    return jnp.asarray(narrow)
