"""The same attention in TensorFlow's own operations, a block of rows at a time.

For where the kernel cannot be called: under XLA, in a SavedModel and on accelerators. The answers
are the same, dropout's mask included, and no more than a block of scores is held at a time.
"""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped]

from regard.core.given import FLOATS, Given
from regard.tensorflow.kernel import Route
from regard.tensorflow.lowered import (
    Block,
    Lowered,
    block,
    by_group,
    lowered,
    over_rows,
    size,
    take,
)


def forward(given: Given, *tensors: Any) -> tuple[Any, Any]:
    """Compute output and lse; see core/given.py."""
    call = lowered(given, tensors)
    value = _finite(call, call.value)
    spoilt = tf.reduce_any(~tf.math.is_finite(call.value))

    def compute(number: Any) -> Any:
        part = block(call, number)
        weights, peak, total = _softmax(call, part)
        used = weights if part.kept is None else weights * part.kept
        output = by_group(call, used, value)
        output = tf.cond(spoilt, lambda: _spoil(call, part.allowed, output), lambda: output)
        return {}, {"output": output, "lse": peak + tf.math.log(total)}

    rows = [*call.batch, call.heads, call.queries]
    if call.empty:
        output, lse = tf.zeros([*rows, size(value, -1)], call.wide), tf.zeros(rows, call.wide)
    else:
        _, found = _over_blocks(call, compute, {}, ["output", "lse"])
        output, lse = found["output"], found["lse"][..., 0]
    return call.outside(tf.cast(output, call.query.dtype)), lse[0] if call.flat else lse


def backward(given: Given, *tensors: Any) -> list[Any]:
    """Compute the gradients of the FLOATS among the tensors; see core/given.py."""
    count = len(given.names)
    call = lowered(given, tensors[:count])
    output, _, grad_output, *grad_lse = tensors[count:]
    output, grad_output = call.inside(output), call.inside(grad_output)
    grad_lse = [(one[None] if call.flat else one)[..., None] for one in grad_lse]
    query, key, value = (_finite(call, one) for one in (call.query, call.key, call.value))
    bias, sinks = call.bias, call.sinks
    bias_has_rows = bias is not None and bias.shape.rank > 1 and bias.shape[-2] != 1

    def compute(number: Any) -> Any:
        part = block(call, number)
        of_output = tf.cast(take(grad_output, part.rows), call.wide)
        # Not from lse: where scores are large, its last place would show in every weight.
        weights, peak, total = _softmax(call, part)
        used, of_weights = weights, by_group(call, of_output, value, transposed=True)
        if part.kept is not None:
            used, of_weights = weights * part.kept, of_weights * part.kept
        # What all scores of a row have in common.
        own = tf.cast(take(output, part.rows), call.wide)
        common = -tf.reduce_sum(of_output * own, -1, keepdims=True)
        for one in grad_lse:
            common += tf.cast(take(one, part.rows), call.wide)
        of_scores = where_else_zero(part.allowed, weights * (of_weights + common))
        sums, rows = {"value": over_rows(call, used, of_output, value)}, {}
        if bias is not None:
            if bias_has_rows:
                shape = tf.shape(bias)
                shape = tf.concat([shape[:-2], [size(of_scores, -2)], shape[-1:]], 0)
                rows["bias"] = _sum_to(of_scores, shape)
            else:
                sums["bias"] = of_scores
        if sinks is not None:
            real = (part.rows < tf.cast(call.queries, tf.int64))[:, None] & (sinks != -math.inf)
            share = where_else_zero(real, tf.exp(sinks - peak) / total)
            sums["sinks"] = share * common
        if part.slope is not None:
            of_scores = where_else_zero(part.allowed, of_scores * part.slope)
        of_scores *= call.scale
        sums["key"] = over_rows(call, of_scores, take(query, part.rows), key)
        rows["query"] = by_group(call, of_scores, key)
        return sums, rows

    like = {"value": value, "key": key, "bias": bias, "sinks": sinks}
    like = {name: one for name, one in like.items() if one is not None}
    rows = ["query"]
    if bias_has_rows:
        del like["bias"]
        rows.append("bias")
    if call.empty:
        found = {name: tf.zeros(tf.shape(one), call.wide) for name, one in like.items()}
        found |= {name: tf.zeros(tf.shape(getattr(call, name)), call.wide) for name in rows}
    else:
        totals, joined = _over_blocks(call, compute, like, rows)
        found = totals | joined
    if sinks is not None:
        found["sinks"] = found["sinks"][:, 0, 0]
    grads = []
    for name, own in zip(given.names, tensors, strict=False):
        if name in FLOATS:
            grad = found[name]
            grad = grad if name in ("bias", "sinks") else call.outside(grad)
            grads.append(tf.cast(_sum_to(grad, tf.shape(own)), own.dtype))
    return grads


