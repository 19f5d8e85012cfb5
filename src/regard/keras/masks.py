"""The masks of a layer's call as they came: T + S booleans an item, not T × S."""

from typing import Any, NamedTuple

from keras import ops  # type: ignore[import-untyped]


class Masks(NamedTuple):
    """What Keras's `_compute_attention_mask` is given, in its order, and would multiply out."""

    query: Any
    value: Any
    query_mask: Any = None  # (B, T), False for padding
    value_mask: Any = None  # (B, S)
    key_mask: Any = None  # (B, S)
    attention_mask: Any = None  # (B, T, S), (T, S) or (B, H, T, S), from the caller
    use_causal_mask: bool = False

    def options(self, sliding_window: int | None = None) -> dict[str, Any]:
        """The same as arguments of `regard.attention`."""
        options: dict[str, Any] = {}
        if self.attention_mask is not None:
            mask = ops.cast(self.attention_mask, "bool")
            while len(mask.shape) < 4:
                mask = ops.expand_dims(mask, -3)
            options["mask"] = mask
        if self.use_causal_mask:
            options |= {"causal": True, "query_offset": 0}
        if sliding_window is not None:
            options |= {"window": (sliding_window - 1,) * 2, "query_offset": 0}
        masks = self.query_mask, self.value_mask, self.key_mask
        if any(mask is not None for mask in masks):
            # Real queries and real keys are one segment, all padding is in others. Keys that are
            # padded on the right are in order so, which the kernel makes use of.
            keys = [ops.cast(mask, "bool") for mask in masks[1:] if mask is not None]
            options["segments"] = (
                _segments(self.query_mask, self.query, 2),
                _segments(ops.logical_and(keys[0], keys[-1]) if keys else None, self.value, 1),
            )
        return options

    @property
    def real_rows(self) -> Any:
        """(B, T), False for rows of padding; None if there are none."""
        return None if self.query_mask is None else ops.cast(self.query_mask, "bool")


def _segments(real: Any, like: Any, padding: int) -> Any:
    """0 where real, another number where not."""
    if real is None:
        return ops.zeros((ops.shape(like)[1],), "int32")
    return ops.where(ops.cast(real, "bool"), 0, padding)
