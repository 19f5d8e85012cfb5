"""What a model's own call of attention means, as the arguments of `regard.attention`.

Hugging Face hands every attention function the same things, but the functions read them each in
its own way: `sdpa` is causal where no mask is given, `eager` never is, the flash functions take a
mask of keys. A dense mask is kept as numbers where it is made of key ranges, as nearly all are.
"""

import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from regard.core.arguments import Array

Options = dict[str, Any]


class NotRecordableError(Exception):
    """Why an attention could not be recorded, in words."""


def array(tensor: Any) -> Array:
    """A torch tensor as a NumPy array, cut from its gradient; no copy where it is on the CPU."""
    torch = sys.modules["torch"]
    if tensor.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise NotRecordableError(
            "its tensors hold no numbers here: it ran under a transform of torch.func (vmap, grad) "
            "or on the meta device"
        )
    from regard.torch.tensors import array as over_the_same_memory

    return over_the_same_memory(tensor)


def cast(*tensors: Any) -> tuple[Any, ...]:
    """Cast query, key and value as autocast does for attention, if it is on."""
    torch, device = sys.modules["torch"], tensors[0].device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    from regard.torch.attention import cast as casting

    return casting(*tensors)


class EngineError(ValueError):
    """What the model asks of its attention and our kernel does not do here."""


def tensor(output: Array, query: Any, given: dict[str, Any]) -> Any:
    """Our output as the tensor that the model goes on with."""
    import torch

    if given.get("dropout"):
        raise EngineError("engine='regard' has no dropout: call model.eval()")
    if torch.is_grad_enabled() and query.requires_grad:
        raise EngineError("engine='regard' has no gradients: call the model in torch.no_grad()")
    if output.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(output.view(np.int16)).view(torch.bfloat16).to(query.device)
    return torch.from_numpy(output).to(query.device)


def translate(
    implementation: str | None,
    module: Any,
    query: Any,
    key: Any,
    mask: Any,
    given: dict[str, Any],
    known: dict[int, tuple[Any, Any]],
) -> Options:
    """The arguments of `regard.attention` that mean what this call means.

    Args:
        implementation: the name of the function that was called: "sdpa", "eager", …
        module: the attention module that called it.
        query: (B, H, T, D), a tensor, as all that follow.
        key: (B, G, S, D).
        mask: what the function was given as attention mask.
        given: its keyword arguments.
        known: what masks of this forward were found to mean; layers share them.

    Raises:
        NotRecordableError: the call says something that cannot be said in our arguments.
    """
    name = implementation or "eager"
    if name == "flex_attention" or name.startswith("paged|"):
        raise NotRecordableError(
            f"the '{name}' attention keeps its mask in a form of its own; "
            "model.set_attn_implementation('sdpa') before recording"
        )
    rows, keys = query.shape[-2], key.shape[-2]
    causal = given.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if causal is None else causal)
    options: Options = {}
    if given.get("scaling") is not None:
        options["scale"] = float(given["scaling"])
    if given.get("softcap") is not None:
        options["softcap"] = float(given["softcap"])
    sinks = given.get("s_aux")
    if sinks is not None:
        options["sinks"] = np.array(array(sinks.reshape(-1)), np.float64)
    if given.get("position_bias") is not None:
        options["bias"] = _once(known, given["position_bias"], array)[..., :keys]
    if name.startswith("flash"):
        return options | _flash(mask, causal, rows, keys, given, known)
    if mask is not None:
        meaning: Options = _once(known, mask, lambda mask: _meaning_of(mask, keys))
        if "bias" in options and "bias" in meaning:
            meaning = {"bias": options["bias"] + meaning["bias"]}
        return options | meaning
    if name != "eager" and causal and rows > 1:
        # As sdpa: the first query meets the first key, and keys after the last query do not exist.
        return options | {"causal": True, "query_offset": 0}
    return options


def translate_plain(
    mask: Any, causal: bool, scale: float | None, known: dict[int, tuple[Any, Any]]
) -> Options:
    """The same for a call of `scaled_dot_product_attention` itself."""
    options: Options = {} if scale is None else {"scale": float(scale)}
    if mask is not None:
        options |= _once(known, mask, _meaning_of)
    return options | ({"causal": True, "query_offset": 0} if causal else {})


def _flash(
    mask: Any, causal: bool, rows: int, keys: int, given: dict[str, Any], known: dict[int, Any]
) -> Options:
    """The flash functions: a mask of keys, causality where the last query meets the last key."""
    if any(given.get(name) is not None for name in ("cu_seq_lens_q", "cu_seq_lens_k")):
        raise NotRecordableError("packed sequences under flash attention")
    options: Options = {}
    if mask is not None:
        options |= _once(known, mask, lambda m: {"mask": array(m).astype(bool)[:, None, None]})
    window = given.get("sliding_window")
    if causal:
        options |= {"causal": True, "query_offset": keys - rows}
    if window is not None and window > 0:
        before = int(window) - 1
        options |= {"window": (before, 0 if causal else before), "query_offset": keys - rows}
    return options


