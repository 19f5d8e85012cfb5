"""See what any transformer attends to: exactly, at any length, at full speed."""

from regard.asking.ask import ask
from regard.core.attention import attention, merge
from regard.core.look import Look, look
from regard.core.proof import Check
from regard.core.steps import Steps, combine, scores, softmax, steps
from regard.core.summaries import Top
from regard.core.threads import threads
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
