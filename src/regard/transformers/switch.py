"""Registering the implementation, and refusing models that would not use it."""

import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from regard.transformers.attention import attention_forward
from regard.transformers.mask import attention_mask

NAME = "regard"


def register() -> None:
    """Make `attn_implementation="regard"` known to transformers; once is enough."""
    if NAME in AttentionInterface._global_mapping:
        return
    AttentionInterface.register(NAME, attention_forward)
    # Without this one, padding would silently be attended.
    AttentionMaskInterface.register(NAME, attention_mask)
    _guard("get_correct_attn_implementation", lambda model: [model])
    _guard("set_attn_implementation", _models)


def _guard(method: str, models: Any) -> None:
    """Let a method of all models raise where it would pass over models that can't be switched."""
    original = getattr(PreTrainedModel, method)

    @wraps(original)
    def guarded(self: Any, attn_implementation: Any, *rest: Any, **options: Any) -> Any:
        if attn_implementation == NAME:
            refuse(models(self))
        return original(self, attn_implementation, *rest, **options)

    setattr(PreTrainedModel, method, guarded)


def refuse(models: list[Any]) -> None:
    """Raise a ValueError if one of these computes its attention by code of its own."""
    own = sorted({type(model).__name__ for model in models if not uses_interface(type(model))})
    if own:
        raise ValueError(
            f'attn_implementation="regard": {", ".join(own)} of transformers computes attention by '
            "code of its own and not through transformers' attention interface, so it can't be "
            'switched. Load it with attn_implementation="eager" or "sdpa"; a part of a model that '
            'can be switched takes a dict such as {"text_config": "regard"}'
        )


def uses_interface(kind: type) -> bool:
    """Whether a class of models asks transformers' interface for its attention.

    Read from the source of its file, as transformers does: a file that defines attention layers
    and never names the interface computes by itself.
    """
    try:
        source = inspect.getsource(sys.modules[kind.__module__])
    except (KeyError, OSError, TypeError):
        return True  # typed into a session: nobody can tell
    has_layers = re.search(r"^class \w*Attention\w*\(nn\.Module\):", source, re.MULTILINE)
    return not has_layers or "ALL_ATTENTION_FUNCTIONS" in source


def _models(model: Any) -> list[Any]:
    return [part for part in model.modules() if isinstance(part, PreTrainedModel)]


@contextmanager
def switched(model: Any) -> Iterator[None]:
    """Let a model compute its attention with `regard` for the length of a `with` statement.

    Every part gets its own implementation back, also when the body raises.

    Raises:
        ValueError: a part of the model does not use transformers' attention interface.

    >>> from transformers import LlamaConfig, LlamaModel
    >>> sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    >>> model = LlamaModel(LlamaConfig(vocab_size=11, num_hidden_layers=1, **sizes))
    >>> with switched(model):
    ...     print(model.config._attn_implementation)
    regard
    >>> print(model.config._attn_implementation)
    sdpa
    """
    configs = {id(part.config): part.config for part in _models(model)}.values()
    before = [(config, config._attn_implementation) for config in configs]
    try:
        model.set_attn_implementation(NAME)
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation_internal = implementation
