"""A call of TensorFlow's tensors computed by the kernel: at once, or as a step of a graph.

A graph calls back into Python for it, which other processes, XLA and accelerators cannot do; for
these see blocks.py. Arrays come and go without being copied.
"""

from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf  # type: ignore[import-untyped]

from regard.core.given import FLOATS, Given, backward, checked, forward, swapped
from regard.tensorflow.tensors import array, eager, stand_in


class Route(NamedTuple):
    """A way to compute: output and lse, and the gradients of the FLOATS among the tensors."""

    forward: Any  # (given, *tensors) -> output, lse
    backward: Any  # (given, *tensors, output, lse, grad_output, grad_lse or none) -> gradients


# The arguments that fit any shape.
SCALARS = ("causal", "window", "softcap", "scale", "dropout", "seed", "precision")


def refuse_wrong(given: Given, tensors: list[Any]) -> None:
    """Check a call whose tensors have no values yet, as far as shapes are known."""
    stand_ins = [stand_in(one) for one in tensors]
    if all(one.shape.is_fully_defined() for one in tensors):
        checked(given, stand_ins)
    elif all(one is not None for one in stand_ins):
        rest = {name: given.rest[name] for name in SCALARS if name in given.rest}
        checked(given._replace(rest=rest), stand_ins)


# ------------------------------------------------------------------------------------- on tensors


def _eager_forward(given: Given, *tensors: Any, with_lse: bool = True) -> Any:
    output, lse = forward(given, *map(array, tensors), strict=True, with_lse=with_lse)
    return eager(output), None if lse is None else eager(lse)


def _eager_backward(given: Given, *tensors: Any) -> Any:
    return [eager(grad) for grad in backward(given, *map(array, tensors))]


def _traced_forward(given: Given, *tensors: Any) -> Any:
    _refuse_saving()
    query = tensors[given.names.index("query")]
    dtypes = [query.dtype, tf.float64]
    outputs = tf.numpy_function(partial(forward, given), tensors, dtypes, stateful=False)
    shape = _shape(given, *tensors)
    outputs[0].set_shape(shape)
    if given.turned(shape):
        shape = tf.TensorShape(swapped(shape))
    outputs[1].set_shape(shape[:-1])
    return outputs


def _traced_backward(given: Given, *tensors: Any) -> Any:
    _refuse_saving()
    own = [one for name, one in zip(given.names, tensors, strict=False) if name in FLOATS]
    grads = tf.numpy_function(
        partial(backward, given), tensors, [one.dtype for one in own], stateful=False
    )
    for grad, one in zip(grads, own, strict=True):
        grad.set_shape(one.shape)
    return grads


def _shape(given: Given, *tensors: Any) -> Any:
    """As much as is known of the shape of the output."""
    query, key, value = (tensors[given.names.index(n)].shape for n in ("query", "key", "value"))
    if None in (query.rank, key.rank, value.rank):
        return tf.TensorShape(None)
    batch = query[:-3]
    for other in (key, value):
        batch = tf.broadcast_static_shape(batch, other[:-3])
    return tf.TensorShape([*batch, *query[-3:][:-1], value[-1]])


def _refuse_saving() -> None:
    graph = tf.compat.v1.get_default_graph()
    if hasattr(graph, "mark_as_unsaveable"):
        graph.mark_as_unsaveable(
            "it calls regard's kernel, which only this process has, because it was traced before "
            "it was saved. Save a function that was not called yet, by itself or in "
            "tf.saved_model.save(…, signatures=): traced while it is saved, it holds nothing but "
            "TensorFlow's own operations."
        )


EAGER = Route(_eager_forward, _eager_backward)
TRACED = Route(_traced_forward, _traced_backward)
