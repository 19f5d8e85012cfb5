"""The same attention as operations of PyTorch, a block of rows at a time: for accelerators.

The kernel computes on the CPU. What lies elsewhere is computed here, from the same checked call and
with the same answers, dropout's mask included; at most `BLOCK` scores are held at a time.
"""

# mypy: allow-untyped-calls

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from regard.core.call import Call
from regard.torch.tensors import wide

BLOCK = 1 << 24  # scores of one block


class _Block(NamedTuple):
    """Some rows of all heads."""

    rows: slice
    query: Tensor  # (…, H, rows, D)
    scores: Tensor  # (…, H, rows, S): what enters the softmax
    slope: Tensor | None  # of the soft cap: d capped / d scaled
    allowed: Tensor  # broadcasts to scores
    kept: Tensor | None  # what dropout multiplies weights by


def forward(
    query: Tensor, key: Tensor, value: Tensor, call: Call, mask: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor, bool]:
    """Compute output (B…, H, T, V) and lse (B…, H, T); also say if a bad bias is attended."""
    flat, real = call.flat, wide(query)
    query, key, value = _headed(flat, query, key, value)
    output = query.new_empty((*call.shape[:-1], value.shape[-1]))
    lse = query.new_empty(call.shape[:-1], dtype=real)
    sinks = _sinks(call, query)
    value, spoilt = _finite(value.to(real))
    bad = torch.zeros((), dtype=torch.bool, device=query.device)
    for block in _blocks(query, key, call, mask, bias):
        if bias is not None:
            bad |= (block.allowed & ~(_rows(bias, block.rows) < torch.inf)).any()
        weights, _, total = _softmax(block, sinks)
        if block.kept is not None:
            weights = weights * block.kept
        rows = _by_group(weights, value)
        if spoilt is not None:
            attended = block.allowed.expand_as(weights).to(real)
            rows = rows.masked_fill(_by_group(attended, spoilt) > 0, torch.nan)
        output[..., block.rows, :] = rows.to(output.dtype)
        lse[..., block.rows] = total
    found = (output[0], lse[0]) if flat else (output, lse)
    return *found, bool(bad)


def backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    grad_output: Tensor,
    grad_lse: Tensor | None,
    call: Call,
    mask: Tensor | None,
    bias: Tensor | None,
) -> tuple[Tensor, ...]:
    """Compute the gradients of query, key, value, bias and sinks, of all batch items.

    A block holds whole rows, so it needs no lse, which beside the lowest numbers is not exact.
    """
    flat, real = call.flat, wide(query)
    query, key, value, output, grad_output = _headed(flat, query, key, value, output, grad_output)
    if flat and grad_lse is not None:
        grad_lse = grad_lse[None]
    batch = call.batch
    sinks = _sinks(call, query)
    # A query, key or value that plays no part must not spoil sums in which it has factor 0.
    clean_query, clean_key = (_finite(t.to(real))[0] for t in (query, key))
    value = _finite(value.to(real))[0]
    grad_query = query.new_zeros((*batch, *query.shape[-3:]), dtype=real)
    grad_key = query.new_zeros((*batch, *key.shape[-3:]), dtype=real)
    grad_value = query.new_zeros((*batch, *value.shape[-3:]), dtype=real)
    grad_bias = None if bias is None else query.new_zeros(bias.shape, dtype=real)
    grad_sinks = None if sinks is None else torch.zeros_like(sinks)
    for block in _blocks(query, key, call, mask, bias):
        at = block.rows
        of_output = grad_output[..., at, :].to(real)
        weights, taken, _ = _softmax(block, sinks)
        used, of_weights = weights, _by_group(of_output, value.mT)
        if block.kept is not None:
            used, of_weights = weights * block.kept, of_weights * block.kept
        # What all scores of a row have in common.
        common = -(of_output * output[..., at, :].to(real)).sum(-1)
        if grad_lse is not None:
            common = common + grad_lse[..., at]
        of_scores = torch.where(block.allowed, weights * (of_weights + common[..., None]), 0)
        grad_value += _over_rows(used, of_output, value.shape[-3])
        if grad_bias is not None:
            _add_rows(grad_bias, of_scores, at)
        if taken is not None and grad_sinks is not None:
            grad_sinks += (taken * common).flatten(0, -3).sum((0, -1))
        if block.slope is not None:
            of_scores = torch.where(block.allowed, of_scores * block.slope, 0)
        of_scores = of_scores * call.rule.scale
        grad_query[..., at, :] = _by_group(of_scores, clean_key)
        grad_key += _over_rows(of_scores, clean_query[..., at, :], key.shape[-3])
    grads = (grad_query, grad_key, grad_value)
    rest = (query.new_empty(0) if g is None else g for g in (grad_bias, grad_sinks))
    return (*(g[0] if flat else g for g in grads), *rest)


