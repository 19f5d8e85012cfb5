"""`attention`, `look` and `merge` for tensors: what `regard.attention` and the others come to."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard import _kernel
from regard.core import changed
from regard.core import compute as core
from regard.core.arguments import integer
from regard.core.call import check
from regard.core.look import Look
from regard.torch import op
from regard.torch.computing import Options
from regard.torch.op import compute
from regard.torch.tensors import array, dense, on_cpu, tensor, wide


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
    seed: int | None = None,
    precision: str = "highest",
    return_lse: bool = False,
) -> Any:
    """Compute exact attention of tensors, with gradients: `regard.attention` for PyTorch.

    The arguments mean what they mean there; each may be a tensor. Gradients reach query, key,
    value, bias and sinks, also through lse. With dropout and no `seed` one is drawn from PyTorch's
    generator. Works under `torch.compile`, `torch.func.grad`, `vmap` and `torch.export`;
    `torch.autocast` casts as it does for PyTorch's own attention.

    Returns:
        The output (B…, H, T, V), in the query's dtype and on its device; with `return_lse` also
        lse (B…, H, T).

    Raises:
        TypeError: an argument has the wrong type or dtype, or is no dense tensor.
        ValueError: shapes or numbers do not fit, or a row may attend a bias that is +inf or NaN.
        NotImplementedError: a second or forward-mode derivative.

    >>> query = torch.tensor([[1.0, 0.0]], requires_grad=True)
    >>> keys = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> values = torch.tensor([[10.0, 0.0], [0.0, 20.0], [30.0, 30.0]])
    >>> output = attention(query, keys, values, scale=1)
    >>> output.detach()
    tensor([[16.8928, 15.7768]])
    >>> output.sum().backward()
    >>> query.grad
    tensor([[1.9684, 9.5738]])
    """
    special = (mask, bias, window, query_offset, key_lengths, segments, ranges, softcap, sinks)
    usual = causal is False and dropout == 0 and seed is None and precision == "highest"
    if usual and not return_lse and all(option is None for option in special):
        found = direct(query, key, value, False, scale, True)
        if found is not None:
            return found
    device = next(t.device for t in (query, key, value) if isinstance(t, Tensor))
    query, key, value = cast(
        tensor("query", query, device), tensor("key", key, device), tensor("value", value, device)
    )

    def read(name: str, given: Any) -> Tensor | None:
        return None if given is None else tensor(name, given, device)

    before, after = _pair("window", window)
    first, past = (read("ranges", part) for part in _pair("ranges", ranges))
    of_queries, of_keys = (read("segments", part) for part in _segments(segments))
    one_offset = query_offset is None or not hasattr(query_offset, "shape")
    options = Options(
        mask=read("mask", mask),
        bias=_bias(read("bias", bias)),
        sinks=read("sinks", sinks),
        query_offset=None if one_offset else read("query_offset", query_offset),
        key_lengths=read("key_lengths", key_lengths),
        query_segments=of_queries,
        key_segments=of_keys,
        first=first,
        past=past,
        seed=_seed(dropout, seed),
        causal=causal,
        before=_near(before),
        after=_near(after),
        offset=_near(query_offset) if one_offset else None,
        softcap=number(softcap),
        scale=number(scale),
        dropout=dropout,
        precision=precision,
        strict=not torch.compiler.is_compiling(),
    )
    if not on_cpu(query) and (output := fused(query, key, value, options)) is not None:
        # PyTorch's own attention gives no lse; without values we compute nothing else.
        lse = compute(query, key, key[..., :0], options, True)[1] if return_lse else None
    else:
        output, lse = compute(query, key, value, options, return_lse)
    return output if lse is None or not return_lse else (output, lse.to(wide(query)))


def direct(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float | None, grouped: bool
) -> Tensor | None:
    """The shortest way, for plain tensors of four axes that nobody differentiates; else None.

    A call for one new token takes some microseconds in all, so each of these lines counts.
    """
    if op.traced() or not (type(query) is type(key) is type(value) is Tensor):
        return None
    if not on_cpu(query):
        return None
    if torch.is_grad_enabled() and (
        query.requires_grad or key.requires_grad or value.requires_grad
    ):
        return None
    if query.is_neg() or key.is_neg() or value.is_neg() or torch.is_autocast_enabled("cpu"):
        return None
    try:
        output = torch.empty_like(query)
        if scale is None:
            scale = query.shape[-1] ** -0.5
        elif not -math.inf < scale < math.inf:
            return None
        _kernel.forward_tensors(query, key, value, output, scale, causal, grouped)
    except (ArithmeticError, AttributeError, BufferError, RuntimeError, TypeError, ValueError):
        # An older PyTorch, other shapes, no dense tensors, or what is wrong: the checked way knows.
        return None
    return output


def fused(query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor | None:
    """The output by PyTorch's own attention, for an accelerator; None where it has no such call."""
    plain = Options(mask=options.mask, bias=options.bias, causal=options.causal)
    plain = plain._replace(scale=options.scale, offset=options.offset, strict=options.strict)
    same = all(
        a is b or (not isinstance(a, Tensor) and a == b)
        for a, b in zip(plain, options, strict=True)
    )
    dense = options.mask if options.bias is None else options.bias
    both = options.mask is not None and options.bias is not None
    if not same or both or options.offset or (dense is not None and options.causal):
        return None
    if query.is_meta or not 3 <= query.ndim == key.ndim == value.ndim:
        return None
    if options.causal and options.offset is None and query.shape[-2] != key.shape[-2]:
        return None
    if dense is not None and dense.is_floating_point():
        dense = dense.to(query.dtype)
    return functional.scaled_dot_product_attention(
        *(query, key, value, dense),
        is_causal=options.causal,
        scale=options.scale,
        enable_gqa=query.shape[-3] != key.shape[-3],
    )


