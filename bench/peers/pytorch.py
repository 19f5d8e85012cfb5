"""PyTorch's scaled_dot_product_attention, the ways in which people call it, and flex_attention.

float32 matrix products are set to 'highest', which is PyTorch's own default: 'medium' would round
them to bfloat16.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bench.peers import Cannot, Ready
from bench.problems import WINDOW, Array, Problem

torch.set_float32_matmul_precision("highest")
attention = torch.nn.functional.scaled_dot_product_attention


def tensors(problem: Problem) -> list[torch.Tensor]:
    """Query, key and value, in the problem's own type."""
    dtype = getattr(torch, problem.dtype)
    made = [torch.from_numpy(array.astype(np.float32)).to(dtype) for array in problem.inputs()]
    return [tensor.requires_grad_(problem.backward) for tensor in made]


def ready(problem: Problem, inputs: list[torch.Tensor], forward: Callable[[], Any]) -> Ready:
    """A forward pass without gradients, or a forward and backward pass."""
    if not problem.backward:
        return Ready(torch.no_grad()(forward), lambda output: [numbers(output)])
    gradient = torch.from_numpy(problem.gradient()).to(inputs[0].dtype)
    return Ready(
        lambda: torch.autograd.grad(forward(), inputs, gradient),
        lambda gradients: [numbers(tensor) for tensor in gradients],
    )


def numbers(tensor: torch.Tensor) -> Array:
    return tensor.detach().float().numpy()


def plain(problem: Problem) -> Ready:
    """One call. Shared heads are repeated first, as models did before `enable_gqa`."""
    inputs, mask, group = tensors(problem), dense(problem), problem.heads // problem.groups

    def forward() -> torch.Tensor:
        query, key, value = inputs
        if group > 1:
            key, value = (one.repeat_interleave(group, 1) for one in (key, value))
        return attention(query, key, value, attn_mask=mask, is_causal=problem.causal)

    return ready(problem, inputs, forward)


def dense(problem: Problem) -> torch.Tensor | None:
    """A bias as it is, any other rule as booleans; causal order has an argument of its own."""
    if problem.rule == "bias":
        return torch.from_numpy(problem.bias())[None]
    return torch.from_numpy(problem.allowed()) if problem.rule else None


def enable_gqa(problem: Problem) -> Ready:
    if problem.groups == problem.heads or problem.rule:
        raise Cannot("no heads are shared")
    inputs = tensors(problem)
    return ready(
        problem, inputs, lambda: attention(*inputs, is_causal=problem.causal, enable_gqa=True)
    )


def folded(problem: Problem) -> Ready:
    """Query heads that share a key head as further rows of it: a view, and far fewer reads."""
    if problem.groups == problem.heads or problem.causal or problem.rule:
        raise Cannot("rows of one head must follow one rule")
    query, key, value = inputs = tensors(problem)
    rows = query.view(problem.batch, problem.groups, -1, problem.width)
    return ready(problem, inputs, lambda: attention(rows, key, value).view(query.shape))


def pieces(problem: Problem) -> Ready:
    """By hand: one call for each segment, each item without its padding, each stretch of rows."""
    query, key, value = inputs = tensors(problem)
    if problem.rule == "segments":
        starts = np.flatnonzero(np.diff(problem.segments(), prepend=-1))
        cuts = [slice(a, b) for a, b in zip(starts, [*starts[1:], problem.rows], strict=True)]

        def forward() -> torch.Tensor:
            parts = [attention(*(one[:, :, cut] for one in (query, key, value))) for cut in cuts]
            return torch.cat(parts, 2)

    elif problem.rule == "padding":
        lengths = [int(length) for length in problem.lengths()]

        def forward() -> torch.Tensor:
            parts = [
                attention(query[i : i + 1], key[i : i + 1, :, :n], value[i : i + 1, :, :n])
                for i, n in enumerate(lengths)
            ]
            return torch.cat(parts)

    elif problem.rule == "window":
        allowed = torch.from_numpy(problem.allowed())
        starts = range(0, problem.rows, WINDOW)
        cuts = [(slice(i, i + WINDOW), slice(max(0, i - WINDOW), i + WINDOW)) for i in starts]
        masks = [allowed[cut].clone() for cut in cuts]

        def forward() -> torch.Tensor:
            parts = [
                attention(query[:, :, r], key[:, :, k], value[:, :, k], attn_mask=mask)
                for (r, k), mask in zip(cuts, masks, strict=True)
            ]
            return torch.cat(parts, 2)

    else:
        raise Cannot("nothing to cut")
    return ready(problem, inputs, forward)


def flex(problem: Problem) -> Ready:
    """Compiled, with a mask of blocks that is made beforehand; compiling takes half a minute."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    segments, lengths = (torch.from_numpy(a) for a in (problem.segments(), problem.lengths()))
    rules: dict[str, Callable[..., Any]] = {
        "window": lambda b, h, i, j: (j <= i) & (j > i - WINDOW),
        "segments": lambda b, h, i, j: segments[i] == segments[j],
        "padding": lambda b, h, i, j: j < lengths[b],
    }
    if problem.rule not in rules:
        raise Cannot("measured where blocks can be left out")
    batch = problem.batch if problem.rule == "padding" else None
    blocks = create_block_mask(
        rules[problem.rule], batch, None, problem.rows, problem.keys, device="cpu"
    )
    torch.compiler.reset()  # code for any size, which a second problem would get, fails to compile
    inputs, compiled = tensors(problem), torch.compile(flex_attention, dynamic=False)
    made = ready(problem, inputs, lambda: compiled(*inputs, block_mask=blocks))
    made.call()
    return made
