"""See what any transformer attends to: exactly, at any length, at full speed."""

from regard.core.attention import attention, merge
from regard.core.threads import threads

__all__ = ["attention", "merge", "threads"]
