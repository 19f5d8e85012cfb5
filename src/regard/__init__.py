"""See what any transformer attends to: exactly, at any length, at full speed."""

from regard.core.attention import attention, merge
from regard.core.look import Look, look
from regard.core.proof import Check
from regard.core.steps import Steps, combine, scores, softmax, steps
from regard.core.summaries import Top
from regard.core.threads import threads

__all__ = [
    "Check",
    "Look",
    "Steps",
    "Top",
    "attention",
    "combine",
    "look",
    "merge",
    "scores",
    "softmax",
    "steps",
    "threads",
]
