"""Keras's door: its attention layers with the same weights and config, computed by regard.

`convert(model)` makes a model's attention layers ours and back; every layer has `look`, which keeps
all weights of a call in sight. On the TensorFlow, JAX, PyTorch and NumPy backends.
"""

from regard.keras.convert import convert
from regard.keras.layers import (
    Attention,
    GroupedQueryAttention,
    GroupQueryAttention,
    MultiHeadAttention,
)

__all__ = [
    "Attention",
    "GroupQueryAttention",
    "GroupedQueryAttention",
    "MultiHeadAttention",
    "convert",
]
