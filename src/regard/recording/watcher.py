"""What sits beside a model while it runs: keeps each attention, proves it, and counts the bytes."""

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from regard.core.arguments import Array
from regard.core.call import check
from regard.core.compute import compute
from regard.core.indexing import size_in_words
from regard.recording.frame import Frame, first, parameters
from regard.recording.layer import Kept, chosen, differences, stacks, with_dtype, with_heads
from regard.recording.memory import LESS, Budget
from regard.recording.recording import Recording
from regard.recording.rules import (
    EngineError,
    NotRecordableError,
    Options,
    array,
    cast,
    looks_causal,
    tensor,
    translate,
)
from regard.recording.run import Place, Run
from regard.recording.sequences import Sequences
from regard.recording.stitch import Track, copied, rows_of, valid_keys

# What a module's forward is handed where it attends to another sequence than its own.
_ELSEWHERE = ("key_value_states", "encoder_hidden_states")
# What reading or computing an attention of an unknown kind may raise; it is then not recorded.
_OUR_REFUSALS = (TypeError, ValueError, RuntimeError, NotImplementedError)
_CACHES = ("cache", "past_key_values", "cache_params")
_THREAD = "it ran while a call of another thread was recorded"

_active: list["Watcher"] = []  # all that watch a PyTorch model


