"""`record`: watches a model's attentions while the model computes as it always does.

Hugging Face models fetch their attention function by name at each forward, all from one place. What
is fetched is wrapped there: the model's own function still gives the answer, and query, key, value
and mask are read beside it. So fused attention stays on, no weights are asked for, and answers are
equal bit for bit.
"""

import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from regard.core.arguments import FLOATS
from regard.recording import memory
from regard.recording.recording import Recording
from regard.recording.watcher import Watcher
from regard.recording.words import Reader

# Parts of a path that name no model: a folder called "model", a snapshot of a hub's cache.
_EMPTY_NAME = re.compile(r"\.{0,2}|model|snapshots|[0-9a-f]{40}")


@contextmanager
def record(
    model: Any,
    tokenizer: Any = None,
    *,
    engine: Literal["model", "regard"] = "model",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    tokens: slice | tuple[int, int] | None = None,
    dtype: DTypeLike | None = None,
    limit: int | None = None,
) -> Iterator[Recording]:
    """Record what a model attends to in the calls made inside the `with` block.

    The model runs as it does without: sdpa, flash or eager, with equal answers, and all is put back
    afterwards. For each attention the weights that are shown are proved against the model's own
    output (`Recording.check`).

    Args:
        model: a PyTorch module that reaches attention by Hugging Face's interface, by
            `scaled_dot_product_attention`, or by PyTorch's own attention modules; or a Keras model
            with its `MultiHeadAttention`, `GroupQueryAttention` or `Attention`, or ours.
        tokenizer: names the tokens; without it they are numbered.
        engine: "model": the model computes, we watch. "regard": our kernel computes (on the CPU,
            without gradients), answers differ by about 1e-5 of the largest.
        layers: numbers of the layers to keep, as the model counts (Keras: in the order in which
            attention layers are first called); all by default.
        heads: numbers of the query heads to keep; all by default.
        tokens: (first, past) or a slice, the rows to keep; each still sees all its keys.
        dtype: keep query, key and value as "float16", say. The proof then speaks of what was kept,
            so it shows the loss.
        limit: bytes to keep at most, a quarter of the free memory by default. If more is known to
            be needed, the first call is refused; if it turns out later, recording stops with a
            warning, and the recording says until where.

    Yields:
        The `Recording`, which can be read inside the block too, once the model ran.

    Raises:
        TypeError: neither a PyTorch nor a Keras model.
        ValueError: an argument makes no sense, or more would be kept than `limit`.
        RuntimeError: nothing could be recorded at all.

    >>> with record(model, tokenizer=tokenizer) as seen:  # doctest: +SKIP
    ...     model(**tokenizer("The cat sat.", return_tensors="pt"))
    >>> seen.reads("cat")  # doctest: +SKIP
    """
    keras, kind, named = sys.modules.get("keras"), Watcher, []
    if keras is not None and isinstance(model, keras.layers.Layer):
        from regard.recording import keras_layers

        kind = keras_layers.KerasWatcher
    elif hasattr(model, "named_modules") and hasattr(model, "register_forward_pre_hook"):
        named = [(name.replace("_orig_mod.", ""), m) for name, m in model.named_modules()]
    else:
        raise TypeError(
            f"model: expected a PyTorch or Keras model, received {type(model).__name__}"
        )
    if engine not in ("model", "regard"):
        raise ValueError(f"engine: expected 'model' or 'regard', received {engine!r}")
    recording = Recording(_name(model), Reader(tokenizer))
    watcher = kind(
        model,
        recording,
        named,
        engine=engine,
        layers=None if layers is None else [int(n) for n in layers],
        heads=None if heads is None else [int(n) for n in heads],
        tokens=_rows(tokens),
        dtype=_float(dtype),
        limit=memory.free() // 4 if limit is None else int(limit),
    )
    with ExitStack() as stack:
        stack.enter_context(watcher)
        if kind is Watcher:
            from regard.recording import modules  # needs PyTorch

            if any(map(_is_compiled, watcher.modules)):
                from torch.compiler import set_stance  # a compiled graph would hide the attentions

                stack.enter_context(set_stance("force_eager"))
            stack.enter_context(_watching(watcher))
            stack.enter_context(modules.watching(watcher))
        yield recording
    _tell(watcher)


def _name(model: Any) -> str:
    """What the model calls itself: the last part of its name or folder that says anything.

    >>> from types import SimpleNamespace as Model
    >>> path = "/hub/models--HuggingFaceTB--SmolLM2-135M/snapshots/" + 40 * "0"
    >>> _name(Model(config=Model(name_or_path=path)))
    'SmolLM2-135M'
    """
    path = str(getattr(getattr(model, "config", None), "name_or_path", "")).replace("\\", "/")
    parts = [part for part in path.split("/") if not _EMPTY_NAME.fullmatch(part)]
    return parts[-1].rpartition("--")[2] if parts else type(model).__name__


