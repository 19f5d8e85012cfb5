"""What sits beside a model while it runs: keeps each attention, proves it, and counts the bytes."""

import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from regard.core.arguments import Array
from regard.core.attention import compute
from regard.core.call import check
from regard.core.indexing import size_in_words
from regard.recording.layer import Kept, differences
from regard.recording.memory import LESS, Budget
from regard.recording.recording import Recording
from regard.recording.rules import NotRecordableError, Options, array, looks_causal, translate
from regard.recording.run import Place, Run, Tokens
from regard.recording.stitch import Track, copied, rows_of, valid_keys

# What a module's forward is handed where it attends to another sequence than its own.
_ELSEWHERE = ("key_value_states", "encoder_hidden_states")
_ARRAYS = ("query", "key", "value")
# What reading or computing an attention of an unknown kind may raise; it is then not recorded.
_OUR_REFUSALS = (TypeError, ValueError, RuntimeError, NotImplementedError)
_CACHES = ("cache", "past_key_values", "cache_params")


class Frame:
    """A forward that is under way: the module, and what it was called with, by name."""

    def __init__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.module = module
        names = _parameters(module.__class__)
        self.given = dict(zip(names, args, strict=False)) | kwargs

    def plane(self, name: str, items: int, columns: int) -> Array | None:
        """An argument as an array of (items, at least so many columns), if it is one."""
        given = self.given.get(name)
        shape = tuple(getattr(given, "shape", ()))
        if len(shape) != 2 or shape[0] != items or shape[1] < columns:
            return None
        return array(given)


@cache
def _parameters(kind: Any) -> list[str]:
    return list(inspect.signature(kind.forward).parameters)[1:]


