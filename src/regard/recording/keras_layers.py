"""Keras models: their attention layers are watched one by one, on any backend.

What a layer calls is put beside it, on that one object, so that Keras's own answer is given and
Keras's own shortcuts are taken. A `predict` that is compiled shows nothing: it gives the answer as
ever, and the same batch is computed once more, uncompiled, to be recorded.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras  # type: ignore[import-untyped]
import numpy as np
from keras.src.backend.common.symbolic_scope import (  # type: ignore[import-untyped]
    in_symbolic_scope,
)

from regard.core.arguments import Array
from regard.keras.computing import attend
from regard.keras.masks import Masks
from regard.recording.batches import side_by_side
from regard.recording.beside import put, take_away
from regard.recording.keras_frame import KerasFrame
from regard.recording.keras_masks import array, have_values, real_keys, rule, same
from regard.recording.keras_predict import recorded_too
from regard.recording.layer import Kept
from regard.recording.rules import NotRecordableError, Options, looks_causal
from regard.recording.run import Tokens
from regard.recording.watcher import Watcher

_HEADED = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)

_TRACED = (
    "it ran only in a traced function (tf.function, jax.jit, fit, evaluate), where nothing has "
    "values; call the model itself, or its predict"
)
_OUTSIDE = (
    "it ran outside of a call of the model itself, as in KerasHub's generate; call the model on "
    "the tokens that were written: that shows the same"
)
_OWN_CODE = "it computes attention in code of its own, not by a layer of Keras"
_DROPOUT = "it dropped weights (training=True); call the model with training=False"


class KerasWatcher(Watcher):
    """Watches a Keras model, by what is put beside its layers."""

    def __enter__(self) -> "KerasWatcher":
        self.order: dict[int, int] = {}  # the attention layers, numbered as they are first called
        self.traced: set[str] = set()  # layers that ran where arrays have no values
        self.outside: set[str] = set()  # layers that ran while the model itself did not
        self._aside: list[tuple[Any, str, Any]] = []  # what was put beside what
        self._away = False  # whether the answer is being computed where nothing is to be recorded
        self._calls_of: dict[int, _Call] = {}
        self._meanings: dict[Any, tuple[Any, Options]] = {}
        self._find_layers()
        self._beside(self.model, "call", self._forward)
        for name in ("predict", "predict_on_batch"):
            if hasattr(self.model, "make_predict_function"):
                self._beside(self.model, name, self._predict)
        return self

    def __exit__(self, *_: object) -> None:
        for layer, name, handler in reversed(self._aside):
            take_away(layer, name, handler)
        self._find_names()
        self.recording.unrecorded |= self._missing()
        self._frames, self._calls_of, self._meanings = [], {}, {}

    def _beside(self, layer: Any, name: str, handler: Callable[..., Any]) -> None:
        put(layer, name, handler)
        self._aside.append((layer, name, handler))

    def _find_layers(self) -> None:
        """Put watchers beside the attention layers that have none: some are made in `build`."""
        self._find_names()
        for layer in self.model._flatten_layers():
            if id(layer) in self._calls_of:
                continue
            self._calls_of[id(layer)] = _Call()
            if isinstance(layer, _HEADED):
                self._beside(layer, "call", self._called)
                self._beside(layer, "_compute_attention_mask", self._masked)
                self._beside(layer, "_compute_attention", self._headed)
            elif isinstance(layer, keras.layers.Attention):
                self._beside(layer, "call", self._plain)

    def _find_names(self) -> None:
        """The names that Keras gives; layers with the same one are told apart by a number."""
        self.names, taken = {}, set()
        for layer in self.model._flatten_layers():
            path, name, count = layer.path or layer.name, layer.path or layer.name, 1
            while name in taken:
                count += 1
                name = f"{path} ({count})"
            taken.add(name)
            self.names[id(layer)] = name

    def _missing(self) -> dict[str, str]:
        """Attention layers that were not seen, and why."""
        missing = {}
        seen = self.seen | self.recording.unrecorded.keys()
        for layer in self.model._flatten_layers():
            name, own = self.names[id(layer)], isinstance(layer, (*_HEADED, keras.layers.Attention))
            inside = {self.names[id(part)] for part in layer._flatten_layers()} & seen
            if name in self.traced - seen:
                missing[name] = _TRACED
            elif name in self.outside - seen:
                missing[name] = _OUTSIDE
            elif own and name not in seen and self.forwards:
                missing[name] = "it was not called"
            elif not own and "attention" in type(layer).__name__.lower() and not inside:
                missing[name] = _OWN_CODE
        return missing

    # ------------------------------------------------------------------ calls of the model

    def _forward(self, run: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        if self._frames or self._passes((args, kwargs)):
            return run(*args, **kwargs)
        self._find_layers()
        frame, output = KerasFrame(model, args, kwargs), None
        self._begins(frame)
        self._frames.append(frame)
        try:
            output = run(*args, **kwargs)
        finally:
            self._frames, self._meanings = [], {}
            if output is None:  # the call raised
                self._abandon()
        return output

    def _passes(self, given: Any) -> bool:
        """Whether a call is none to be recorded: the arrays have no values, or it is set aside."""
        return self._away or in_symbolic_scope() or not have_values(given)

    def _predict(self, run: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        runs = self.recording.runs
        begin = len(runs)

        @contextmanager
        def recording() -> Iterator[bool]:
            """Not set aside, and needed until the limit is reached."""
            stopped = any(run.stopped for run in runs[begin:])
            self._away = stopped
            try:
                yield not stopped
            finally:
                self._away = True

        self._away = True
        try:
            with recorded_too(model, self.engine == "regard", recording):
                output = run(*args, **kwargs)
        except BaseException:
            del runs[begin:]
            raise
        finally:
            self._away = False
        runs[begin:] = side_by_side(runs[begin:])
        return output

    # ------------------------------------------------------------------ calls of a layer

    def _sees(self, layer: Any, tensors: Any) -> bool:
        """Whether a call of an attention layer is to be recorded; those in graphs are noted."""
        if self._passes(tensors):
            if not self._away and not in_symbolic_scope():
                self.traced.add(self.names[id(layer)])
            return False
        if not self._frames:
            self.outside.add(self.names[id(layer)])
        return bool(self._frames)

    def _called(self, run: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
        """A layer with heads is called: with one sequence, or with two."""
        call = self._calls_of[id(layer)] = _Call()
        if self._frames and not self._passes((args, kwargs)):
            given = dict(zip(("query", "value", "key"), args, strict=False)) | kwargs
            query, value, key = (given.get(name) for name in ("query", "value", "key"))
            call.own = same(query, value) or (key is not None and same(query, key))
        return run(*args, **kwargs)

    def _masked(self, run: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
        """A layer puts its masks together: they say in T + S numbers what Keras makes T × S of."""
        result = run(*args, **kwargs)
        if _is_known(layer, "_compute_attention_mask"):
            self._calls_of[id(layer)].masks = result, Masks(*args, **kwargs)
        return result

    def _headed(
        self,
        run: Callable[..., Any],
        layer: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any = None,
        training: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """`MultiHeadAttention` and `GroupQueryAttention` compute their attention."""
        grouped = isinstance(layer, keras.layers.GroupQueryAttention)
        again = partial(run, query, key, value, attention_mask, training, *args, **kwargs)
        if not self._sees(layer, (query, key, value)):
            return again()
        if grouped and key.shape[2] == layer.num_query_heads:  # Keras has repeated them
            times = layer.num_query_heads // layer.num_key_value_heads
            key, value = key[:, :, ::times], value[:, :, ::times]
        call = self._calls_of[id(layer)]
        result, masks = call.masks if call.masks is not None else (None, None)
        known = masks is not None and result is attention_mask
        if masks is None or not known:
            masks = Masks(query, value, attention_mask=attention_mask)
        if kwargs.get("use_causal_mask"):
            masks = masks._replace(use_causal_mask=True)
        scale = layer._inverse_sqrt_head_dim if grouped else layer._inverse_sqrt_key_dim
        window = getattr(layer, "sliding_window" if grouped else "_sliding_window", None)
        window = window if known else None
        dropout = layer.dropout if grouped else layer._dropout
        wants = layer._return_attention_scores if grouped else any(args[:1])

        def refuse() -> None:
            if len(query.shape) != 4 or (not grouped and len(layer._attention_axes) != 1):
                raise NotRecordableError(
                    "it attends over other axes than one sequence (inputs of more than three "
                    "axes, or attention_axes)"
                )
            if training and dropout > 0:
                raise NotRecordableError(_DROPOUT)

        return self._attention(
            layer,
            (query, key, value),
            refuse,
            partial(self._meaning, masks, window, {"scale": float(scale)}),
            call.own,
            again,
            lambda found: found[0],
            lambda ours: (ours, again()[1] if wants else None),
        )

    def _plain(
        self,
        run: Callable[..., Any],
        layer: Any,
        inputs: Any,
        mask: Any = None,
        training: Any = False,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
    ) -> Any:
        """`Attention` is called, which has no heads and projects nothing."""
        again = partial(run, inputs, mask, training, return_attention_scores, use_causal_mask)
        if not self._sees(layer, inputs):
            return again()
        query, value, key = (inputs[0], inputs[1], inputs[-1] if len(inputs) > 2 else inputs[1])

        def refuse() -> None:
            if isinstance(layer, keras.layers.AdditiveAttention) or layer.score_mode != "dot":
                raise NotRecordableError("its scores are no products of query and key, but sums")
            if len(query.shape) != 3:
                raise NotRecordableError("inputs of other than three axes")
            if training and layer.dropout > 0:
                raise NotRecordableError(_DROPOUT)

        def meaning() -> Options:
            of_query, of_value = (mask[0], mask[1]) if mask else (None, None)
            masks = Masks(query, value, of_query, of_value, use_causal_mask=use_causal_mask)
            scale = 1.0 if layer.scale is None else float(array(layer.scale))
            return self._meaning(masks, None, {"scale": scale})

        return self._attention(
            layer,
            tuple(one[..., None, :] for one in (query, key, value)),
            refuse,
            meaning,
            same(query, value) or same(query, key),
            again,
            lambda found: (found[0] if return_attention_scores else found)[..., None, :],
            lambda ours: (
                (ours[..., 0, :], again()[1]) if return_attention_scores else ours[..., 0, :]
            ),
        )

    def _attention(
        self,
        layer: Any,
        operands: tuple[Any, Any, Any],
        refuse: Callable[[], None],
        meaning: Callable[[], Options],
        own: bool,
        run_it: Callable[[], Any],
        theirs: Callable[[Any], Any],
        ours: Callable[[Any], Any],
    ) -> Any:
        """Let an attention be computed, and keep what it was.

        Args:
            layer: the layer.
            operands: query, key and value, (B, T, H, D) and so on.
            refuse: raises if it cannot be recorded.
            meaning: finds the further arguments of `regard.attention`.
            own: whether queries and keys are of one sequence.
            run_it: computes it, as Keras does.
            theirs: the output (B, T, H, V) in what that gives.
            ours: from our output to what the layer goes on with.
        """
        self.order.setdefault(id(layer), len(self.order))
        found: Options = {}

        def options() -> Options:
            refuse()
            found.update(meaning())
            return {name: given for name, given in found.items() if name != "real"}

        return self.attention(
            layer,
            operands,
            options,
            {"own": own, "found": found},
            run_it,
            lambda result: array(theirs(result)).swapaxes(1, 2),
            # Computed by our door, so that gradients flow.
            lambda _: ours(attend(*operands, **{n: x for n, x in found.items() if n != "real"})),
        )

    def _meaning(self, masks: Masks, window: int | None, options: Options) -> Options:
        """Keras's masks as arguments of `regard.attention`, and which rows are `real`.

        What the layers share is found out once a forward, and kept once.
        """
        size = masks.query.shape[1], masks.value.shape[1]
        known = (*map(id, masks[2:6]), masks.use_causal_mask, window, size)
        if known not in self._meanings:
            found = rule(masks, window)
            if "mask" in found:
                for _, other in self._meanings.values():
                    if "mask" in other and np.array_equal(other["mask"], found["mask"]):
                        found["mask"] = other["mask"]
            self._meanings[known] = (masks, found)  # the masks are held, so that ids stay theirs
        return options | self._meanings[known][1]

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
        query, key, value = (array(one).swapaxes(1, 2) for one in operands)
        own, real = given["own"], given["found"].get("real")
        kind = ("decoder" if looks_causal(options) else "encoder") if own else "cross"
        frame, run = self._frames[-1], self.recording.runs[-1]
        assert isinstance(frame, KerasFrame)
        items, keys = len(query), key.shape[-2]
        if kind == "cross" and "encoder" not in run.tokens:
            frame.stack = "encoder"
            ids = frame.ids(items, keys)
            tokens = np.full((items, keys), -1) if ids is None else ids
            run.tokens["encoder"] = Tokens()
            run.tokens["encoder"].append(len(run.forwards) - 1, tokens, real_keys(options, key))
        frame.stack = "decoder" if kind == "cross" else kind
        kind = self._note(kind, query, key, options, real) or kind
        heads = np.arange(query.shape[1])
        arrays = (query, key, value, np.empty(0))
        return Kept(name, self.order[id(module)], kind, heads, *arrays, options, 0.0, 0.0)


class _Call:
    """What is known of a layer's call before it computes."""

    own = True  # whether queries and keys are of one sequence
    masks: tuple[Any, Masks] | None = None  # what Keras made of its masks, and the masks


# ------------------------------------------------------------------ what Keras does


def _is_known(layer: Any, name: str) -> bool:
    """Whether a method is Keras's or ours, and not one of a subclass."""
    owner = next(kind for kind in type(layer).__mro__ if name in vars(kind))
    return owner.__module__.split(".")[0] in ("keras", "regard")
