"""How much a recording may keep, and how much it does."""

import os
from typing import Any

import numpy as np

from regard.core.arguments import Array
from regard.core.indexing import size_in_words
from regard.recording.layer import Kept

LESS = "Leave out some with layers=, heads= or tokens=, keep dtype='float16', or raise limit=."
_UNKNOWN = 4 << 30  # what is taken for free where the system does not say


class Budget:
    """Counts what is kept against a limit in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self._dense: list[Array] = []  # masks and biases; the layers share them

    def take(self, kept: Kept, rows: slice, keys: slice) -> bool:
        """Whether some rows and keys of an attention still fit; if so they are counted."""
        items, heads, _, width = kept.query.shape
        lines = items * heads * (rows.stop - rows.start)
        need = lines * (width * kept.query.itemsize + kept.lse.itemsize)
        columns = kept.key.shape[0] * kept.key.shape[1] * (keys.stop - keys.start)
        need += columns * (width + kept.value.shape[-1]) * kept.key.itemsize
        dense = [kept.options[name] for name in ("mask", "bias") if name in kept.options]
        new = [array for array in dense if not any(array is known for known in self._dense)]
        need += sum(array.nbytes for array in new)
        if self.used + need > self.limit:
            return False
        self.used += need
        self._dense += new
        return True

    def refuse_over(
        self,
        model: Any,
        given: dict[str, Any],
        rows: tuple[int, int] | None,
        dtype: np.dtype[Any] | None,
        layers: Any,
        heads: Any,
    ) -> None:
        """Refuse a forward that is known to need too much, from the model's configuration.

        Raises:
            ValueError: says how much it would take, and what to leave out.
        """
        inputs = [g for n in ("input_ids", "inputs_embeds") if (g := given.get(n)) is not None]
        if not inputs or len(inputs[0].shape) < 2:
            return
        items, tokens = inputs[0].shape[:2]
        if rows is not None:
            tokens = max(0, min(tokens, rows[1]) - rows[0])
        own = getattr(getattr(model, "dtype", None), "itemsize", 4)
        size, config = own if dtype is None else dtype.itemsize, getattr(model, "config", None)
        found = _expected(config, size)
        if found is None:
            return
        all_layers, all_heads, row = found
        some_layers = all_layers if layers is None else len(set(layers))
        share = 1.0 if heads is None else len(set(heads)) / all_heads
        need = int(row * share) * items * tokens * some_layers
        if self.used + need > self.limit:
            raise ValueError(
                f"recording would keep about {size_in_words(need)} ({some_layers} layers, "
                f"{items} × {tokens} tokens), over limit={size_in_words(self.limit)}. {LESS}"
            )


def _expected(config: Any, size: int) -> tuple[int, int, int] | None:
    """Layers, heads and the bytes of a token in a layer; None if the configuration is unclear."""
    if config is None or getattr(config, "is_encoder_decoder", False):
        return None
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    names = ("num_hidden_layers", "num_attention_heads", "hidden_size")
    layers, heads, width = (
        n if isinstance(n := getattr(config, name, 0), int) else 0 for name in names
    )
    if not layers or not heads or not width:
        return None
    head_width = getattr(config, "head_dim", None) or width // heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    return layers, heads, heads * (head_width * size + 8) + 2 * groups * head_width * size


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
