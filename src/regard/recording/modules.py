"""PyTorch modules that reach attention without Hugging Face's interface.

Whoever calls `scaled_dot_product_attention` is seen by a torch function mode, which is on while
the model's outermost forward runs. PyTorch's own attention modules would leave their fast path
under such a mode, and give other answers on rows of padding; so it is off inside of them, they
are watched by hooks, and what they projected is found by projecting once more, beside the answer.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from regard.core.arguments import Array
from regard.core.call import check
from regard.core.compute import compute
from regard.recording.frame import Frame
from regard.recording.layer import Kept, differences, with_dtype
from regard.recording.rules import NotRecordableError, array, cast, tensor, translate_plain
from regard.recording.watcher import Watcher

_SDPA = functional.scaled_dot_product_attention
_FUSED = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention)
_PASSED_BY = "its forward was called past its hooks; call the module itself"
_SCRIPT = "a TorchScript module runs where nothing can be seen"


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Let the watcher see the model's own calls of attention, and PyTorch's attention modules."""
    for module in watcher.modules:
        if isinstance(module, torch.jit.ScriptModule):
            watcher.recording.unrecorded[watcher.names[id(module)]] = _SCRIPT
    hooks, handles = _Hooks(watcher), []
    if hooks.modules:  # hooks of all modules: with one of its own a layer leaves its fast path
        handles = [
            register_module_forward_pre_hook(hooks.opens),
            register_module_forward_hook(hooks.closes, with_kwargs=True, always_call=True),
        ]
    if not watcher.interface:
        watcher.around = lambda: _Mode(watcher)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


# ------------------------------------------------------------------ calls of the function


class _Mode(TorchFunctionMode):
    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self.watcher = watcher

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, watcher = kwargs or {}, self.watcher
        if watcher.inside:
            return func(*args, **kwargs)
        if func is _SDPA or _is_aten(func):
            return _called(watcher, func, args, kwargs)
        if func is functional.multi_head_attention_forward:
            module = _caller(watcher)
            if module is not None:
                watcher.seen.setdefault(watcher.names[id(module)], len(watcher.seen))
                watcher.recording.unrecorded[watcher.names[id(module)]] = _PASSED_BY
        return func(*args, **kwargs)


def _is_aten(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return name.startswith("scaled_dot_product_attention") and "aten" in str(func)


def _caller(watcher: Watcher) -> Any:
    """The innermost module of the model whose code is running."""
    frame = sys._getframe(2)
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, nn.Module) and id(found) in watcher.names:
            return found
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _called(watcher: Watcher, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A call of the function, by the model's own code."""

    def run() -> Any:
        return func(*args, **kwargs)

    module = _caller(watcher)
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, args, strict=False)) | kwargs
    query = given["query"]
    if module is None:
        return run()

    def meaning() -> dict[str, Any]:
        if query.is_nested or not 2 <= query.ndim <= 4:
            raise NotRecordableError(f"a query of shape {tuple(query.shape)}, not (B, H, T, D)")
        causal = bool(given.get("is_causal"))
        return translate_plain(given.get("attn_mask"), causal, given.get("scale"), watcher.known)

    said = {"is_causal": given.get("is_causal") or None, "dropout": given.get("dropout_p")}
    return watcher.attention(
        module,
        cast(_four(query), _four(given["key"]), _four(given["value"])),
        meaning,
        said,
        run,
        lambda result: array(_four(result)),
        lambda output: tensor(output, query, said).reshape(*query.shape[:-1], output.shape[-1]),
    )


def _four(given: Any) -> Any:
    """As (B, H, T, D): three axes have no heads, two no items either."""
    if given.is_nested or given.ndim > 3:
        return given
    return given[:, None] if given.ndim == 3 else given[None, None]


# ------------------------------------------------------------------ PyTorch's own modules


class _Off(threading.local):
    """Keeps the modes of this thread off while a module's forward runs, however many watch it."""

    def __init__(self) -> None:
        self.running: list[list[Any]] = []  # module, how many entered, what keeps modes off

    def enter(self, module: Any) -> None:
        if not self.running or self.running[-1][0] is not module:
            self.running.append([module, 0, torch._C.DisableTorchFunction()])
            self.running[-1][2].__enter__()
        self.running[-1][1] += 1

    def leave(self, module: Any) -> None:
        if self.running and self.running[-1][0] is module:
            self.running[-1][1] -= 1
            if not self.running[-1][1]:
                self.running.pop()[2].__exit__(None, None, None)


_off = _Off()


