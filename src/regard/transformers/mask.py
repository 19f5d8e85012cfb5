"""The mask of a forward pass as the rule that it follows; as booleans only if somebody asks.

transformers describes a mask by a function of two positions. For causal, sliding, chunked and
packed patterns a row sees one stretch of keys, so the whole mask comes down to two numbers a row.
"""

# mypy: allow-untyped-calls

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    sdpa_mask,
)

MaskFunction: TypeAlias = Callable[..., Any]  # of item, head, query and key: may it attend?

SLAB = 64  # rows of a mask function that are looked at together


class Limits(NamedTuple):
    """What a mask comes down to, as arguments of `regard.torch.attention`."""

    causal: bool = False
    query_offset: int = 0  # position of the first query among the keys
    ranges: tuple[Tensor, Tensor] | None = None  # (B or 1, T or 1)
    mask: Tensor | None = None  # (B, 1, 1 or T, S)


class LazyMask(Tensor):
    """A mask (B, 1, T, S) that holds its rule; whoever computes with it gets the booleans."""

    # The tensor itself has no memory. What is done with it is done with `dense`, see below.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    size_of: tuple[int, int, int]
    query_offset: int
    key_offset: int
    function: MaskFunction
    padding: Tensor | None

    @staticmethod
    def __new__(
        cls,
        size_of: tuple[int, int, int],
        query_offset: int,
        key_offset: int,
        function: MaskFunction,
        padding: Tensor | None,
        device: torch.device,
    ) -> "LazyMask":
        """Describe a mask of (batch, queries, keys), positions counted from the offsets."""
        batch, queries, keys = size_of
        mask: LazyMask = Tensor._make_wrapper_subclass(
            cls, (batch, 1, queries, keys), dtype=torch.bool, device=device
        )
        mask.size_of, mask.function, mask.padding = size_of, function, padding
        mask.query_offset, mask.key_offset = query_offset, key_offset
        return mask

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Compute with the booleans: right in any code, only larger."""
        args, kwargs = tree_map_only(cls, lambda mask: mask.dense, (args, kwargs or {}))
        return func(*args, **kwargs)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"LazyMask(shape={tuple(self.shape)}, device={self.device})"

    @cached_property
    def dense(self) -> Tensor:
        """All booleans, (B, 1, T, S), as transformers makes them for PyTorch's attention."""
        batch, queries, keys = self.size_of
        made = sdpa_mask(
            batch_size=batch,
            q_length=queries,
            kv_length=keys,
            q_offset=self.query_offset,
            kv_offset=self.key_offset,
            mask_function=self.function,
            attention_mask=self.padding,
            allow_is_causal_skip=False,
            allow_is_bidirectional_skip=False,
            device=self.device,
        )
        return cast(Tensor, made)

    @cached_property
    def limits(self) -> Limits:
        """The rule, as compact as it gets; found once for all layers."""
        offset = self.query_offset - self.key_offset
        padding = self._padding()
        if self.function is causal_mask_function:
            return self._padded(Limits(causal=True, query_offset=offset), padding)
        if self.function is bidirectional_mask_function:
            return self._padded(Limits(query_offset=offset), padding)
        ranges = self._ranges()
        if ranges is None:
            return Limits(query_offset=offset, mask=self.dense)
        return self._padded(Limits(query_offset=offset, ranges=ranges), padding)

    @cached_property
    def real_rows(self) -> Tensor | None:
        """(B, T): which rows are no padding, where queries and keys are one sequence; else None."""
        _, queries, keys = self.size_of
        begin, end = self.query_offset, self.query_offset + queries
        if self.padding is None or end != keys + self.key_offset or self.padding.shape[-1] < end:
            return None
        return self.padding[:, begin:end].bool()

    def _padding(self) -> Tensor | None:
        """Which keys are no padding, (B, S); None if all are."""
        if self.padding is None:
            return None
        keys = self.size_of[2]
        own = self.padding[:, self.key_offset : self.key_offset + keys].bool()
        missing = keys - own.shape[-1]
        own = torch.nn.functional.pad(own, (0, missing)) if missing else own
        return None if own.all() else own

    def _padded(self, limits: Limits, padding: Tensor | None) -> Limits:
        if padding is None:
            return limits
        found = _stretch(padding)
        if found is None:
            return limits._replace(mask=padding[:, None, None, :])
        first, past = (numbers[:, None] for numbers in found)
        if limits.ranges is not None:
            first, past = first.maximum(limits.ranges[0]), past.minimum(limits.ranges[1])
        return limits._replace(ranges=(first, past))

    def _ranges(self) -> tuple[Tensor, Tensor] | None:
        """First and past key of each row, (B or 1, T); None if a row sees several stretches."""
        batch, queries, keys = self.size_of
        item = torch.arange(batch, device=self.device)[:, None, None, None]
        head = torch.zeros(1, dtype=torch.long, device=self.device)[None, :, None, None]
        key = torch.arange(keys, device=self.device)[None, None, None] + self.key_offset
        found = []
        for begin in range(0, queries, SLAB):
            row = torch.arange(begin, min(begin + SLAB, queries), device=self.device)
            row = row[None, None, :, None] + self.query_offset
            slab = self.function(item, head, row, key)
            slab = slab.expand(-1, 1, row.shape[2], keys)[:, 0]
            if (stretches := _stretch(slab)) is None:
                return None
            found.append(stretches)
        first, past = (torch.cat(parts, 1) for parts in zip(*found, strict=True))
        return first, past


def _stretch(seen: Tensor) -> tuple[Tensor, Tensor] | None:
    """Where the one stretch of True in each row (…, S) begins and ends; None if one has several."""
    if not seen.shape[-1]:
        none = seen.new_zeros(seen.shape[:-1], dtype=torch.long)
        return none, none
    count = seen.sum(-1)
    first = seen.byte().argmax(-1)
    past = first + count
    last = seen.shape[-1] - seen.flip(-1).byte().argmax(-1)
    if ((past != last) & (count > 0)).any():
        return None
    return first, past


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction = causal_mask_function,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **options: Any,
) -> Tensor | None:
    """Describe the mask of a forward pass: what transformers calls for each kind of layer.

    It is `transformers.masking_utils.sdpa_mask` with the same arguments, but lazy. The whole mask
    is made where it is a single row, where a graph is being traced, and for functions of a user.
    """
    if q_length == 1 or use_vmap or torch.compiler.is_compiling() or torch._C._get_tracing_state():
        made: Tensor | None = sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=cast(int, q_offset),
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            use_vmap=use_vmap,
            device=device,
            **options,
        )
        return made
    # A static cache counts on in place, before the mask is read: so its number is read now.
    return LazyMask(
        (batch_size, q_length, kv_length),
        int(q_offset),
        int(kv_offset),
        mask_function,
        attention_mask,
        torch.device(device),
    )
