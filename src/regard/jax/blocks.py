"""The same attention in JAX's own operations, a block of rows at a time.

For accelerators, and for functions that other programs shall read. The answers are the kernel's,
dropout's mask included; no more than a block of scores is held at a time.
"""

# mypy: allow-untyped-calls

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from regard.core.arguments import real
from regard.core.call import Call
from regard.core.given import FLOATS, Given
from regard.jax.reach import allowed, kept, take

BLOCK = 1 << 22  # scores of one block, or as many as one row has


class _Problem(NamedTuple):
    """A whole call in the wide dtype, heads before rows."""

    call: Call
    given: Given
    options: dict[str, Any]  # the arrays, by name
    query: Any  # (B…, H, T, D)
    key: Any  # (B…, G, S, D), whose batch axes may be 1; finite
    value: Any  # (B…, G, S, V), likewise
    wide: Any
    height: int  # rows of a block


class _Block(NamedTuple):
    """Some rows of all heads."""

    rows: Any  # (R,): their numbers; those past the last may attend nothing
    allowed: Any  # (B…, H, R, S)
    weights: Any
    peak: Any  # (B…, H, R, 1): the largest score
    total: Any  # … and what all powers add up to
    slope: Any  # of the soft cap: d capped / d scaled, or None
    kept: Any  # what dropout multiplies weights by, or None


def forward(given: Given, call: Call, count: int, *arrays: Any) -> list[Any]:
    """Compute the first `count` of output, lse and its rest, which is 0; see ffi.forward."""
    p = _problem(given, call, arrays)
    raw = _inner(given, p.options["value"]).astype(p.wide)
    spoilt = ~jnp.isfinite(raw).all()

    def compute(number: Any) -> Any:
        part = _block(p, number)
        used = part.weights if part.kept is None else part.weights * part.kept
        output = _by_group(p, used, p.value)
        output = jax.lax.cond(spoilt, lambda: _spoil(p, part.allowed, raw, output), lambda: output)
        return {"output": output, "lse": part.peak + jnp.log(part.total)}

    _, found = _over_blocks(p, lambda number: ({}, compute(number)))
    output, lse = found["output"].astype(call.dtype), found["lse"][..., 0]
    return [_inner(given, output), lse, jnp.zeros_like(lse)][:count]


def backward(given: Given, call: Call, wanted: tuple[str, ...], *arrays: Any) -> list[Any]:
    """Compute the gradients of what is `wanted` of the FLOATS; see ffi.backward."""
    count = len(given.names)
    p = _problem(given, call, arrays[:count])
    output, lse, *others = arrays[count:]
    if lse.dtype == jnp.float32:
        others.pop(0)  # the rest of lse
    grad_output, *grad_lse = others
    output, grad_output = (_inner(given, one).astype(p.wide) for one in (output, grad_output))
    query = jnp.where(jnp.isfinite(p.query), p.query, 0)
    bias: Any = p.options.get("bias")
    sinks: Any = p.options.get("sinks")
    by_row = bias is not None and bias.shape[-2] != 1

    def compute(number: Any) -> Any:
        part = _block(p, number)
        of_output = take(grad_output, part.rows)
        # Not from lse: where scores are large, its last place would show in every weight.
        used, of_weights = part.weights, _by_group(p, of_output, p.value, transposed=True)
        if part.kept is not None:
            used, of_weights = used * part.kept, of_weights * part.kept
        # What all scores of a row have in common.
        common = -(of_output * take(output, part.rows)).sum(-1, keepdims=True)
        for one in grad_lse:
            common += take(one[..., None], part.rows).astype(p.wide)
        of_scores = jnp.where(part.allowed, part.weights * (of_weights + common), 0)
        sums = {"value": _over_rows(p, used, of_output, p.value)}
        rows: dict[str, Any] = {}
        if "bias" in wanted:
            shape = (*bias.shape[:-2], p.height if by_row else 1, bias.shape[-1])
            (rows if by_row else sums)["bias"] = _sum_to(of_scores, shape)
        if "sinks" in wanted:
            sink = sinks.astype(p.wide)[:, None, None]
            real_row = (part.rows < call.shape[-2])[:, None] & (sink != -math.inf)
            share = jnp.where(real_row, jnp.exp(sink - part.peak) / part.total, 0) * common
            sums["sinks"] = _sum_to(share, sink.shape)[:, 0, 0]
        if part.slope is not None:
            of_scores = jnp.where(part.allowed, of_scores * part.slope, 0)
        of_scores *= call.rule.scale
        sums["key"] = _over_rows(p, of_scores, take(query, part.rows), p.key)
        rows["query"] = _by_group(p, of_scores, p.key)
        return sums, rows

    sums, rows = _over_blocks(p, compute)
    found = sums | rows
    own = dict(zip(given.names, arrays, strict=False))
    return [
        _sum_to(_inner(given, found[n]) if n in FLOATS[:3] else found[n], own[n].shape)
        for n in wanted
    ]


