"""What `torch.vmap` does with the operation: the axis that is mapped over becomes a batch axis."""

from typing import Any

import torch
from torch import Tensor

from regard.torch.computing import Options

# How many axes an argument has behind the batch axes: 3 for (…, H, T, D), and so on.
_OWN = {"mask": 3, "bias": 3, "query_segments": 1, "key_segments": 1, "first": 1, "past": 1}
_OWN |= {"query": 3, "key": 3, "value": 3, "output": 3, "lse": 2, "grad_output": 3, "grad_lse": 2}
_OWN |= {"query_offset": 0, "key_lengths": 0}
_FORWARD = ("query", "key", "value", *Options._fields)
_BACKWARD = ("query", "key", "value", "output", "lse", "grad_output", "grad_lse", *Options._fields)


def _mapped(op: Any, names: tuple[str, ...], size: int, axes: Any, arguments: Any) -> Any:
    named = dict(zip(names, zip(arguments, axes, strict=False), strict=False))
    flags = arguments[len(names) :]
    backwards = "output" in named
    numbered = named["dropout"][0] > 0  # dropout's mask depends on the item's number
    if numbered or named["sinks"][1] is not None or (backwards and flags[1]):
        return _one_by_one(op, size, axes, arguments)
    query, axis = named["query"]
    rank = query.ndim - (axis is not None)
    flat = rank == 2
    # Whose gradients are wanted for each item.
    expanded = {"query", "key", "value", "bias"} if backwards else set()
    lifted = []
    for name, (given, axis) in named.items():
        if isinstance(given, Tensor) and name in _OWN:
            given = given[None] if axis is None else given.movedim(axis, 0)
            missing = max(rank, 3) - 3 + _OWN[name] - (given.ndim - 1)
            given = given.reshape(given.shape[0], *(1,) * missing, *given.shape[1:])
            if name in expanded:
                given = given.expand(size, *given.shape[1:])
        lifted.append(given)
    found = op(*lifted, *flags)
    if not backwards:
        return (found[0].squeeze(-3), found[1].squeeze(-2)) if flat else found
    if flags[0]:
        bias, axis = named["bias"]
        own = bias.shape if axis is None else bias.movedim(axis, 0).shape[1:]
        of_bias = found[3].reshape(size, *own)
    else:
        of_bias = found[3].expand(size, 0)
    operands = (grad.squeeze(-3) if flat else grad for grad in found[:3])
    return (*operands, of_bias, found[4].expand(size, 0))


def _one_by_one(op: Any, size: int, axes: Any, arguments: Any) -> Any:
    """Call once for each item: for what can't have a batch axis."""
    pairs = list(zip(arguments, axes, strict=True))
    each = [op(*(a if n is None else a.select(n, item) for a, n in pairs)) for item in range(size)]
    return tuple(map(torch.stack, zip(*each, strict=True)))


def forward_vmap(info: Any, axes: Any, *arguments: Any) -> Any:
    """Map over the forward pass."""
    op = torch.ops.regard.attention
    return _mapped(op, _FORWARD, info.batch_size, axes, arguments), (0, 0)


def backward_vmap(info: Any, axes: Any, *arguments: Any) -> Any:
    """Map over the backward pass."""
    op = torch.ops.regard.attention_backward
    return _mapped(op, _BACKWARD, info.batch_size, axes, arguments), (0,) * 5
