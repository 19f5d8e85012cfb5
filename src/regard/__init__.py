"""See what any transformer attends to: exactly, at any length, at full speed."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard.core.attention import attention, look, merge
from regard.core.look import Look
from regard.core.passes import Top
from regard.core.proof import Check
from regard.core.steps import Steps, combine, scores, softmax, steps
from regard.core.threads import threads

if TYPE_CHECKING:
    from regard.asking.ask import ask
    from regard.recording.capture import record
    from regard.recording.file import load
    from regard.recording.recording import Recording
    from regard.recording.words import Word

__all__ = [
    "Check",
    "Look",
    "Recording",
    "Steps",
    "Top",
    "Word",
    "ask",
    "attention",
    "combine",
    "load",
    "look",
    "merge",
    "record",
    "scores",
    "softmax",
    "steps",
    "threads",
]

# Loaded when they are named: attention needs none of them, nor does one of them need all others.
_LATER = {
    "Recording": "regard.recording.recording",
    "Word": "regard.recording.words",
    "ask": "regard.asking.ask",
    "load": "regard.recording.file",
    "record": "regard.recording.capture",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(_LATER[name]), name)
    return found


def __dir__() -> list[str]:
    return [*globals(), *_LATER]
