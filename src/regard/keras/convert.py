"""`convert`: a model's attention layers become ours, or Keras's again."""

from typing import Any

import keras  # type: ignore[import-untyped]

from regard.keras.layers import Attention, GroupedQueryAttention, MultiHeadAttention, repeats

_OURS = {
    keras.layers.MultiHeadAttention: MultiHeadAttention,
    keras.layers.GroupQueryAttention: GroupedQueryAttention,
    keras.layers.Attention: Attention,
}


def convert(model: Any, back: bool = False) -> Any:
    """Let regard compute the attention of a Keras model, or Keras again with `back=True`.

    The layers are replaced where they are, with the weights they have, and the model is returned.
    What was compiled stays so, and is traced again. Subclasses of Keras's layers stay what they
    are. To write a file that needs no regard, convert back before `model.save`.

    Args:
        model: any Keras model or layer.
        back: make them Keras's own again.

    Raises:
        TypeError: this is no Keras model or layer.
        ValueError: there is no attention layer in it.

    >>> inputs = keras.Input((7, 8))
    >>> outputs = keras.layers.MultiHeadAttention(num_heads=2, key_dim=4)(inputs, inputs)
    >>> model = convert(keras.Model(inputs, outputs))
    >>> type(model.layers[-1]).__module__
    'regard.keras'
    """
    if not isinstance(model, keras.layers.Layer):
        raise TypeError(f"model: expected a Keras model, received {type(model).__name__}")
    into = {ours: theirs for theirs, ours in _OURS.items()} if back else _OURS
    layers = list(model._flatten_layers())
    if not any(isinstance(layer, tuple(_OURS)) for layer in layers):
        raise ValueError(
            "model: expected one with MultiHeadAttention, GroupQueryAttention or Attention, "
            f"received {model.name} without any"
        )
    for layer in layers:
        if type(layer) in into:
            # Its weights, its place in the model and its state are the object's: it stays the same.
            layer.__class__ = into[type(layer)]
            if isinstance(layer, keras.layers.GroupQueryAttention):
                layer.num_repeats = repeats(layer)
        for traced in ("train_function", "test_function", "predict_function"):
            if getattr(layer, traced, None) is not None:
                setattr(layer, traced, None)
    return model