def _softmax(call: Lowered, part: Block) -> tuple[Any, Any, Any]:
    """The weights of a block, and for each row the largest score and what all powers add up to."""
    peak = tf.reduce_max(part.scores, -1, keepdims=True)
    if call.sinks is not None:
        peak = tf.maximum(peak, call.sinks)
    peak = tf.where(peak == -math.inf, tf.zeros_like(peak), peak)
    powers = where_else_zero(part.allowed, tf.exp(part.scores - peak))
    total = tf.reduce_sum(powers, -1, keepdims=True)
    if call.sinks is not None:
        total += tf.exp(call.sinks - peak)
    return powers / tf.where(total == 0, tf.ones_like(total), total), peak, total


def _over_blocks(
    call: Lowered,
    compute: Callable[[Any], tuple[dict[str, Any], dict[str, Any]]],
    like: dict[str, Any],
    rows: list[str],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Compute each block: what has a shape to be `like` is summed up, `rows` are joined."""
    height = call.height
    count = (call.queries + height - 1) // height
    shapes = {name: tf.shape(one) for name, one in like.items()}
    if type(count) is int and count == 1:
        sums, parts = compute(0)
        return {name: _sum_to(sums[name], shape) for name, shape in shapes.items()}, parts

    def step(number: Any, totals: list[Any], arrays: list[Any]) -> Any:
        sums, parts = compute(number)
        added = []
        for name, total in zip(like, totals, strict=True):
            more = total + _sum_to(sums[name], shapes[name])
            more.set_shape(total.shape)
            added.append(more)
        written = [
            array.write(number, parts[name]) for name, array in zip(rows, arrays, strict=True)
        ]
        return number + 1, added, written

    totals = [tf.zeros(shape, call.wide) for shape in shapes.values()]
    for total, one in zip(totals, like.values(), strict=True):
        total.set_shape(one.shape)
    arrays = [tf.TensorArray(call.wide, size=count) for _ in rows]
    _, totals, arrays = tf.while_loop(
        lambda number, *_: number < count, step, (0, totals, arrays), parallel_iterations=1
    )
    joined = {
        name: _joined(array.stack(), call.queries) for name, array in zip(rows, arrays, strict=True)
    }
    return dict(zip(like, totals, strict=True)), joined


def _joined(blocks: Any, queries: Any) -> Any:
    """(blocks, …, R, n) → (…, T, n)."""
    rank = blocks.shape.rank
    blocks = tf.transpose(blocks, [*range(1, rank - 2), 0, rank - 2, rank - 1])
    lead = [size(blocks, axis) for axis in range(rank - 3)]
    height, width = size(blocks, -2), size(blocks, -1)
    return tf.reshape(blocks, [*lead, size(blocks, -3) * height, width])[..., :queries, :]


def _sum_to(grad: Any, shape: Any) -> Any:
    """Sum over the axes that were broadcast."""
    axes = tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(grad), s1=shape).r1
    return tf.reshape(tf.reduce_sum(grad, axes), shape)


def where_else_zero(allowed: Any, numbers: Any) -> Any:
    """The numbers where allowed, else 0."""
    return tf.where(allowed, numbers, tf.zeros((), numbers.dtype))


def _finite(call: Lowered, tensor: Any) -> Any:
    """With 0 for what is not finite: what nobody attends to must not spoil a sum."""
    tensor = tf.cast(tensor, call.wide)
    return where_else_zero(tf.math.is_finite(tensor), tensor)


def _spoil(call: Lowered, allowed: Any, output: Any) -> Any:
    """Put back what rows attend to and is not finite, whatever weight it has."""
    value = tf.cast(call.value, call.wide)
    attended = tf.cast(allowed, call.wide)
    above, below, nan = (
        by_group(call, attended, tf.cast(where, call.wide)) > 0
        for where in (value == math.inf, value == -math.inf, tf.math.is_nan(value))
    )
    output = tf.where(above, tf.constant(math.inf, call.wide), output)
    output = tf.where(below, tf.constant(-math.inf, call.wide), output)
    return tf.where(nan | (above & below), tf.constant(math.nan, call.wide), output)


BLOCKS = Route(forward, backward)