def _problem(given: Given, call: Call, arrays: Any) -> _Problem:
    options = dict(zip(given.names, arrays, strict=True))
    wide = real(call.dtype)
    query, key, value = (_inner(given, options[name]).astype(wide) for name in FLOATS[:3])
    key, value = (jnp.where(jnp.isfinite(one), one, 0) for one in (key, value))
    query = jnp.broadcast_to(query, (*call.batch, *query.shape[-3:]))
    row = math.prod((*call.shape[:-2], call.shape[-1]))
    height = min(call.shape[-2], max(1, BLOCK // max(1, row)))
    return _Problem(call, given, options, query, key, value, wide, height)


def _inner(given: Given, array: Any) -> Any:
    """The caller's array with heads before rows, and the other way round."""
    return jnp.swapaxes(array, -2, -3) if given.heads_axis == -2 else array


def _block(p: _Problem, number: Any) -> _Block:
    """The block of this number: its scores become weights."""
    call, options = p.call, p.options
    rows = number * p.height + jnp.arange(p.height)
    key = _inner(p.given, options["key"]).astype(p.wide)  # what is not finite shows where attended
    scores = _by_group(p, take(p.query, rows), key, transposed=True) * call.rule.scale
    slope = None
    if cap := call.rule.softcap:
        bent = jnp.tanh(scores / cap)
        scores, slope = cap * bent, 1 - bent * bent
    may = allowed(p.given, call, options, rows)
    if (mask := options.get("mask")) is not None:
        may &= take(mask, rows)
    if (bias := options.get("bias")) is not None:
        bias = take(bias, rows)
        may &= bias != -math.inf
        # What is finite stays finite, since -inf excludes.
        most = float(jnp.finfo(p.wide).max)
        limited = jnp.clip(bias, -most, most) if bias.dtype.itemsize > p.wide.itemsize else bias
        scores += jnp.where(jnp.isfinite(bias), limited, bias).astype(p.wide)
    may = jnp.broadcast_to(may, scores.shape)
    scores = jnp.where(may, scores, -math.inf)
    peak = scores.max(-1, keepdims=True, initial=-math.inf)
    sinks = options.get("sinks")
    if sinks is not None:
        sinks = sinks.astype(p.wide)[:, None, None]
        peak = jnp.maximum(peak, sinks)
    peak = jnp.where(peak == -math.inf, 0, peak)
    powers = jnp.where(may, jnp.exp(scores - peak), 0)
    total = powers.sum(-1, keepdims=True)
    if sinks is not None:
        total += jnp.exp(sinks - peak)
    weights = powers / jnp.where(total == 0, 1, total)
    dropped = kept(call, options, rows, p.wide) if call.dropout else None
    return _Block(rows, may, weights, peak, total, slope, dropped)


def _over_blocks(p: _Problem, compute: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Compute each block: the first of what it gives is summed up, the second joined by rows."""
    rows = p.call.shape[-2]
    count = -(-rows // max(1, p.height))
    if count <= 1:
        sums, parts = compute(0)
        return sums, {name: part[..., :rows, :] for name, part in parts.items()}
    like, _ = jax.eval_shape(compute, 0)
    zeros = {name: jnp.zeros(one.shape, one.dtype) for name, one in like.items()}

    def step(totals: Any, number: Any) -> Any:
        sums, parts = compute(number)
        return {name: totals[name] + sums[name] for name in totals}, parts

    totals, parts = jax.lax.scan(step, zeros, jnp.arange(count))
    joined = {}
    for name, blocks in parts.items():  # (blocks, …, R, n) → (…, T, n)
        moved = jnp.moveaxis(blocks, 0, -3)
        shape = (*moved.shape[:-3], count * p.height, moved.shape[-1])
        joined[name] = moved.reshape(shape)[..., :rows, :]
    return totals, joined


def _by_group(p: _Problem, rows: Any, shared: Any, transposed: bool = False) -> Any:
    """(B…, H, R, n) @ (B…, G, n, m): heads that share a factor are stacked, it is not copied."""
    last = jnp.swapaxes(shared, -1, -2) if transposed else shared
    product = jnp.matmul(_stacked(p, rows, shared), last, precision="highest")
    return product.reshape(*p.call.shape[:-2], rows.shape[-2], product.shape[-1])


def _over_rows(p: _Problem, left: Any, right: Any, shared: Any) -> Any:
    """Sum over rows and the heads of a group: (B…, H, R, n), (B…, H, R, m) → (B…, G, n, m)."""
    left, right = _stacked(p, left, shared), _stacked(p, right, shared)
    return jnp.matmul(jnp.swapaxes(left, -1, -2), right, precision="highest")


def _stacked(p: _Problem, rows: Any, shared: Any) -> Any:
    groups = shared.shape[-3]
    stack = p.call.shape[-3] * rows.shape[-2] // max(groups, 1)
    return rows.reshape(*p.call.batch, groups, stack, rows.shape[-1])


def _sum_to(grad: Any, shape: tuple[int, ...]) -> Any:
    """Sum over the axes that were broadcast, those that are not there at all among them."""
    grad = grad.sum(tuple(range(grad.ndim - len(shape))))
    axes = tuple(n for n, size in enumerate(shape) if size != grad.shape[n])
    return grad.sum(axes, keepdims=True) if axes else grad


def _spoil(p: _Problem, may: Any, value: Any, output: Any) -> Any:
    """Put back what rows attend to and is not finite, whatever weight it has."""
    attended = may.astype(p.wide)
    above, below, nan = (
        _by_group(p, attended, where.astype(p.wide)) > 0
        for where in (value == math.inf, value == -math.inf, jnp.isnan(value))
    )
    output = jnp.where(above, math.inf, output)
    output = jnp.where(below, -math.inf, output)
    return jnp.where(nan | (above & below), math.nan, output)
