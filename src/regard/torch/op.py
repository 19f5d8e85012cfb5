"""Attention as one operation of PyTorch: what traces, differentiates and maps over it sees no more.

`torch.ops.regard.attention` and its backward take the arguments of a call as they were given: they
are checked where their values are known, so also when a compiled graph runs. An operation's own
rule for gradients is slow and unknown to `torch.func.grad`, `vmap(grad)` and `jacrev`; two autograd
functions stand in for it. Where nothing traces or differentiates, `forward` is called by itself.
"""

# mypy: allow-untyped-calls

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import Function

from regard.torch.computing import Options, backward, backward_fake, forward, forward_fake
from regard.torch.mapping import backward_vmap, forward_vmap

TENSORS = 10  # the first ten options
_OPTIONS = (
    ", ".join(f"Tensor? {name}" for name in Options._fields[:TENSORS])
    + ", bool causal, SymInt? before, SymInt? after, SymInt? offset, float? softcap, float? scale,"
    " float dropout, str precision, bool strict"
)
_QKV = "Tensor query, Tensor key, Tensor value"

_library = torch.library.Library("regard", "DEF")
_library.define(
    f"attention({_QKV}, {_OPTIONS}) -> (Tensor, Tensor)", tags=torch.Tag.needs_exact_strides
)
_library.define(
    f"attention_backward({_QKV}, Tensor output, Tensor lse, Tensor? grad_output, Tensor? grad_lse,"
    f" {_OPTIONS}, bool bias_too, bool sinks_too) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=torch.Tag.needs_exact_strides,
)


# ------------------------------------------------------------------------------ choosing the way

_transforms = torch._C._are_functorch_transforms_active
_modes = torch._C._len_torch_dispatch_stack
_tracing = torch._C._get_tracing_state


def compute(
    query: Tensor, key: Tensor, value: Tensor, options: Options, with_lse: bool
) -> tuple[Tensor, Tensor]:
    """Output and lse, by the shortest of the ways that whoever watches this call allows.

    Where nobody wants the lse, its numbers may be anything.
    """
    arguments = (query, key, value, *options)
    tensors = [t for t in arguments[:6] if isinstance(t, Tensor)]
    if transformed():
        found: tuple[Tensor, Tensor] = _Transformed.apply(*arguments)
    elif traced() or not all(_ordinary(t) for t in tensors):
        found = torch.ops.regard.attention(*arguments)
    elif torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        found = _Differentiable.apply(*arguments)
    else:
        found = forward(*arguments, with_lse=with_lse)
    return found


def transformed() -> bool:
    """Whether a transform of `torch.func` or forward-mode differentiation is under way."""
    if torch.compiler.is_compiling():
        return False
    return _transforms() or forward_ad._current_level >= 0


def traced() -> bool:
    """Whether something wants to see this call as an operation: a compiler, a transform, a mode."""
    return (
        torch.compiler.is_compiling()
        or _transforms()
        or _modes() > 0
        or _tracing() is not None
        or forward_ad._current_level >= 0
    )


def _ordinary(tensor: Tensor) -> bool:
    """Whether a tensor has memory of its own and no say in what is done with it."""
    return type(tensor) in (Tensor, torch.nn.Parameter) and not tensor.is_meta


# ------------------------------------------------------------------------------- differentiating


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors = 3 + TENSORS
    ctx.save_for_backward(*inputs[:tensors], *output)
    ctx.scalars = inputs[tensors:]
    ctx.set_materialize_grads(False)


def _gradients(
    ctx: Any, grad_output: Tensor | None, grad_lse: Tensor | None
) -> tuple[Tensor | None, ...]:
    """What `Attention` and the operation's own rule give back: one gradient for each argument."""
    query, key, value, *options, output, lse = ctx.saved_tensors
    nothing = (None,) * (3 + len(Options._fields))
    if grad_output is None and grad_lse is None:
        return nothing
    wanted = ctx.needs_input_grad[4], ctx.needs_input_grad[5]
    grads = _once(
        query, key, value, output, lse, grad_output, grad_lse, *options, *ctx.scalars, *wanted
    )
    of_options = (None, *(g if w else None for g, w in zip(grads[3:], wanted, strict=True)))
    return (*grads[:3], *of_options, *nothing[6:])


def _once(*arguments: Any) -> Any:
    """Run the backward pass so that who differentiates it once more is told."""
    if not traced() and not torch.is_grad_enabled():
        return backward(*arguments)
    if transformed() or not traced():
        return _Backward.apply(*arguments)
    return torch.ops.regard.attention_backward(*arguments)


class _Differentiable(Function):
    """A call whose gradients are wanted, by the short way: nothing else watches it."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        output = forward(*arguments)
        _setup(ctx, arguments, output)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _gradients(ctx, *grads)


class _Transformed(Function):
    """The operation under a transform of `torch.func`, which can't use its own rule."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return torch.ops.regard.attention(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _setup(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _gradients(ctx, *grads)


class _Backward(Function):
    """The backward pass, for those who differentiate it: it says that it can't be."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return torch.ops.regard.attention_backward(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError(
            "regard: attention can be differentiated once; a second derivative (create_graph=True, "
            "hessian) is not implemented"
        )


for _name, _run, _fake, _vmap in (
    ("attention", forward, forward_fake, forward_vmap),
    ("attention_backward", backward, backward_fake, backward_vmap),
):
    for _key in ("CPU", "CUDA", "MPS", "XPU", "PrivateUse1"):
        _library.impl(_name, _run, _key)
    torch.library.register_fake(f"regard::{_name}", _fake, lib=_library)
    torch.library.register_vmap(f"regard::{_name}", _vmap, lib=_library)

torch.library.register_autograd("regard::attention", _gradients, setup_context=_setup, lib=_library)