class Watcher:
    """Watches one model: notes its forwards by hooks, and is shown each attention by `see`."""

    def __init__(
        self,
        model: Any,
        recording: Recording,
        *,
        engine: str,
        layers: Sequence[int] | None,
        heads: Sequence[int] | None,
        tokens: tuple[int, int] | None,
        dtype: np.dtype[Any] | None,
        limit: int,
    ) -> None:
        self.model, self.recording, self.engine = model, recording, engine
        self.layers, self.heads, self.tokens = layers, heads, tokens
        self.dtype, self.budget = dtype, Budget(limit)
        self.names = {
            id(module): name.replace("_orig_mod.", "") for name, module in model.named_modules()
        }
        self.forwards = 0  # outermost forwards that were seen
        self.seen: set[str] = set()  # modules that reached attention, recorded or not
        self._frames: list[Frame] = []
        self._calls: Counter[str] = Counter()  # of each module, in this forward
        self._known: dict[int, tuple[Any, Any]] = {}  # what this forward's masks mean
        self._real: dict[str, Array] = {}  # of each stack: which rows of this forward are real
        self._crossing = False  # whether the model has cross-attention at all
        self._elsewhere: dict[str, bool] = {}  # whether a module attends to another sequence
        self._caches: list[Any] = []  # of the last forward: a call with one of them goes on
        self._output: Any = None
        self._handles: list[Any] = []

    # ------------------------------------------------------------------ hooks

    def __enter__(self) -> "Watcher":
        whole = [self.model]
        for module in self.model.modules():
            config = getattr(module, "config", None)
            if hasattr(module, "get_input_embeddings") and module is not self.model:
                whole.append(module)
            self._crossing |= any(
                getattr(config, name, False)
                for name in ("is_encoder_decoder", "add_cross_attention")
            )
        for module in whole:
            opens = module.register_forward_pre_hook(self._opens, with_kwargs=True)
            closes = module.register_forward_hook(self._closes, with_kwargs=True, always_call=True)
            self._handles += [opens, closes]
        for module in self.model.modules() if self._crossing else ():
            if module not in whole and set(_ELSEWHERE) & set(_parameters(module.__class__)):
                hook = module.register_forward_pre_hook(self._crosses, with_kwargs=True)
                self._handles.append(hook)
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._frames, self._caches, self._output, self._known = [], [], None, {}

    def _opens(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        frame = Frame(module, args, kwargs)
        if not self._frames:
            self._begins(frame)
        self._frames.append(frame)

    def _closes(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        if not any(frame.module is module for frame in self._frames):
            return  # it was refused before it began
        while self._frames.pop().module is not module:
            pass
        if self._frames:
            return
        if output is None:  # the call raised
            self._abandon()
        self._caches += [vars(output)[n] for n in _CACHES if n in getattr(output, "__dict__", {})]
        self._output, self._known = output if self._crossing else None, {}

    def _abandon(self) -> None:
        """Forget a forward that raised: half a picture would be a wrong one."""
        run = self.recording.runs[-1]
        if len(run.forwards) < 2:
            self.recording.runs.pop()
        elif not run.stopped:
            run.stopped = f"step {len(run.forwards) - 1} raised an error"
            run.take_back()

    def _crosses(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = Frame(module, args, kwargs).given
        name = self.names[id(module)]
        self._elsewhere[name] = any(given.get(name) is not None for name in _ELSEWHERE)

    def _begins(self, frame: Frame) -> None:
        """An outermost forward begins: a new run, unless it goes on from the last one."""
        runs, encoded = self.recording.runs, frame.given.get("encoder_outputs")
        caches = [c for name in _CACHES if (c := frame.given.get(name)) is not None]
        goes_on = any(cache is known for cache in caches for known in self._caches)
        if encoded is not None and self._output is not None:
            goes_on |= _first(encoded) is _first(self._output)
        if not runs or not goes_on:
            self._refuse_too_much(frame)
            runs.append(Run())
        self._caches = caches
        self.forwards += 1
        self._calls.clear()
        self._real = {}
        runs[-1].begin_step()

    # ------------------------------------------------------------------ one attention

    def see(
        self,
        run_it: Callable[[], Any],
        implementation: str | None,
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        mask: Any,
        given: dict[str, Any],
    ) -> Any:
        """Let an attention be computed, and keep what it was; returns what it returned."""
        if not self._frames:
            return run_it()
        name, stopped = self.names[id(module)], self.recording.runs[-1].stopped
        place = (name, self._calls[name])
        self._calls[name] += 1
        self.seen.add(name)
        if stopped:
            if place not in self.recording.runs[-1].tracks:
                self.recording.unrecorded[name] = stopped
            return run_it()
        computed = None
        try:
            options = translate(implementation, module, query, key, mask, given, self._known)
            kept = self._kept(module, name, query, key, value, options, given)
            if self.engine == "regard":
                computed = compute(check(kept.query, kept.key, kept.value, **options), exact=True)
        except (NotRecordableError, *_OUR_REFUSALS) as error:
            self.recording.unrecorded[name] = str(error)
            return run_it()
        result = run_it() if computed is None else (_tensor(computed[0], query, given), None)
        if self.layers is None or kept.number in self.layers:
            try:
                self._keep(place, kept, array(result[0]), computed)
            except _OUR_REFUSALS as error:
                self.recording.unrecorded[name] = str(error)
        return result

    def _kept(
        self,
        module: Any,
        name: str,
        query: Any,
        key: Any,
        value: Any,
        options: Options,
        given: dict[str, Any],
    ) -> Kept:
        """What the call is, with the model's own arrays; its tokens are noted on the way."""
        causal = given.get("is_causal")
        causal = getattr(module, "is_causal", None) if causal is None else causal
        kind = "decoder" if (looks_causal(options) if causal is None else causal) else "encoder"
        if self._attends_elsewhere(name, query, key):
            kind = "cross"
        number = getattr(module, "layer_idx", None)
        if not isinstance(number, int):
            inside = [int(part) for part in name.split(".") if part.isdigit()]
            number = inside[0] if len(inside) == 1 else len(self.seen) - 1
        arrays = (array(query), array(key), array(value))
        self._note(kind, *arrays[:2], options)
        heads = np.arange(arrays[0].shape[1])
        kept = Kept(name, number, kind, heads, *arrays, np.empty(0), options, 0.0, 0.0)
        if kind == "decoder" and not {"causal", "window"} & options.keys():
            offset = valid_keys(kept) - query.shape[-2]
            kept = replace(kept, options=options | {"query_offset": offset})
        return kept

    def _attends_elsewhere(self, name: str, query: Any, key: Any) -> bool:
        """Whether the keys are of another sequence: what the module was handed says so."""
        for known in (name, name.rpartition(".")[0]):
            if known in self._elsewhere:
                return self._elsewhere[known]
        alone = not any(frame.given.get(name) for frame in self._frames for name in _CACHES)
        return alone and self._crossing and query.shape[-2] != key.shape[-2]

    def _note(self, kind: str, query: Array, key: Array, options: Options) -> None:
        """Note the tokens of this forward's rows, and of the keys where they are others'."""
        run, frame = self.recording.runs[-1], self._frames[-1]
        step, stack = len(run.forwards) - 1, "decoder" if kind == "cross" else kind
        items, rows, keys = len(query), query.shape[-2], key.shape[-2]
        if stack not in self._real:
            mask = frame.plane("attention_mask", items, rows)
            ids = frame.plane("input_ids", items, rows)
            for outer in reversed(self._frames[:-1] if not self._crossing else ()):
                ids = outer.plane("input_ids", items, rows) if ids is None else ids
            real = np.ones((items, rows), bool) if mask is None else mask != 0
            if mask is None and "ranges" in options and kind != "cross":
                # Only a whole mask was handed over; rows of padding may attend nothing in it.
                first, past = options["ranges"]
                real = np.broadcast_to(past > first, (items, rows))
            self._real[stack] = real[:, -rows:]
            # Of what a cache held before recording began, only the padding is known.
            new = rows if stack in run.tokens else real.shape[1]
            named = np.full((items, new), -1)
            if ids is not None:
                named[:, -rows:] = ids[:, -rows:]
            if not run.parted:
                run.tokens.setdefault(stack, Tokens()).append(step, named, real[:, -new:])
        if kind == "cross" and "encoder" not in run.tokens:
            mask = frame.plane("encoder_attention_mask", items, keys)
            real = np.ones((items, keys), bool) if mask is None else mask != 0
            run.tokens["encoder"] = Tokens()
            run.tokens["encoder"].append(step, np.full((items, keys), -1), real)

    # ------------------------------------------------------------------ what is kept of it

    def _keep(
        self, place: Place, kept: Kept, theirs: Array, computed: tuple[Array, Array] | None
    ) -> None:
        """Prove what was recorded, and keep a copy of what is new in it."""
        run = self.recording.runs[-1]
        theirs = theirs.swapaxes(1, 2)
        if self.heads is not None or self.dtype is not None:
            kept, theirs, computed = self._narrowed(kept), theirs[:, self._some(kept)], None
        ours, lse = computed or compute(
            check(kept.query, kept.key, kept.value, **kept.options), exact=True
        )
        real = self._real["decoder" if kept.kind == "cross" else kept.kind]
        difference, largest = differences(ours, theirs, lse, real)
        kept = replace(kept, lse=lse, difference=difference, largest=largest)

        track, rows = run.tracks.get(place), self._rows(run, kept)
        new = slice(0, valid_keys(kept)) if track is None else track.news(kept)
        if (new is None or run.parted) and track is not None:
            run.part()
            new = slice(0, valid_keys(kept))
        assert new is not None
        if not self.budget.take(kept, rows, new):
            self._stop(run, place)
            return
        if track is None or run.parted:
            run.add(place, Track(copied(rows_of(kept, rows, new.stop))))
        else:
            track.append(kept, rows, new)
            run.grow(place)

    def _stop(self, run: Run, place: Place) -> None:
        """Record no more of this run: of a first forward some layers are kept, else whole steps."""
        step = len(run.forwards) - 1
        run.stopped = (
            f"recording stopped in step {step} at {place[0]}: it keeps "
            f"{size_in_words(self.budget.used)}, and limit={size_in_words(self.budget.limit)}"
        )
        if step and not run.parted:
            run.take_back()
        elif not step:
            self.recording.unrecorded[place[0]] = run.stopped
        warnings.warn(f"{run.stopped}. The model goes on. {LESS}", stacklevel=2)

    def _narrowed(self, kept: Kept) -> Kept:
        """Only the heads that were asked for, in the dtype that was asked for."""
        if self.heads is not None:
            some = self._some(kept)
            group = some // (len(kept.heads) // kept.key.shape[1])
            options = dict(kept.options)
            for name in ("mask", "bias"):
                if name in options and options[name].shape[1] > 1:
                    options[name] = options[name][:, some]
            if "sinks" in options:
                options["sinks"] = options["sinks"][some]
            kept = replace(
                kept,
                heads=some,
                query=kept.query[:, some],
                key=kept.key[:, group],
                value=kept.value[:, group],
                options=options,
            )
        if self.dtype is not None:
            arrays = {name: getattr(kept, name).astype(self.dtype) for name in _ARRAYS}
            kept = replace(kept, **arrays)
        return kept

    def _some(self, kept: Kept) -> Array:
        """The heads that were asked for, of those there are."""
        heads = np.arange(kept.query.shape[1]) if self.heads is None else np.array(self.heads)
        if heads.size and not 0 <= heads.min() <= heads.max() < kept.query.shape[1]:
            raise ValueError(f"heads: expected 0..{kept.query.shape[1] - 1}, received {self.heads}")
        return heads

    def _rows(self, run: Run, kept: Kept) -> slice:
        """The rows of this forward that are among the tokens that were asked for."""
        count = kept.query.shape[-2]
        if self.tokens is None:
            return slice(0, count)
        begin = run.tokens["decoder" if kept.kind == "cross" else kept.kind].size - count
        first, past = (min(max(0, position - begin), count) for position in self.tokens)
        return slice(first, max(first, past))

    def _refuse_too_much(self, frame: Frame) -> None:
        """Refuse before the first forward, where the model's configuration tells the size."""
        given = [g for n in ("input_ids", "inputs_embeds") if (g := frame.given.get(n)) is not None]
        if not given or len(given[0].shape) < 2:
            return
        items, tokens = given[0].shape[:2]
        if self.tokens is not None:
            tokens = max(0, min(tokens, self.tokens[1]) - self.tokens[0])
        size = getattr(getattr(self.model, "dtype", None), "itemsize", 4)
        size = size if self.dtype is None else self.dtype.itemsize
        config = getattr(self.model, "config", None)
        self.budget.refuse_over(config, items, tokens, size, self.layers, self.heads)


def _tensor(output: Array, query: Any, given: dict[str, Any]) -> Any:
    """Our output (B, H, T, V) as the tensor (B, T, H, V) that the model goes on with."""
    import torch

    if given.get("dropout"):
        raise ValueError("engine='regard' has no dropout: call model.eval()")
    if torch.is_grad_enabled() and query.requires_grad:
        raise ValueError("engine='regard' has no gradients: call the model in torch.no_grad()")
    rows = np.ascontiguousarray(output.swapaxes(1, 2))
    if rows.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16).to(query.device)
    return torch.from_numpy(rows).to(query.device)


def _first(output: Any) -> Any:
    """The first tensor of a model's output."""
    try:
        return output[0]
    except (KeyError, IndexError, TypeError):
        return output