# ---------------------------------------------------------------------------------------- inside


def _headed(flat: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor[None] for tensor in tensors) if flat else tensors


def _finite(tensor: Tensor) -> tuple[Tensor, Tensor | None]:
    """The tensor with 0 for what is not finite, and where that was; None if nowhere."""
    spoilt = ~tensor.isfinite()
    if not spoilt.any():
        return tensor, None
    return tensor.masked_fill(spoilt, 0), spoilt.to(tensor.dtype)


def _sinks(call: Call, like: Tensor) -> Tensor | None:
    if call.rule.sinks is None:
        return None
    return torch.from_numpy(call.rule.sinks).to(like.device, wide(like))


def _by_group(rows: Tensor, shared: Tensor) -> Tensor:
    """(…, H, R, n) @ (…, G, n, m): the H / G heads that share a factor are stacked, not copied."""
    heads, groups = rows.shape[-3], shared.shape[-3]
    if not groups:
        return rows.new_zeros((*rows.shape[:-1], shared.shape[-1]))
    stacked = rows.unflatten(-3, (groups, heads // groups)).flatten(-3, -2)
    product: Tensor = stacked @ shared
    apart: Tensor = product.unflatten(-2, (heads // groups, rows.shape[-2])).flatten(-4, -3)
    return apart


def _over_rows(left: Tensor, right: Tensor, groups: int) -> Tensor:
    """Sum over rows and the heads of a group: (…, H, R, S), (…, H, R, n) → (…, G, S, n)."""
    if not groups:
        return left.new_zeros((*left.shape[:-3], 0, left.shape[-1], right.shape[-1]))
    left, right = (
        t.unflatten(-3, (groups, t.shape[-3] // groups)).flatten(-3, -2) for t in (left, right)
    )
    return left.mT @ right


def _add_rows(total: Tensor, part: Tensor, rows: slice) -> None:
    """Add some rows to the gradient of a bias, summed over the axes along which it is shared."""
    if total.ndim > 1 and total.shape[-2] > 1:
        total = total[..., rows, :]
    total += part.sum_to_size(total.shape)


def _softmax(block: _Block, sinks: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
    """Weights of the keys, weight of the sink, and lse."""
    logits, keys = block.scores, block.scores.shape[-1]
    if sinks is not None:
        logits = torch.cat([logits, sinks[:, None, None].expand(*logits.shape[:-1], 1)], -1)
    none = logits.new_full(logits.shape[:-1], -torch.inf)
    total = logits.logsumexp(-1) if logits.shape[-1] else none
    shares = logits.softmax(-1)
    weights = torch.where(block.allowed, shares[..., :keys], 0)
    if sinks is None:
        return weights, None, total
    return weights, torch.where(sinks[:, None] == -torch.inf, 0, shares[..., keys]), total


def _blocks(
    query: Tensor, key: Tensor, call: Call, mask: Tensor | None, bias: Tensor | None
) -> Iterator[_Block]:
    *batch, heads, rows, keys = call.shape
    rule, real, cap = call.rule, wide(query), call.rule.softcap
    # Scores that may not be attended must not be NaN, since NaN · 0 is.
    transposed = key.to(real).mT
    limits = _limits(call, query.device)
    row_size = max(1, keys * heads * torch.Size(batch).numel())
    height = max(1, min(rows, BLOCK // row_size))
    for begin in range(0, rows, height):
        at = slice(begin, min(begin + height, rows))
        part = query[..., at, :].to(real).expand(*batch, -1, -1, -1)
        scores = _by_group(part, transposed) * rule.scale
        slope = None
        if cap:
            bent = torch.tanh(scores / cap)
            scores, slope = cap * bent, 1 - bent * bent
        allowed = _allowed(limits, at, keys, query.device)
        if mask is not None:
            allowed = allowed & _rows(mask, at)
        if bias is not None:
            added = _rows(bias, at)
            allowed = allowed & (added != -torch.inf)
            most = torch.finfo(real).max
            limited = added.to(real).clamp(-most, most)
            scores = scores + torch.where(added.isfinite(), limited, added.to(real))
        scores = torch.where(allowed, scores, -torch.inf)
        kept = _kept(call, at, query.device).to(real) if call.dropout else None
        yield _Block(at, part, scores, slope, allowed, kept)


def _rows(dense: Tensor, rows: slice) -> Tensor:
    """These rows of a mask or bias, whose axis of rows may be 1 or absent."""
    return dense[..., rows, :] if dense.ndim > 1 and dense.shape[-2] > 1 else dense


def _limits(call: Call, device: torch.device) -> dict[str, Tensor]:
    """The rule's numbers on the device, each with its batch axes before (1, rows, 1)."""
    behind = {"lower": 0, "upper": 0, "lengths": 0}
    behind |= {"first": 1, "past": 1, "query_segments": 1, "key_segments": 1}
    found = {}
    for name, own in behind.items():
        if (numbers := getattr(call.rule, name)) is not None:
            there = torch.from_numpy(numbers.copy()).to(device)
            found[name] = there[..., None, :, None] if own else there[..., None, None, None]
    return found


def _allowed(limits: dict[str, Tensor], rows: slice, keys: int, device: torch.device) -> Tensor:
    """Who may attend, but for mask and bias: booleans that broadcast to (…, H, rows, S)."""
    place = torch.arange(rows.start, rows.stop, device=device)[:, None]
    key = torch.arange(keys, device=device)
    allowed = torch.ones((), dtype=torch.bool, device=device)
    for name, limit in limits.items():
        if name == "lower":
            allowed = allowed & (key >= place + limit)
        elif name == "upper":
            allowed = allowed & (key < place + limit)
        elif name == "lengths":
            allowed = allowed & (key < limit)
        elif name == "first":
            allowed = allowed & (key >= limit[..., rows, :])
        elif name == "past":
            allowed = allowed & (key < limit[..., rows, :])
        elif name == "query_segments":
            allowed = allowed & (limit[..., rows, :] == limits["key_segments"].mT)
    return allowed


def _kept(call: Call, rows: slice, device: torch.device) -> Tensor:
    """What dropout multiplies weights by: 0 or 1 / (1 - p), drawn by place as the kernel does.

    Philox4×32-10 as in core/dropout.py, but in int64, since PyTorch's uint64 can't shift: products
    wrap, and all their 64 bits are right.
    """
    *batch, heads, _, keys = call.shape
    word = 2**32 - 1
    count = torch.Size(batch).numel()
    item = torch.arange(count, device=device).reshape(*batch, 1, 1, 1)
    head = torch.arange(heads, device=device)[:, None, None]
    row = torch.arange(rows.start, rows.stop, device=device)[:, None]
    c0, c1, c2, c3 = torch.broadcast_tensors(item, head, row, torch.arange(keys, device=device))
    k0, k1 = call.seed & word, call.seed >> 32
    for _ in range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = (b >> 32) & word ^ c1 ^ k0, b & word
        c2, c3 = (a >> 32) & word ^ c3 ^ k1, a & word
        k0, k1 = (k0 + 0x9E3779B9) & word, (k1 + 0xBB67AE85) & word
    return torch.where(c0 >= math.ceil(call.dropout * 2**32), 1 / (1 - call.dropout), 0.0)
