"""Tensors as the core reads them and back: NumPy arrays over the same memory.

TensorFlow hands its memory out without copying, and takes ours if it begins at a multiple of 64
bytes; given any other it ends the whole process at the first operation.
"""

from typing import Any

import numpy as np
import tensorflow as tf  # type: ignore[import-untyped]

from regard.core.arguments import BFLOAT16, Array

# Whose instances are none of TensorFlow's; asking TensorFlow's own types takes ten times as long.
_PLAIN = frozenset({type(None), bool, int, float, str, tuple, list, np.ndarray})


def is_tensor(given: Any) -> bool:
    """Whether this is TensorFlow's: a tensor of any kind, or a variable."""
    return type(given) not in _PLAIN and isinstance(
        given, tf.Tensor | tf.Variable | tf.RaggedTensor | tf.SparseTensor
    )


def tensor(name: str, given: Any) -> Any:
    """Read an argument as a dense tensor; variables are read now, so that tapes see it."""
    if isinstance(given, tf.Tensor):
        return given
    if isinstance(given, tf.RaggedTensor):
        raise TypeError(
            f"{name}: expected a dense tensor, received a RaggedTensor; "
            "use .to_tensor(), with key_lengths=….row_lengths()"
        )
    if isinstance(given, tf.SparseTensor):
        raise TypeError(
            f"{name}: expected a dense tensor, received a SparseTensor; use tf.sparse.to_dense"
        )
    try:
        return tf.convert_to_tensor(given)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name}: expected a tensor, received {type(given).__name__}: {error}"
        ) from None


def array(given: Any) -> Array:
    """The array over an eager tensor's memory, read-only; from another device as a copy."""
    found: Array = np.asarray(given)
    return found


def eager(filled: Array) -> Any:
    """The tensor over an array from core's `room`, which nobody may write to any more."""
    if filled.dtype == BFLOAT16:
        return tf.bitcast(eager(filled.view(np.uint16)), tf.bfloat16)
    return tf.experimental.dlpack.from_dlpack(filled.__dlpack__())


def stand_in(tensor: Any) -> Array | None:
    """An array of a tensor's dtype and shape that holds zeros, to be checked in its place.

    Where a size is not known yet, all are 1; None where not even the number of axes is known.
    """
    if tensor.shape.rank is None:
        return None
    known = tensor.shape.is_fully_defined()
    shape = tensor.shape if known else (1,) * tensor.shape.rank
    return np.broadcast_to(np.zeros((), tensor.dtype.as_numpy_dtype), shape)
