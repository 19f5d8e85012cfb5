"""`scaled_dot_product_attention`: PyTorch's signature, rules and answers, our kernel."""

# mypy: allow-untyped-calls

import sys
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.torch.attention import cast, direct, number, seed_of
from regard.torch.computing import Options
from regard.torch.op import compute
from regard.torch.tensors import dense, on_cpu


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute attention as `torch.nn.functional.scaled_dot_product_attention` does.

    Shapes: query (B…, H, T, D), key (B…, G, S, D), value (B…, G, S, V); axes before the last two
    broadcast, or are heads in groups with `enable_gqa`.

    Args:
        query: floats of one dtype with key and value.
        key: see above.
        value: see above.
        attn_mask: booleans, True = may attend, or floats of the query's dtype or float32 that are
            added to the scores; broadcasts to (B…, H, T, S).
        dropout_p: the probability to drop a weight, also outside of training; drawn from PyTorch's
            generator.
        is_causal: query i sees key j where j <= i, counted from the first of both. Unlike in
            PyTorch, where it depends on the path, it holds beside `attn_mask`.
        scale: factor of the dot products, 1 / √D by default.
        enable_gqa: query head h reads key head h // (H / G).

    Returns:
        (B…, H, T, V). A row that may attend nothing is 0.

    >>> x = torch.eye(3)[None, None]
    >>> scaled_dot_product_attention(x, x, x, is_causal=True)[0, 0, 1]
    tensor([0.3595, 0.6405, 0.0000])
    """
    if attn_mask is None and dropout_p == 0.0:
        found = direct(query, key, value, is_causal, scale, enable_gqa)
        if found is not None:
            return found
    for name, given in (("query", query), ("key", key), ("value", value)):
        dense(name, given)
    if not (on_cpu(query) or query.is_meta or (is_causal and attn_mask is not None)):
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    query, key, value = _heads(cast(query, key, value), enable_gqa)
    offset: int | None = 0
    if attn_mask is not None and (corner := _corner(attn_mask, query, key)) is not None:
        attn_mask, is_causal, offset = None, True, corner
    mask, bias = _mask(attn_mask, query)
    options = Options(
        mask=mask,
        bias=bias,
        seed=seed_of(dropout_p),
        causal=is_causal,
        offset=offset,
        scale=number(scale),
        dropout=0.0 if dropout_p == 1 else dropout_p,
        strict=False,
    )
    output, _ = compute(query, key, value, options, with_lse=False)
    return output * 0 if dropout_p == 1 else output


def _heads(given: tuple[Tensor, ...], grouped: bool) -> tuple[Tensor, ...]:
    """Give all three the same number of axes, and heads that the kernel can group."""
    query, key, value = given
    if grouped and min(query.ndim, key.ndim, value.ndim) < 3:
        raise ValueError(
            "query, key and value: expected at least three axes with enable_gqa, received "
            f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
        )
    rank = max(query.ndim, key.ndim, value.ndim)
    query, key, value = (
        t if t.ndim == rank else t[(None,) * (rank - t.ndim)] for t in (query, key, value)
    )
    heads = (query.shape[-3], key.shape[-3], value.shape[-3]) if rank > 2 else (1, 1, 1)
    if grouped:
        if heads[1] != heads[2] and all(n and heads[0] % n == 0 for n in heads[1:]):
            key, value = (t.repeat_interleave(heads[0] // t.shape[-3], -3) for t in (key, value))
        return query, key, value
    if heads[0] == heads[1] == heads[2]:
        return query, key, value
    # Here heads broadcast like any axis before the last two; a single one is shared by all.
    try:
        (most,) = torch.broadcast_shapes(*((n,) for n in heads))
    except RuntimeError:
        raise ValueError(
            f"query, key and value: expected equal heads (axis -3), or 1, received {heads}; "
            "heads in groups need enable_gqa=True"
        ) from None
    query = query.expand(*query.shape[:-3], most, -1, -1)
    if heads[1] != heads[2]:
        key, value = (t.expand(*t.shape[:-3], most, -1, -1) for t in (key, value))
    return query, key, value


def _mask(attn_mask: Tensor | None, query: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Sort a mask of PyTorch into ours: a mask of booleans, or a bias."""
    if attn_mask is None:
        return None, None
    dense("attn_mask", attn_mask)
    boolean = attn_mask.dtype is torch.bool
    if not (boolean or attn_mask.dtype in (query.dtype, torch.float32)):
        raise TypeError(
            f"attn_mask: expected booleans, or floats of the query's dtype {query.dtype} or "
            f"float32, received {attn_mask.dtype}"
        )
    # In PyTorch three axes are always (heads, queries, keys).
    if attn_mask.ndim < query.ndim:
        attn_mask = attn_mask[(None,) * (query.ndim - attn_mask.ndim)]
    return (attn_mask, None) if boolean else (None, cast(attn_mask)[0])


def _corner(attn_mask: Any, query: Tensor, key: Tensor) -> int | None:
    """The offset that a mask of `torch.nn.attention.bias` (causal_lower_right) stands for."""
    biases = sys.modules.get("torch.nn.attention.bias")
    if biases is None or not isinstance(attn_mask, biases.CausalBias):
        return None
    lower_right = attn_mask.variant == biases.CausalVariant.LOWER_RIGHT
    return key.shape[-2] - query.shape[-2] if lower_right else 0
