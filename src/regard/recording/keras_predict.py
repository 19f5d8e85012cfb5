"""What a compiled `predict` computes is computed once more, uncompiled, to be recorded.

The answer is that of the compiled function, as ever: other code rounds otherwise.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import Any

import keras  # type: ignore[import-untyped]
import numpy as np

from regard.recording.keras_masks import array

_FAR = 1e-3  # of the largest: a compiled answer that is further off comes from another calculation


@contextmanager
def recorded_too(
    model: Any, once: bool, recording: Callable[[], AbstractContextManager[bool]]
) -> Iterator[None]:
    """Let `predict` compute each batch by the layers' own code too.

    Args:
        model: the Keras model whose `predict` is called inside the `with` block.
        once: the answer too shall be that of the layers' own code, as it is if nothing is compiled.
        recording: entered around that computation; False: it is not needed any more.
    """
    model.make_predict_function()
    compiled = model.predict_function
    eager = model.run_eagerly or (keras.backend.backend() != "tensorflow" and not model.jit_compile)
    plain = compiled if eager else _plain_function(model)

    def both(*given: Any) -> Any:
        if once or eager:
            with recording():
                return plain(*given)
        *state, data = given  # the state is JAX's; the compiled function uses it up
        batches = list(islice(data, model.steps_per_execution))

        def fresh() -> list[Any]:
            return [*state, iter(batches) if state else batches]

        answer: Any = None if state else compiled(*fresh())
        seen: Any = None
        # Nothing that this changes in the model's state stays.
        with recording() as wanted, keras.StatelessScope():
            if wanted:
                seen = plain(*fresh())
        answer = compiled(*fresh()) if state else answer
        if seen is not None:
            _compare(seen[0] if state else seen, answer[0] if state else answer)
        return answer

    model.predict_function = both
    try:
        yield
    finally:
        model.predict_function = compiled


def _plain_function(model: Any) -> Any:
    """What `predict` does with a batch, uncompiled; the model's own function stays."""
    names = ("_run_eagerly", "_jit_compile", "predict_function")
    before = [getattr(model, name) for name in names]
    model._run_eagerly, model._jit_compile = True, False
    try:
        model.make_predict_function(force=True)
        return model.predict_function
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(model, name, value)


def _compare(seen: Any, answer: Any) -> None:
    """Warn if the answer of the run that was recorded is not that of the compiled function."""
    for ours, theirs in zip(*map(keras.tree.flatten, (seen, answer)), strict=True):
        one, other = (array(x).astype(np.float64) for x in (ours, theirs))
        apart = np.abs(one - other).max(initial=0)
        if apart > _FAR * np.abs(other).max(initial=0):
            warnings.warn(
                f"predict's answer differs by {apart:.1e} from that of the run that was recorded: "
                "the model draws random numbers, or what it computes depends on being compiled",
                stacklevel=2,
            )
            return
