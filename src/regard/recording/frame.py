"""A forward that is under way, and what it was called with."""

import inspect
from functools import cache
from typing import Any

from regard.core.arguments import Array
from regard.recording.rules import array


class Frame:
    """A forward that is under way: the module, and what it was called with, by name."""

    def __init__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.module = module
        names = parameters(module.__class__)
        self.given = dict(zip(names, args, strict=False)) | kwargs

    def plane(self, name: str, items: int, columns: int) -> Array | None:
        """An argument as an array of (items, at least so many columns), if it is one."""
        given = self.given.get(name)
        shape = tuple(getattr(given, "shape", ()))
        if len(shape) != 2 or shape[0] != items or shape[1] < columns:
            return None
        return array(given)

    def ids(self, items: int, columns: int) -> Array | None:
        """The token ids: what is called so, or else the first plane of integers."""
        named = self.plane("input_ids", items, columns)
        if named is not None or self.given.get("inputs_embeds") is not None:
            return named
        for name in self.given:
            found = self.plane(name, items, columns) if "mask" not in name else None
            if found is not None and found.dtype.kind in "iu":
                return found
        return None

    def has_vectors(self, items: int, rows: int) -> bool:
        """Whether it was given a vector for each row."""
        shapes = [tuple(getattr(given, "shape", ())) for given in self.given.values()]
        return any(len(shape) == 3 and shape[:2] == (items, rows) for shape in shapes)

    def grid(self, rows: int) -> tuple[int, int] | None:
        """Rows and columns of patches, if it was given an image that a convolution cuts into them.

        Up to 16 further tokens stand before the patches: CLS, and what else a model adds.
        """
        images = [g for g in self.given.values() if len(getattr(g, "shape", ())) == 4]
        modules = self.module.modules() if images and hasattr(self.module, "modules") else ()
        for cut in modules:
            size = getattr(cut, "kernel_size", ())
            if len(size) != 2 or size != getattr(cut, "stride", None) or max(size) == 1:
                continue
            for image in images:
                high, wide = (int(n) // k for n, k in zip(image.shape[2:], size, strict=True))
                fits = cut.in_channels == image.shape[1] and high * wide > 1
                if fits and 0 <= rows - high * wide <= 16:
                    return high, wide
        return None


@cache
def parameters(kind: Any) -> list[str]:
    """The names of a forward's parameters."""
    try:
        return list(inspect.signature(kind.forward).parameters)[1:]
    except (AttributeError, TypeError, ValueError):  # TorchScript's are of another kind
        return []


def first(output: Any) -> Any:
    """The first tensor of a model's output."""
    try:
        return output[0]
    except (KeyError, IndexError, TypeError):
        return output