def _once(known: dict[int, tuple[Any, Any]], given: Any, find: Callable[[Any], Any]) -> Any:
    """Find out what a tensor means once a forward; its layers are handed the same object."""
    if id(given) not in known:
        known[id(given)] = (given, find(given))  # the tensor is held, so that its id stays its own
    return known[id(given)][1]


def _meaning_of(mask: Any, keys: int | None = None) -> Options:
    """A mask, of the first keys, as the arguments that say the same; our own is a rule already."""
    lazy = getattr(sys.modules.get("regard.transformers.mask"), "LazyMask", None)
    if lazy is None or not isinstance(mask, lazy):
        dense = array(mask)
        return _meaning(dense if keys is None else dense[..., :keys])
    limits: Any = mask.limits
    rows, keys = mask.shape[-2], mask.shape[-1] if keys is None else keys
    if limits.mask is not None and limits.mask.shape[-2] > 1:
        return compact(array(limits.mask)[..., :keys])
    first, past = (0, keys) if limits.ranges is None else map(array, limits.ranges)
    past = np.minimum(past, keys)
    if limits.causal:
        past = np.minimum(past, np.arange(1, rows + 1) + limits.query_offset)
    some = None if limits.mask is None else array(limits.mask)[..., :keys]
    shape = np.broadcast_shapes(np.shape(first), np.shape(past), (1, rows))
    first, past = (np.broadcast_to(n, shape).astype(np.int64) for n in (first, past))
    empty = first >= past
    return _ranges(np.where(empty, 0, first), np.where(empty, 0, past), some, keys)


def _ranges(first: Array, past: Array, used: Array | None, keys: int) -> Options:
    """The arguments for key ranges (B, T) and what may be used of all keys, (B, 1, 1, S)."""
    mask: Options = {} if used is None else {"mask": used}
    if not first.any() and (past == keys).all():
        return mask
    return {"ranges": (first, past)} | mask


def _meaning(mask: Array) -> Options:
    """A dense mask as the arguments that say the same."""
    if mask.dtype == bool:
        return compact(mask)
    if mask.dtype.kind in "iu":
        raise NotRecordableError(f"a mask of {mask.dtype}, neither booleans nor numbers to add")
    lowest = ml_dtypes.finfo(mask.dtype).min  # type: ignore[no-untyped-call]
    allowed = mask == 0
    if (allowed | (mask <= lowest)).all():
        return compact(allowed)
    return {"bias": np.array(mask.reshape((1,) * (4 - mask.ndim) + mask.shape))}


def compact(mask: Array) -> Options:
    """A boolean mask (B, H, T, S) as key ranges, with a mask of keys if need be, or as it is.

    A row's keys need not stand side by side; it is enough that no other key that *any* row of the
    item may attend stands between them. So causal masks with padding left, right or in the middle,
    windows and chunks all come down to two numbers a row.

    >>> causal = np.tril(np.ones((1, 1, 3, 3), bool))
    >>> compact(causal)["ranges"]
    (array([[0, 0, 0]]), array([[1, 2, 3]]))
    """
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    mask = mask[
        tuple(slice(0, 1 if s == 0 and i < 2 else None) for i, s in enumerate(mask.strides))
    ]
    if mask.shape[1] > 1 and (mask == mask[:, :1]).all():
        mask = mask[:, :1]
    if mask.shape[1] > 1 or 0 in mask.shape:
        return {"mask": np.array(mask)}
    plane = mask[:, 0]
    count = np.count_nonzero(plane, axis=-1)  # (B, T)
    first = np.where(count, plane.argmax(axis=-1), 0)
    past = np.where(count, plane.shape[-1] - plane[..., ::-1].argmax(axis=-1), 0)
    used: Array = np.asarray(plane.any(axis=-2))  # (B, S)
    before = np.zeros((len(used), used.shape[-1] + 1), np.int64)
    np.cumsum(used, axis=-1, out=before[:, 1:])
    within = np.take_along_axis(before, past, -1) - np.take_along_axis(before, first, -1)
    if not (within == count).all():
        return {"mask": np.array(mask)}
    whole = (past - first == count).all()
    ranges = first.astype(np.int64), past.astype(np.int64)
    return _ranges(*ranges, None if whole else used[:, None, None], plane.shape[-1])


def looks_causal(options: Options) -> bool:
    """Whether no row may see a key after its own position."""
    if options.get("causal"):
        return True
    if "ranges" not in options:
        return False
    past = options["ranges"][1]
    return bool(past.shape[-1] > 1 and (past <= np.arange(past.shape[-1]) + 1).all())
