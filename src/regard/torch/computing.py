"""One attention call of tensors, computed: by the kernel, or by blocks of PyTorch's operations.

Arguments come in the order of `Options`, and are checked here, where their values are known.
"""

# mypy: allow-untyped-calls

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard import _kernel
from regard.core.arguments import bits
from regard.core.call import Call, check
from regard.torch import blocks
from regard.torch.tensors import array, on_cpu, stand_in, wide


class Options(NamedTuple):
    """The arguments of a call beside query, key and value, in the operation's order."""

    mask: Tensor | None = None
    bias: Tensor | None = None
    sinks: Tensor | None = None
    query_offset: Tensor | None = None  # if there is one for each item; else `offset`
    key_lengths: Tensor | None = None
    query_segments: Tensor | None = None
    key_segments: Tensor | None = None
    first: Tensor | None = None
    past: Tensor | None = None
    seed: Tensor | None = None  # a tensor, so that a compiled graph draws a new one on each run
    causal: bool = False
    before: int | None = None
    after: int | None = None
    offset: int | None = None
    softcap: float | None = None
    scale: float | None = None
    dropout: float = 0.0
    precision: str = "highest"
    strict: bool = True  # a bias that is +inf or NaN is an error


def as_call(query: Tensor, key: Tensor, value: Tensor, options: Options) -> Call:
    """Check a call. Of tensors on an accelerator it reads shapes and dtypes alone."""
    large = array if on_cpu(query) else stand_in

    def read(tensor: Tensor | None, how: Any = array) -> Any:
        return None if tensor is None else how(tensor)

    def pair(first: Tensor | None, second: Tensor | None) -> Any:
        return None if first is None else (read(first), read(second))

    o = options
    return check(
        large(query),
        large(key),
        large(value),
        mask=read(o.mask, large),
        bias=read(o.bias, large),
        causal=o.causal,
        window=None if o.before is None and o.after is None else (o.before, o.after),
        query_offset=o.offset if o.query_offset is None else read(o.query_offset),
        key_lengths=read(o.key_lengths),
        segments=pair(o.query_segments, o.key_segments),
        ranges=pair(o.first, o.past),
        softcap=o.softcap,
        sinks=read(o.sinks),
        scale=o.scale,
        dropout=o.dropout,
        seed=None if o.seed is None else int(o.seed) % 2**64,
        precision=o.precision,
    )


# ------------------------------------------------------------------------------------ computing


def _room(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Memory for output and lse; the output lies as the query does, where it has its shape."""
    batch = query.shape[:-3]
    if not batch == key.shape[:-3] == value.shape[:-3]:
        batch = torch.broadcast_shapes(batch, key.shape[:-3], value.shape[:-3])
    shape = (*batch, *query.shape[-3:-1], value.shape[-1])
    output = torch.empty_like(query) if shape == query.shape else query.new_empty(shape)
    exact = query.is_cpu or query.is_meta
    return output, query.new_empty(shape[:-1], dtype=torch.float64 if exact else wide(query))


def forward(
    query: Tensor, key: Tensor, value: Tensor, *rest: Any, with_lse: bool = True
) -> tuple[Tensor, Tensor]:
    """Compute output (B…, H, T, V), and lse (B…, H, T), in float64 if the kernel computes.

    Gradients are the better for it: a weight comes from the difference of a score and an lse.
    The kernel leaves the lse as it is unless asked for.
    """
    options = Options(*rest)
    call = as_call(query, key, value, options)
    if on_cpu(query):
        output, lse = _room(query, key, value)
        to = bits(array(output)), array(lse)
        if call.flat:
            to = to[0][None], to[1][None]
        q, k, v = bits(call.query), bits(call.key), bits(call.value)
        last = call.dropout, call.seed, call.high
        flags = _kernel.forward(q, k, v, to[0], to[1] if with_lse else None, *call.rule, *last)
        attends_bad_bias = flags != 0
    else:
        given = query, key, value, call, options.mask, options.bias
        output, lse, attends_bad_bias = blocks.forward(*given)
    if attends_bad_bias and options.strict:
        raise ValueError(
            "bias: expected finite numbers or -inf wherever a query may attend, "
            "received +inf or NaN"
        )
    return output, lse


def backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    grad_output: Tensor | None,
    grad_lse: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, ...]:
    """Compute the gradients of query, key, value, bias and sinks; of the last two where wanted.

    Those that are not wanted are empty.
    """
    *given, bias_too, sinks_too = rest
    options = Options(*given)
    call = as_call(query, key, value, options)
    if grad_output is None:
        grad_output = torch.zeros((), dtype=output.dtype, device=output.device).expand_as(output)
    operands = (query, key, value)
    known = (output, lse, grad_output, grad_lse)
    like = (*operands, options.bias if bias_too else None, options.sinks if sinks_too else None)
    if on_cpu(query):
        # What will be summed over items is summed in float32 or wider.
        room = [
            torch.empty_like(t)
            if call.batch == t.shape[:-3]
            else t.new_empty((*call.batch, *t.shape[-3:]), dtype=wide(query))
            for t in operands
        ]
        for t, dtype in ((like[3], wide(query)), (like[4], torch.float64)):
            room.append(torch.empty(0) if t is None else torch.zeros(t.shape, dtype=dtype))

        def plain(t: Tensor | None) -> Any:
            read = None if t is None else bits(array(t))
            return read[None] if read is not None and call.flat else read

        q, k, v = bits(call.query), bits(call.key), bits(call.value)
        out, sums, grad_o, grad_l = map(plain, known)
        grad_q, grad_k, grad_v = map(plain, room[:3])
        grad_b = array(room[3]) if bias_too else None
        grad_s = array(room[4]) if sinks_too else None
        arrays = (q, k, v, out, sums, grad_o, grad_l, grad_q, grad_k, grad_v, grad_b, grad_s)
        _kernel.backward(*arrays, call.rule[0], *call.rule[1:], call.dropout, call.seed)
        grads = tuple(room)
    else:
        dense = options.mask, options.bias
        grads = blocks.backward(*operands, output, grad_output, grad_lse, call, *dense)
    return tuple(
        query.new_empty(0) if t is None else grad.sum_to_size(t.shape).to(t.dtype)
        for grad, t in zip(grads, like, strict=True)
    )


def forward_fake(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Only shapes, dtypes and strides of what `forward` returns."""
    return _room(query, key, value)


def backward_fake(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Only shapes, dtypes and strides of what `backward` returns."""
    *given, bias_too, sinks_too = rest[4:]
    options = Options(*given)
    like = (options.bias if bias_too else None, options.sinks if sinks_too else None)
    return tuple(
        query.new_empty(0) if t is None else torch.empty_like(t) for t in (query, key, value, *like)
    )
