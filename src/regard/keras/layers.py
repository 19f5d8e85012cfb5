"""Keras's attention layers, computed by regard: same weights, same config, same answers.

What attends over other axes than one sequence, Keras computes itself, and so the table of all
scores where it is to be returned.
"""

from typing import Any

import keras  # type: ignore[import-untyped]
from keras import ops

from regard.core.look import Look
from regard.keras.computing import attend, seed_from, watched
from regard.keras.masks import Masks

_serializable = keras.saving.register_keras_serializable("regard")


@_serializable
class MultiHeadAttention(keras.layers.MultiHeadAttention):  # type: ignore[misc]
    """`keras.layers.MultiHeadAttention`, exact, faster, and in memory linear in T + S.

    Arguments, weights, config and call are Keras's. Inputs of three axes are computed by the
    kernel, with dropout and gradients, whether scores are returned or not; those of more axes by
    Keras. A row of padding, or any other that may attend nothing, is 0 before the output
    projection, where Keras gives 0 or the mean of all values, as scores are returned or not.

    >>> import keras
    >>> layer = MultiHeadAttention(num_heads=2, key_dim=16)
    >>> inputs = keras.random.normal((2, 5, 16))
    >>> tuple(layer(query=inputs, key=inputs, value=inputs).shape)
    (2, 5, 16)
    >>> layer.look(inputs, inputs).weights[0, 1].shape
    (5, 5)
    """

    def look(self, query: Any, value: Any, key: Any = None, **kwargs: Any) -> Look:
        """Call the layer, and keep every weight of its attention in sight, at any length.

        The arguments are those of a call: query (B, T, features), value and key (B, S, features),
        masks and so on.

        Returns:
            A `Look` of (B, H, T, S), whose output (B, H, T, V) is that before the output
            projection. Rows of padding are no part of what the other rows give.

        Raises:
            TypeError: the inputs have no values, or Keras computes such a call itself.
        """
        return _look(self, query, value, key, **kwargs)

    def compute_output_spec(
        self, query: Any, value: Any, key: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """The shapes of what a call gives; of scores Keras's layer takes the keys to be queries."""
        found = super().compute_output_spec(query, value, key, *args, **kwargs)
        if not isinstance(found, tuple):
            return found
        keys = (value if key is None else key).shape[1]
        scores = keras.KerasTensor((*found[1].shape[:-1], keys), dtype=found[1].dtype)
        return found[0], scores

    def _compute_attention_mask(self, query: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        # Someone else's `_compute_attention` expects Keras's own mask.
        own = type(self)._compute_attention is MultiHeadAttention._compute_attention
        if own and len(query.shape) == len(value.shape) == 3:
            return Masks(query, value, *args, **kwargs)
        return super()._compute_attention_mask(query, value, *args, **kwargs)

    def _compute_attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any = None,
        training: Any = None,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
    ) -> Any:
        ours = len(query.shape) == 4 and len(self._attention_axes) == 1
        scores = None
        if return_attention_scores or not ours:
            mask = attention_mask
            if isinstance(mask, Masks):
                mask = super()._compute_attention_mask(*mask)
            output, scores = super()._compute_attention(
                query,
                key,
                value,
                mask,
                False if ours else training,
                return_attention_scores,
                **({"use_causal_mask": True} if use_causal_mask else {}),
            )
            if not ours:
                return output, scores
        masks = _masks(query, value, attention_mask, use_causal_mask)
        options = masks.options(getattr(self, "_sliding_window", None))
        if training and self._dropout > 0:
            options["seed"] = seed_from(self._dropout_layer.seed_generator)
            options["dropout"] = self._dropout
        scale = self._inverse_sqrt_key_dim
        return attend(query, key, value, masks.real_rows, scale=scale, **options), scores


@_serializable
class GroupedQueryAttention(keras.layers.GroupQueryAttention):  # type: ignore[misc]
    """`keras.layers.GroupQueryAttention`, likewise; keys and values are never repeated.

    >>> import keras
    >>> layer = GroupQueryAttention(head_dim=16, num_query_heads=4, num_key_value_heads=2)
    >>> inputs = keras.random.normal((2, 5, 16))
    >>> tuple(layer(inputs, inputs, use_causal_mask=True).shape)
    (2, 5, 16)
    """

    def look(self, query: Any, value: Any, key: Any = None, **kwargs: Any) -> Look:
        """Call the layer, and keep every weight of its attention in sight, at any length.

        As `MultiHeadAttention.look`.
        """
        return _look(self, query, value, key, **kwargs)

    def build(self, query_shape: Any, value_shape: Any, key_shape: Any = None) -> None:
        """Make the weights, which are Keras's."""
        super().build(query_shape, value_shape, key_shape)
        self.num_repeats = repeats(self)

    def _compute_attention_mask(self, query: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if type(self)._compute_attention is GroupedQueryAttention._compute_attention:
            return Masks(query, value, *args, **kwargs)
        return super()._compute_attention_mask(query, value, *args, **kwargs)

    def _compute_attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any = None,
        training: Any = None,
        use_causal_mask: bool = False,
    ) -> Any:
        scores = None
        if self._return_attention_scores:
            mask = attention_mask
            if isinstance(mask, Masks):
                mask = super()._compute_attention_mask(*mask)
            times = query.shape[2] // key.shape[2]
            _, scores = super()._compute_attention(
                query,
                ops.repeat(key, times, axis=2),
                ops.repeat(value, times, axis=2),
                mask,
                False,
                **({"use_causal_mask": True} if use_causal_mask else {}),
            )
        masks = _masks(query, value, attention_mask, use_causal_mask)
        options = masks.options(getattr(self, "sliding_window", None))
        if training and self.dropout > 0:
            options["seed"] = seed_from(self._dropout_layer.seed_generator)
            options["dropout"] = self.dropout
        scale = self._inverse_sqrt_head_dim
        return attend(query, key, value, masks.real_rows, scale=scale, **options), scores


@_serializable
class Attention(keras.layers.Attention):  # type: ignore[misc]
    """`keras.layers.Attention` (Luong's): no heads, no scale but a learned one.

    With `score_mode="dot"` the kernel computes, with "concat" Keras does. A row that may attend
    nothing is 0, where Keras gives almost equal weights.

    >>> import keras
    >>> query, value = keras.random.normal((2, 5, 16)), keras.random.normal((2, 7, 16))
    >>> tuple(Attention()([query, value]).shape)
    (2, 5, 16)
    """

    def look(self, inputs: Any, mask: Any = None, **kwargs: Any) -> Look:
        """Call the layer, and keep every weight of its attention in sight, at any length.

        Returns:
            A `Look` of (B, 1, T, S).

        Raises:
            TypeError: the inputs have no values, or Keras computes such a call itself.
        """
        return _look(self, inputs, mask=mask, **kwargs)

    def call(
        self,
        inputs: Any,
        mask: Any = None,
        training: Any = False,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
    ) -> Any:
        """Compute attention of [query, value] or [query, value, key], as Keras's layer does."""
        self._validate_inputs(inputs=inputs, mask=mask)
        query, value, key = inputs[0], inputs[1], inputs[-1] if len(inputs) > 2 else inputs[1]
        of_query, of_value = (mask[0], mask[1]) if mask else (None, None)
        masked = of_query is not None or of_value is not None
        # The scores that this layer returns are those that dropout has left.
        dropped = return_attention_scores and training and self.dropout > 0
        if self.score_mode != "dot" or dropped or (masked and len(query.shape) != 3):
            return super().call(inputs, mask, training, return_attention_scores, use_causal_mask)
        masks = Masks(query, value, of_query, of_value, use_causal_mask=use_causal_mask)
        options = masks.options()
        if training and self.dropout > 0:
            options["seed"] = seed_from(self.seed_generator)
            options["dropout"] = self.dropout
        scaled = query
        if self.scale is not None:
            scaled = query * ops.cast(self.scale, query.dtype)
        scaled, key, value = (ops.expand_dims(one, -2) for one in (scaled, key, value))
        output = attend(scaled, key, value, masks.real_rows, scale=1, **options)
        output = ops.squeeze(output, -2)
        if not return_attention_scores:
            return output
        _, scores = super().call(inputs, mask, False, True, use_causal_mask)
        allowed = self._calculate_score_mask(scores, of_value, use_causal_mask)
        if allowed is not None:
            # Keras gives equal scores to a row that may attend nothing; they were not used.
            allowed = ops.expand_dims(allowed, -2) if len(allowed.shape) == 2 else allowed
            scores = ops.where(allowed, scores, 0)
        return output, scores


def repeats(layer: Any) -> int:
    """How often a grouped layer's `call` shall repeat keys and values: not at all for ours."""
    own = type(layer)._compute_attention is GroupedQueryAttention._compute_attention
    return 1 if own else int(layer.num_query_heads // layer.num_key_value_heads)


def _masks(query: Any, value: Any, given: Any, causal: bool) -> Masks:
    """The masks of a call; a mask of T × S is there only if the caller made one."""
    if not isinstance(given, Masks):
        return Masks(query, value, attention_mask=given, use_causal_mask=causal)
    return given._replace(use_causal_mask=True) if causal else given


def _look(layer: Any, *args: Any, **kwargs: Any) -> Look:
    tensors = [one for one in keras.tree.flatten((args, kwargs)) if hasattr(one, "_keras_mask")]
    masks = [one._keras_mask for one in tensors]
    with watched() as seen:
        layer(*args, **({"training": False} | kwargs))
    # Keras's layer takes the masks off what it is given; looking must change nothing.
    for tensor, mask in zip(tensors, masks, strict=True):
        tensor._keras_mask = mask
    if not seen:
        raise TypeError(
            f"look: Keras itself computed this call of {layer.name}, or its inputs have no values. "
            "Call it with arrays of (B, T, features), outside of traced functions"
        )
    return seen[0]


# Keras's class and its public name differ; files may hold either.
GroupQueryAttention = GroupedQueryAttention

# Saved files name the door, not the file in it.
for _layer in (MultiHeadAttention, GroupedQueryAttention, Attention):
    _layer.__module__ = "regard.keras"
