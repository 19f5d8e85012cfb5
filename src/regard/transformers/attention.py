"""One layer's attention, as a model of transformers asks for it."""

# mypy: allow-untyped-calls

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from regard.core.look import Look
from regard.torch import attention, look
from regard.torch.tensors import array
from regard.transformers.mask import LazyMask


class Weights(Look):
    """The `Look` of one layer, which a model returns as that layer's attention weights.

    Nothing is computed for it before somebody asks it something.
    """

    def __init__(self, make: Callable[[], tuple[Any, ...]]):
        """Keep what makes the arguments of a `Look`: call, output, lse and real rows."""
        self._make = make

    def __getattr__(self, name: str) -> Any:
        # Called for what is not there yet.
        make = self.__dict__.get("_make")
        if make is None or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        call, output, lse, real_rows = make()
        del self._make
        super().__init__(call, output, lse, real_rows=real_rows)
        return getattr(self, name)


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[Tensor, Weights | None]:
    """Compute one layer's attention: the function behind `attn_implementation="regard"`.

    Args:
        module: the layer; whether it is causal is asked where there is no mask.
        query: (B, H, T, D).
        key: (B, G, S, D).
        value: (B, G, S, V).
        attention_mask: of `regard.transformers.attention_mask`, or what a model made by itself:
            booleans, or floats to add; None allows everything, or what is causal.
        scaling: factor of the dot products, 1 / √D by default.
        dropout: probability that a weight is dropped.
        softcap: bends the scores.
        s_aux: (H,), a sink for each head.
        position_bias: (1 or B, H, T, S), added to the scores.
        is_causal: comes before what the module says.

    Returns:
        The output (B, T, H, V), and the weights as a `Look` that is made when it is read; None
        in a compiled graph.
    """
    options: dict[str, Any] = {"scale": scaling, "softcap": softcap, "sinks": s_aux}
    options["bias"] = position_bias
    rows = None
    if isinstance(attention_mask, LazyMask):
        limits = attention_mask.limits
        options |= limits._asdict()
        if limits.causal or not _crosses(module):
            rows = attention_mask.real_rows
    elif attention_mask is None:
        if query.shape[2] > 1 and (
            is_causal if is_causal is not None else getattr(module, "is_causal", True)
        ):
            options |= {"causal": True, "query_offset": 0}
    elif (mask := _boolean(attention_mask)) is not None:
        options["mask"] = mask
    else:
        added = attention_mask if position_bias is None else position_bias + attention_mask
        options["bias"] = added
    output = attention(query, key, value, **options, dropout=dropout)
    weights = None
    if not torch.compiler.is_compiling():
        cut = {name: t.detach() if isinstance(t, Tensor) else t for name, t in options.items()}
        given = (query.detach(), key.detach(), value.detach())
        used = None if dropout else output.detach()
        weights = Weights(lambda: _made(given, cut, used, rows))
    return output.transpose(1, 2).contiguous(), weights


def _made(
    given: tuple[Tensor, ...], options: dict[str, Any], output: Tensor | None, rows: Tensor | None
) -> tuple[Any, ...]:
    """The arguments of a layer's `Look`: with the model's own output, so that it is proved."""
    seen = look(*given, **options)
    own = array(seen.output if output is None else output)
    return seen.call, own, seen._lse, None if rows is None else array(rows)


_read = WeakTensorKeyDictionary()


def _boolean(mask: Tensor) -> Tensor | None:
    """A model's own mask as booleans; None if it holds other numbers than 0 and the lowest.

    Such numbers are how masks of booleans are written for adding. They are looked through once
    for all layers.
    """
    if mask.dtype is torch.bool:
        return mask
    if torch.compiler.is_compiling() or mask.requires_grad or not mask.is_floating_point():
        return None
    version: int | None
    found: Tensor | None
    version, found = _read.get(mask, (None, None))
    if version != mask._version:
        allowed = mask == 0
        only = bool((allowed | (mask <= torch.finfo(mask.dtype).min)).all())
        found = allowed if only else None
        _read[mask] = (mask._version, found)
    return found


def _crosses(module: torch.nn.Module) -> bool:
    """Whether a layer's keys may be of another sequence than its queries."""
    return any(getattr(module, name, False) for name in ("is_cross_attention", "is_decoder"))