def look(query: Any, key: Any, value: Any, *, copy: bool = False, **options: Any) -> Look:
    """Compute attention of tensors and keep sight of every weight: `regard.look` for PyTorch.

    What is asked of the `Look` comes as NumPy arrays; its `output` is a tensor, with its gradient.

    >>> x = torch.eye(3)
    >>> print(look(x, x, x, causal=True).weights[1].round(4))
    [0.3595 0.6405 0.    ]
    """
    arrays = {name: _numbers(given) for name, given in options.items()}
    call = check(*map(_numbers, (query, key, value)), **arrays)
    if copy:
        call = changed.copied(call)
    like = next(t for t in (query, key, value) if isinstance(t, Tensor))
    tensors = [t for t in (query, key, value, *options.values()) if isinstance(t, Tensor)]
    differentiated = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    output: Any = None
    if not on_cpu(like):
        output, lse = attention(query, key, value, **options, return_lse=True)
        found = _numbers(output), _numbers(lse)
        seen = Look(call, *(f[None] for f in found) if call.flat else found)
    else:
        seen = Look(call, *core.compute(call, exact=True))
        if differentiated:
            output = attention(query, key, value, **options)
    seen.output = tensor("output", seen.output, like.device) if output is None else output
    return seen


def merge(outputs: Sequence[Any], lses: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Put attention over parts of the keys together, differentiably: `regard.merge` for PyTorch.

    >>> query, key, value = torch.randn(3, 2, 5, 4, generator=torch.manual_seed(0))
    >>> left = attention(query, key[:, :2], value[:, :2], return_lse=True)
    >>> right = attention(query, key[:, 2:], value[:, 2:], return_lse=True)
    >>> output, lse = merge([left[0], right[0]], [left[1], right[1]])
    >>> torch.allclose(output, attention(query, key, value), atol=1e-6)
    True
    """
    device = next(t.device for t in (*outputs, *lses) if isinstance(t, Tensor))
    parts = [tensor("outputs", output, device) for output in outputs]
    sums = [tensor("lses", lse, device) for lse in lses]
    if len({t.dtype for t in parts}) > 1 or len({t.dtype for t in sums}) > 1:
        raise TypeError(
            "outputs and lses: expected one dtype for all outputs, and one for all lses"
        )
    shape = parts[0].shape
    if any(o.shape != shape or s.shape != shape[:-1] for o, s in zip(parts, sums, strict=True)):
        shapes = ", ".join(
            f"{tuple(o.shape)} and {tuple(s.shape)}" for o, s in zip(parts, sums, strict=True)
        )
        raise ValueError(
            f"outputs and lses: expected (…, T, V) and (…, T), equal for all, received {shapes}"
        )
    together = torch.stack(sums)
    whole = together.logsumexp(0)
    # A part without keys has share 0, whatever it holds; all of them may have none.
    empty = together == -torch.inf
    shares = torch.where(empty, 0, torch.exp(together - torch.where(empty, 0, whole)))
    wide = torch.promote_types(parts[0].dtype, sums[0].dtype)
    summed = sum(
        torch.where(none[..., None], 0, share[..., None] * part.to(wide))
        for none, share, part in zip(empty, shares, parts, strict=True)
    )
    return summed.to(parts[0].dtype), whole  # type: ignore[union-attr]


def cast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast as autocast does for PyTorch's own attention, if it is on."""
    device = tensors[0].device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        t.to(dtype) if t.is_floating_point() and t.dtype is not torch.float64 else t
        for t in tensors
    )


def seed_of(dropout: float) -> Tensor | None:
    """Draw a seed from PyTorch's generator, if there is dropout."""
    return torch.randint(-(2**63), 2**63 - 1, ()) if dropout > 0 else None


def number(given: Any) -> Any:
    """A tensor of one element as a Python number; anything else as it is."""
    return float(given) if isinstance(given, Tensor) else given


def _seed(dropout: float, seed: int | None) -> Tensor | None:
    if seed is None:
        return seed_of(dropout)
    found = integer("seed", seed)
    if not -(2**63) <= found < 2**64:
        raise ValueError(f"seed: expected an integer of 64 bits, received {found}")
    return torch.tensor((found + 2**63) % 2**64 - 2**63)


def _near(position: Any) -> Any:
    """A whole number that fits into 64 bits: one beyond 2**62 is as good as any other."""
    if isinstance(position, int | np.integer) and not isinstance(position, bool):
        return min(max(int(position), -(2**62)), 2**62)
    return position


def _bias(bias: Tensor | None) -> Tensor | None:
    """A bias of eight bits as one that the kernel can read: it holds the same numbers."""
    narrow = bias is not None and bias.is_floating_point() and bias.element_size() == 1
    return bias.float() if narrow else bias  # type: ignore[union-attr]


def _pair(name: str, given: Any) -> tuple[Any, Any]:
    if given is None:
        return None, None
    if isinstance(given, tuple | list | Tensor) and len(given) == 2:
        return given[0], given[1]
    raise TypeError(f"{name}: expected a pair or None, received {given!r}")


def _segments(given: Any) -> tuple[Any, Any]:
    paired = isinstance(given, tuple) and len(given) == 2 and np.ndim(given[0]) > 0
    return given if paired else (given, given)


def _numbers(given: Any) -> Any:
    """Tensors as arrays, also those in a pair; anything else as it is."""
    if isinstance(given, tuple):
        return tuple(map(_numbers, given))
    return array(dense("look", given)) if isinstance(given, Tensor) else given