def _rows(tokens: slice | tuple[int, int] | None) -> tuple[int, int] | None:
    if tokens is None:
        return None
    first, past = (tokens.start, tokens.stop) if isinstance(tokens, slice) else tokens
    first, past = 0 if first is None else int(first), sys.maxsize if past is None else int(past)
    if not 0 <= first < past or (isinstance(tokens, slice) and tokens.step not in (None, 1)):
        raise ValueError(
            f"tokens: expected (first, past) with 0 <= first < past, received {tokens}"
        )
    return first, past


def _float(dtype: DTypeLike | None) -> np.dtype[Any] | None:
    if dtype is None:
        return None
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = np.dtype(object)
    if found not in FLOATS:
        known = ", ".join(sorted(str(known) for known in FLOATS))
        raise ValueError(f"dtype: expected one of {known}, received {dtype!r}")
    return found


def _is_compiled(module: Any) -> bool:
    return "_orig_mod" in module._modules or module._compiled_call_impl is not None


# ------------------------------------------------------------------ the one place to watch

_watchers: list[Watcher] = []
_undo: list[Callable[[], None]] = []
_lock = threading.Lock()


@contextmanager
def _watching(watcher: Watcher) -> Iterator[None]:
    """Let the watcher see each attention of its model; whoever leaves last puts all back."""
    with _lock:
        _watchers.append(watcher)
        if not _undo:
            _wrap()
    try:
        yield
    finally:
        with _lock:
            _watchers.remove(watcher)
            while _undo and not _watchers:
                _undo.pop()()


def _wrap() -> None:
    """Wrap the attention function that Hugging Face models fetch, and note how to undo it."""
    interface = getattr(sys.modules.get("transformers.modeling_utils"), "AttentionInterface", None)
    fetch = getattr(interface, "get_interface", None)
    if interface is None or fetch is None:
        return

    def get_interface(self: Any, attn_implementation: str | None, default: Any) -> Any:
        return partial(_seen, fetch(self, attn_implementation, default), attn_implementation)

    def undo() -> None:
        if interface.get_interface is get_interface:  # else it still is under another's wrapper
            interface.get_interface = fetch

    interface.get_interface = get_interface
    _undo.append(undo)


def _seen(
    attention: Callable[..., Any],
    implementation: str | None,
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """The model's own attention function, with those beside it who watch this model."""
    run = partial(attention, module, query, key, value, attention_mask, *args, **kwargs)
    call = (implementation, module, query, key, value, attention_mask, kwargs)
    for watcher in _watchers:
        if id(module) in watcher.names:
            run = partial(watcher.see, run, *call)
    return run()


# ------------------------------------------------------------------ what could not be recorded


def _tell(watcher: Watcher) -> None:
    """Name the layers that are missing; nothing recorded at all is an error."""
    recording = watcher.recording
    reasons = "".join(f"\n  {name}: {why}" for name, why in recording.unrecorded.items())
    if not watcher.forwards:
        if "torch._dynamo" in sys.modules and hasattr(watcher, "modules"):
            reasons += (
                "\nA compiled function (torch.compile) that calls it shows nothing: compile the "
                "model itself, or call the function as it is"
            )
        raise RuntimeError(
            "nothing was recorded: the model was not called inside the `with` block. Call the "
            "model that was given to record(), as model(**inputs), model.generate(...) or "
            f"model.predict(...){reasons}"
        )
    if not any(run.tracks for run in recording.runs):
        if not watcher.seen:
            reasons = (
                f" {type(watcher.model).__name__} computes attention in code of its own, not by "
                "Hugging Face's attention interface (transformers 5 or later), "
                "scaled_dot_product_attention, nn.MultiheadAttention or Keras's attention layers. "
                f"regard.look(query, key, value) shows single calls of attention{reasons}"
            )
        elif watcher.layers is not None and not reasons:
            reasons = f" no attention has a number in layers={watcher.layers}"
        raise RuntimeError(f"nothing was recorded:{reasons}")
    if type(watcher) is Watcher:  # Keras's layers are in no numbered stacks
        recording.unrecorded |= _without_attention(watcher)
    if watcher.dropped:
        warnings.warn(
            "the model is in training and drops weights: those before dropout are shown, and the "
            "check says how far the output is from them; model.eval() drops none",
            stacklevel=4,
        )
    if recording.unrecorded:
        listed = "".join(f"\n  {name}: {why}" for name, why in recording.unrecorded.items())
        warnings.warn(f"not recorded:{listed}", stacklevel=4)


def _without_attention(watcher: Watcher) -> dict[str, str]:
    """Layers in which no attention was seen, though it was in others of the same stack."""
    covered: dict[str, set[int]] = {}
    for name in watcher.seen:
        parts = name.split(".")
        for n, part in enumerate(parts):
            if part.isdigit():  # the outermost stack: within a layer not all parts attend
                covered.setdefault(".".join(parts[:n]), set()).add(int(part))
                break
    missing = {}
    for stack, numbers in covered.items():
        for number, layer in watcher.model.get_submodule(stack).named_children():
            if number.isdigit() and int(number) not in numbers:
                why = f"{type(layer).__name__} reached no attention that could be recorded"
                missing[f"{stack}.{number}"] = why
    return missing
