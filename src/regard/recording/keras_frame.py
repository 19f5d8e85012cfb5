"""A call of a Keras model: which of its inputs are tokens."""

import inspect
import re
from typing import Any

import keras  # type: ignore[import-untyped]

from regard.core.arguments import Array
from regard.recording.frame import Frame
from regard.recording.keras_masks import array

_NO_TOKENS = re.compile("mask|segment|position|type")  # integers that are no tokens, by their name


class KerasFrame(Frame):
    """A call of a Keras model: its inputs by name, of which some are tokens."""

    def __init__(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.module, self.stack = model, "encoder"
        names = [name for name in inspect.signature(type(model).call).parameters if name != "self"]
        self.given = dict(zip(names, args, strict=False)) | kwargs
        inputs = keras.tree.flatten_with_path(self.given)
        named = [".".join(map(str, path)) for path, _ in inputs]
        known = [one.name for one in getattr(model, "inputs", None) or ()]
        first = keras.tree.flatten(args[0]) if args else []
        if len(known) == len(first) and not isinstance(args[0], dict):
            named[: len(known)] = known
        self.images = [one for _, one in inputs if len(getattr(one, "shape", ())) == 4]
        self.planes = {
            name: array(one)
            for name, (_, one) in zip(named, inputs, strict=True)
            if len(getattr(one, "shape", ())) == 2
        }

    def plane(self, name: str, items: int, columns: int) -> Array | None:
        """None: masks are known from the layers."""
        return None

    def ids(self, items: int, columns: int) -> Array | None:
        """The token ids of the stack that is asked for; what one stack read, no other does."""
        other = "encoder" if self.stack == "decoder" else "decoder"
        found = [
            name
            for name, plane in self.planes.items()
            if plane.shape == (items, columns) and plane.dtype.kind in "iu"
            if other not in name and not _NO_TOKENS.search(name)
        ]
        found.sort(key=self._says)
        alike = [name for name in found if self._says(name) == self._says(found[0])]
        if not found or (len(alike) > 1 and self.stack == "decoder"):
            return None  # of two, the first one may as well be what the encoder reads
        return self.planes.pop(found[0])

    def grid(self, rows: int) -> tuple[int, int] | None:
        """Rows and columns of patches, if it was given an image that a convolution cuts into them.

        Up to 16 further tokens stand before the patches: CLS, and what else a model adds.
        """
        for cut in self.module._flatten_layers() if self.images else ():
            whole = isinstance(cut, keras.layers.Conv2D) and cut.strides == cut.kernel_size
            if not whole or max(cut.strides) == 1:
                continue
            first = cut.data_format == "channels_first"
            for image in self.images:
                if image.shape[1 if first else -1] == cut.kernel.shape[-2] * cut.groups:
                    shape = cut.compute_output_shape(tuple(image.shape))
                    high, wide = shape[2:] if first else shape[1:-1]
                    if high * wide > 1 and 0 <= rows - high * wide <= 16:
                        return high, wide
        return None

    def _says(self, name: str) -> tuple[bool, bool]:
        """How little a name says that these are the tokens of the stack."""
        return self.stack not in name, "token" not in name
