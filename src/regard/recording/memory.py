"""How much a recording may keep, and how much one will."""

import os
from typing import Any

_UNKNOWN = 4 << 30  # what is taken for free where the system does not say


def free() -> int:
    """The bytes of memory that nobody uses at the moment."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        import psutil  # type: ignore[import-untyped]

        return int(psutil.virtual_memory().available)
    except ImportError:
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return _UNKNOWN


def expected(config: Any, items: int, tokens: int, size: int) -> tuple[int, int, int] | None:
    """What one forward will keep, from the model's configuration: (layers, heads, bytes).

    Query, key, value and one number a row. None where the configuration does not say enough.
    """
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    names = ("num_hidden_layers", "num_attention_heads", "hidden_size")
    layers, heads, width = (
        n if isinstance(n := getattr(config, name, 0), int) else 0 for name in names
    )
    if not layers or not heads or not width:
        return None
    if getattr(config, "is_encoder_decoder", False):
        return None
    head_width = getattr(config, "head_dim", None) or width // heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    row = heads * (head_width * size + 4) + 2 * groups * head_width * size
    return layers, heads, layers * items * tokens * row
