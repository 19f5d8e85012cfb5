"""Functions put beside the methods of an object, on that one object, and taken away again."""

import threading
from collections.abc import Callable
from functools import partial, wraps
from typing import Any


class _Beside:
    """What stands in the place of a layer's method while somebody watches, however many."""

    def __init__(self, layer: Any, name: str) -> None:
        self.had, self.method = name in vars(layer), getattr(layer, name)
        self.handlers: list[Callable[..., Any]] = []

        @wraps(self.method)
        def seen(*args: Any, **kwargs: Any) -> Any:
            run = self.method
            for handler in self.handlers:
                run = partial(handler, run, layer)
            return run(*args, **kwargs)

        vars(layer)[name] = seen  # past Keras's own tracking of what is set


_put_beside: dict[tuple[int, str], _Beside] = {}
_lock = threading.Lock()


def put(layer: Any, name: str, handler: Callable[..., Any]) -> None:
    """Let `handler(run, layer, *args, **kwargs)` stand beside a method, which it gets as `run`."""
    with _lock:
        key = id(layer), name
        if key not in _put_beside:
            _put_beside[key] = _Beside(layer, name)
        _put_beside[key].handlers.append(handler)


def take_away(layer: Any, name: str, handler: Callable[..., Any]) -> None:
    """Whoever leaves last puts the layer's own method back."""
    with _lock:
        beside = _put_beside[id(layer), name]
        beside.handlers.remove(handler)
        if beside.handlers:
            return
        del _put_beside[id(layer), name]
        if beside.had:
            vars(layer)[name] = beside.method
        else:
            del vars(layer)[name]