class _Hooks:
    """Around the forward of PyTorch's modules: the mode is off, and their calls are kept."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.modules = {id(m) for m in watcher.modules if isinstance(m, _FUSED)}
        self.attended: set[int] = set()  # attention modules that ran in the layer under way

    def opens(self, module: Any, args: Any) -> None:
        if module is self.watcher.model and self.watcher.bare:
            self.watcher.opens(module, args, {})
        if id(module) in self.modules and self.watcher.mine:
            self.attended.discard(id(getattr(module, "self_attn", None)))
            _off.enter(module)

    def closes(self, module: Any, args: Any, *rest: Any) -> Any:
        if id(module) not in self.modules or not self.watcher.mine:
            return None
        kwargs, output = rest if len(rest) == 2 else ({}, None)  # PyTorch says less after an error
        try:
            if output is None or not self.watcher.under_way:
                return None
            given = Frame(module, args, kwargs).given
            if isinstance(module, nn.MultiheadAttention):
                self.attended.add(id(module))
                found = _attended(self.watcher, module, given, output[0])
                return None if found is None else (found, output[1])
            fused = isinstance(module, nn.TransformerEncoderLayer)
            if fused and id(module.self_attn) not in self.attended:
                return _attended(self.watcher, module.self_attn, given, output, module)
        finally:
            _off.leave(module)
            if module is self.watcher.model and self.watcher.bare:
                self.watcher.closes(module, args, kwargs, output)
        return None


def _attended(
    watcher: Watcher, module: Any, given: dict[str, Any], output: Any, layer: Any = None
) -> Any:
    """Keep a call of `nn.MultiheadAttention`; with our engine, return our output.

    A layer on its fast path shows what went in and what came out; the rest of it is then computed
    once more too.
    """
    place = watcher.place(module)
    if place is None:
        return None
    try:
        with torch.no_grad():
            return _recorded(watcher, module, place, given, output, layer)
    except (NotRecordableError, TypeError, ValueError, RuntimeError) as error:
        watcher.recording.unrecorded[place[0]] = str(error)
        return None


def _recorded(
    watcher: Watcher, module: Any, place: Any, given: dict[str, Any], output: Any, layer: Any
) -> Any:
    watcher.dropped |= bool(module.training and module.dropout)
    source = given["src" if layer else "query"]
    padding, nested = given.get(f"{'src_' if layer else ''}key_padding_mask"), source.is_nested
    if nested:
        lengths = source._nested_tensor_size()[:, 0]
        source, output = source.to_padded_tensor(0.0), output.to_padded_tensor(0.0)
        padding = torch.arange(source.shape[1]) >= lengths[:, None]
    own = nested or layer is not None or given["query"] is given["key"]
    operands = (layer.norm1(source) if layer and layer.norm_first else source,) * 3
    if not own:
        operands = tuple(given[name] for name in ("query", "key", "value"))
    elif layer is None and not nested:
        operands = (*operands[:2], given["value"])
    mask = given.get("src_mask" if layer else "attn_mask")
    found: list[tuple[Kept, Array]] = []
    real = None
    if padding is not None and own:
        real = array(padding == 0 if padding.is_floating_point() else ~padding)
        real = real.reshape(-1, real.shape[-1])

    def attention(q: Any, k: Any, v: Any, mask: Any = None, *rest: Any, **named: Any) -> Any:
        causal = bool(named.get("is_causal", rest[1] if len(rest) > 1 else False))
        kind = None if own else "cross"
        if own and any(place[0].startswith(f"{part}.".lstrip(".")) for part in _decoders(watcher)):
            kind = "decoder"
        options = translate_plain(mask, causal, None, watcher.known)
        kept = watcher.kept(
            module, place[0], (q, k, v), options, {"is_causal": causal or None}, kind, real
        )
        kept = with_dtype(kept, watcher.dtype)
        ours, lse = compute(check(kept.query, kept.key, kept.value, **kept.options), True)
        found.append((kept, lse))
        return tensor(ours, q, {}).to(q.dtype)

    with _instead(attention):
        ours = _again(module, operands, padding, mask, bool(given.get("is_causal")))
    if layer is not None:
        ours = _rest(layer, source, ours)
    ((kept, lse),) = found
    if watcher.layers is None or kept.number in watcher.layers:
        batch_first = module.batch_first and output.ndim == 3
        alive: Array = np.asarray(lse.min(axis=1, keepdims=True))
        pair = _rows(ours, batch_first), _rows(output, batch_first)
        watcher.keep(place, kept, lse, differences(*pair, alive, watcher.real(kept)))
    return ours if watcher.engine == "regard" and not nested else None


def _decoders(watcher: Watcher) -> list[str]:
    """Names of PyTorch's decoders: what attends to itself in them is a decoder's."""
    kinds = (nn.TransformerDecoder, nn.TransformerDecoderLayer)
    return [watcher.names[id(m)] for m in watcher.modules if isinstance(m, kinds)]


def _rest(layer: Any, source: Any, attended: Any) -> Any:
    """What an encoder layer makes of its attention's output."""
    if layer.norm_first:
        x = source + attended
        return x + layer._ff_block(layer.norm2(x))
    x = layer.norm1(source + attended)
    return layer.norm2(x + layer._ff_block(x))


def _rows(output: Any, batch_first: bool) -> Array:
    """A module's output as (B, 1, T, E)."""
    output = output if output.ndim == 3 else output[:, None]
    found: Array = array(output if batch_first else output.transpose(0, 1))[:, None]
    return found


def _again(module: Any, operands: tuple[Any, ...], padding: Any, mask: Any, causal: bool) -> Any:
    """The module's answer once more, by the function that shows what it hands to attention."""
    turned = module.batch_first and operands[0].ndim == 3
    query, key, value = (x.transpose(0, 1) if turned else x for x in operands)
    same = module._qkv_same_embed_dim
    separate = {f"{name}_proj_weight": getattr(module, f"{name}_proj_weight") for name in "qkv"}
    out, _ = functional.multi_head_attention_forward(
        query, key, value, module.embed_dim, module.num_heads, module.in_proj_weight,
        module.in_proj_bias, module.bias_k, module.bias_v, module.add_zero_attn, 0.0,
        module.out_proj.weight, module.out_proj.bias, training=False, key_padding_mask=padding,
        need_weights=False, attn_mask=mask, use_separate_proj_weight=not same,
        is_causal=causal and mask is not None, **separate,
    )  # fmt: skip
    return out.transpose(0, 1) if turned else out


_swap = threading.Lock()


@contextmanager
def _instead(attention: Callable[..., Any]) -> Iterator[None]:
    """Put a function in the place of `scaled_dot_product_attention`, for this thread alone."""
    mine = threading.get_ident()

    def either(*args: Any, **kwargs: Any) -> Any:
        return (attention if threading.get_ident() == mine else _SDPA)(*args, **kwargs)

    with _swap:
        functional.scaled_dot_product_attention = either
        try:
            yield
        finally:
            functional.scaled_dot_product_attention = _SDPA