class Watcher:
    """Watches one model: notes its forwards by hooks, and is shown each attention by `see`."""

    def __init__(
        self,
        model: Any,
        recording: Recording,
        named: Sequence[tuple[str, Any]],
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
        self.modules = [module for _, module in named]
        self.names = {id(module): name for name, module in named}
        self._home = self._thread = threading.get_ident()  # who records; whose forward is under way
        self._lock = threading.Lock()
        self.dropped = False  # whether a call dropped weights, as in training
        self.inside = 0  # depth of attention functions that are under way
        self.interface = bool(getattr(model, "_supports_attention_backend", False))
        self.around: Callable[[], Any] = nullcontext  # entered around each outermost forward
        self._within: Any = None
        self.forwards = 0  # outermost forwards that were seen
        self.seen: dict[str, int] = {}  # modules that reached attention, recorded or not, in order
        self._order: dict[Place, int] = {}  # and each of their calls in a forward
        self._frames: list[Frame] = []
        self._calls: Counter[str] = Counter()  # of each module, in this forward
        self.known: dict[int, tuple[Any, Any]] = {}  # what this forward's masks mean
        self._sequences = Sequences()
        self._crossing = False  # whether the model has cross-attention at all
        self._elsewhere: dict[str, bool] = {}  # whether a module attends to another sequence
        self._caches: list[Any] = []  # of the last forward: a call with one of them goes on
        self._output: Any = None
        self._handles: list[Any] = []

    # ------------------------------------------------------------------ hooks

    def __enter__(self) -> "Watcher":
        _active.append(self)
        whole, configs = [] if self.bare else [self.model], {}
        for module in self.modules:
            config = vars(module).get("config")
            configs[id(config)] = config
            if hasattr(type(module), "get_input_embeddings") and module is not self.model:
                whole.append(module)
        self._crossing = any(
            getattr(config, name, False)
            for config in configs.values()
            for name in ("is_encoder_decoder", "add_cross_attention")
        )
        for module in whole:
            opens = module.register_forward_pre_hook(self.opens, with_kwargs=True)
            closes = module.register_forward_hook(self.closes, with_kwargs=True, always_call=True)
            self._handles += [opens, closes]
        for module in self.modules if self._crossing else ():
            if module not in whole and set(_ELSEWHERE) & set(parameters(module.__class__)):
                hook = module.register_forward_pre_hook(self._crosses, with_kwargs=True)
                self._handles.append(hook)
        return self

    def __exit__(self, *_: object) -> None:
        _active.remove(self)
        for handle in self._handles:
            handle.remove()
        self._frames, self._caches, self._output, self.known = [], [], None, {}

    def opens(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that a forward begins."""
        frame = Frame(module, args, kwargs)
        with self._lock:
            if self._frames and not self.mine:
                if not self._is_elsewhere():
                    self.recording.unrecorded["a call in another thread"] = _THREAD
                return
            if not self._frames:
                if self._is_elsewhere():
                    return
                self._thread = threading.get_ident()
                self._begins(frame)
                self._within = self.around()
                self._within.__enter__()
            self._frames.append(frame)

    @property
    def mine(self) -> bool:
        """Whether the forward that is under way is one of this thread."""
        return self._thread == threading.get_ident()

    def _is_elsewhere(self) -> bool:
        """Whether this thread records the model itself, and this recorder is another thread's."""
        me = threading.get_ident()
        same = (watcher for watcher in _active if watcher.model is self.model)
        return self._home != me and any(watcher._home == me for watcher in same)

    def closes(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        """Note that a forward ends; without an output it raised."""
        if not self.mine or not any(frame.module is module for frame in self._frames):
            return  # it was refused before it began, or is not recorded here
        while self._frames.pop().module is not module:
            pass
        if self._frames:
            return
        self._within.__exit__(None, None, None)
        if output is None:  # the call raised
            self._abandon()
        self._caches += [vars(output)[n] for n in _CACHES if n in getattr(output, "__dict__", {})]
        self._output, self.known = output if self._crossing else None, {}

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
            goes_on |= first(encoded) is first(self._output)
        if not runs or not goes_on:
            some = (self.tokens, self.dtype, self.layers, self.heads)
            self.budget.refuse_over(self.model, frame.given, *some)
            runs.append(Run())
        self._caches = caches
        self.forwards += 1
        self._calls.clear()
        self._sequences.begin()
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
        if not self.under_way:
            return run_it()
        self.inside += 1  # what the function calls in its turn is no attention of its own
        try:
            return self.attention(
                module,
                cast(query, key, value),
                lambda: translate(implementation, module, query, key, mask, given, self.known),
                given,
                run_it,
                lambda result: array(result[0]).swapaxes(1, 2),
                lambda output: (tensor(output, query, given).transpose(1, 2).contiguous(), None),
            )
        finally:
            self.inside -= 1

    def attention(
        self,
        module: Any,
        operands: tuple[Any, Any, Any],
        meaning: Callable[[], Options],
        given: dict[str, Any],
        run_it: Callable[[], Any],
        theirs: Callable[[Any], Array],
        ours: Callable[[Array], Any],
    ) -> Any:
        """Let an attention be computed, and keep what it was; returns what it returned.

        Args:
            module: the module that called it.
            operands: query (B, H, T, D), key and value (B, G, S, …), tensors.
            meaning: finds the further arguments.
            given: the keyword arguments of the call.
            run_it: computes it.
            theirs: the output (B, H, T, V) in what `run_it` returned.
            ours: from our output to what the model takes for the result.
        """
        place = self.place(module) if self.under_way else None
        if place is None:
            return run_it()
        name, computed = place[0], None
        self.dropped |= bool(given.get("dropout"))
        try:
            kept = self.kept(module, name, operands, meaning(), given)
            if self.engine == "regard":
                call = check(kept.query, kept.key, kept.value, **kept.options)
                computed = compute(call, True, by_row=True)
                result = ours(computed[0])
        except (NotRecordableError, *_OUR_REFUSALS) as error:
            self.recording.unrecorded[name] = str(error)
            if isinstance(error, EngineError):
                raise
            return run_it()
        if computed is None:
            result = run_it()
        if self.layers is None or kept.number in self.layers:
            try:
                self._prove(place, kept, theirs(result), computed)
            except _OUR_REFUSALS as error:
                self.recording.unrecorded[name] = str(error)
        return result

    @property
    def bare(self) -> bool:
        """Whether the model must have no hook of its own: it would leave its fast path."""
        return type(self.model).__name__ == "TransformerEncoderLayer"

    @property
    def under_way(self) -> bool:
        """Whether the model's forward runs, in this thread."""
        return bool(self._frames) and self.mine

    def place(self, module: Any) -> Place | None:
        """Where an attention of this forward stands; None where recording has stopped."""
        name, stopped = self.names[id(module)], self.recording.runs[-1].stopped
        place = name, self._calls[name]
        self._calls[name] += 1
        self.seen.setdefault(name, len(self.seen))
        self._order.setdefault(place, len(self._order))
        if stopped and place not in self.recording.runs[-1].tracks:
            self.recording.unrecorded[name] = stopped
        return None if stopped else place

    def kept(
        self,
        module: Any,
        name: str,
        operands: tuple[Any, Any, Any],
        options: Options,
        given: dict[str, Any],
        kind: str | None = None,
        real: Array | None = None,
    ) -> Kept:
        """What the call is, with the model's own arrays; its tokens are noted on the way."""
        query, key, value = operands
        # Of a call it may be said that it isn't causal, since the mask is or there is one row.
        said = given.get("is_causal") or getattr(module, "is_causal", False) is True
        causal = said or looks_causal(options)
        if kind is None and self._attends_elsewhere(name, query, key):
            kind = "cross"
        kind = kind or ("decoder" if causal else "encoder")
        number = getattr(module, "layer_idx", None)
        if not isinstance(number, int):
            inside = [int(part) for part in name.split(".") if part.isdigit()]
            number = inside[0] if len(inside) == 1 else self._order[name, self._calls[name] - 1]
        arrays = (array(query), array(key), array(value))
        stack = self._note(kind, *arrays[:2], options, real)
        heads = np.arange(arrays[0].shape[1])
        kept = Kept(name, number, stack, heads, *arrays, np.empty(0), options, 0.0, 0.0)
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
        either = self._crossing or self.interface is False
        return alone and either and bool(query.shape[-2] != key.shape[-2])

    def _note(
        self, kind: str, query: Array, key: Array, options: Options, padding: Array | None
    ) -> str:
        """Note the tokens of this forward's rows; the kind, numbered if they are a further text."""
        given = (kind, query, key, options, padding, self._crossing)
        return self._sequences.note(self.recording.runs[-1], self._frames, *given)

    # ------------------------------------------------------------------ what is kept of it

    def _prove(
        self, place: Place, kept: Kept, theirs: Array, computed: tuple[Array, Array] | None
    ) -> None:
        """Compare the model's output (B, H, T, V) with that of what is kept."""
        if self.heads is not None or self.dtype is not None:
            kept, theirs, computed = (
                with_dtype(self._chosen(kept), self.dtype),
                theirs[:, chosen(self.heads, kept)],
                None,
            )
        ours, lse = computed or compute(
            check(kept.query, kept.key, kept.value, **kept.options), True
        )
        self.keep(place, kept, lse, differences(ours, theirs, lse, self.real(kept)))

    def real(self, kept: Kept) -> Array:
        """Which rows of this forward are no padding, (B, T)."""
        return self._sequences.real[stacks(kept.kind)[0]]

    def keep(self, place: Place, kept: Kept, lse: Array, apart: tuple[float, float]) -> None:
        """Keep a copy of what is new in an attention that was proved."""
        kept = replace(kept, lse=lse, difference=apart[0], largest=apart[1])
        if self.heads is not None and len(kept.heads) != len(self.heads):
            kept = self._chosen(kept)
        run = self.recording.runs[-1]
        track, rows = run.track(place), self._rows(run, kept)
        new = slice(0, valid_keys(kept)) if track is None else track.news(kept)
        if new is None:
            if not run.parted:
                run.part()
            track, new = None, slice(0, valid_keys(kept))
        if not self.budget.take(kept, rows, new):
            self._stop(run, place)
            return
        if track is None:
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

    def _chosen(self, kept: Kept) -> Kept:
        """Only the heads that were asked for."""
        return kept if self.heads is None else with_heads(kept, chosen(self.heads, kept))

    def _rows(self, run: Run, kept: Kept) -> slice:
        """The rows of this forward that are among the tokens that were asked for."""
        count = kept.query.shape[-2]
        if self.tokens is None:
            return slice(0, count)
        begin = run.tokens[stacks(kept.kind)[0]].size - count
        first, past = (min(max(0, position - begin), count) for position in self.tokens)
        return slice(first, max(first, past))
