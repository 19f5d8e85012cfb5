"""A call of TensorFlow's tensors computed by the kernel: at once, or as a step of a graph.

A graph calls back into Python for it, which other processes, XLA and accelerators cannot do; for
these see blocks.py. Arrays come and go without being copied.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf  # type: ignore[import-untyped]

from regard import _kernel
from regard.core.arguments import FLOAT64, Array, bits, real
from regard.core.call import Call, check
from regard.tensorflow.tensors import ALIGNMENT, array, eager, is_tensor, room, stand_in, tensor

# What may be a pair of arrays.
PAIRS = ("segments", "ranges")
# What has a gradient.
FLOATS = ("query", "key", "value", "bias", "sinks")


class Given(NamedTuple):
    """The arguments of a call, tensors apart from all else: only they change from run to run."""

    names: tuple[str, ...]  # of the tensors; "ranges.0" is the first of a pair
    rest: dict[str, Any]
    heads_axis: int  # -3, or -2 where query, key, value and output are (B…, T, H, D)

    @classmethod
    def of(cls, arguments: dict[str, Any], heads_axis: int) -> tuple["Given", list[Any]]:
        """Take the tensors out of all arguments."""
        parts: dict[str, Any] = {}
        for name, given in arguments.items():
            if name in PAIRS and isinstance(given, tuple | list) and any(map(is_tensor, given)):
                parts |= {f"{name}.{n}": part for n, part in enumerate(given)}
            elif given is not None:
                parts[name] = given
        tensors = {name: tensor(name, part) for name, part in parts.items() if is_tensor(part)}
        rest = {name: part for name, part in parts.items() if name not in tensors}
        return cls(tuple(tensors), rest, heads_axis), list(tensors.values())

    def arguments(self, tensors: Any) -> dict[str, Any]:
        """Put tensors, or whatever stands for them, back among the arguments."""
        parts = dict(self.rest) | dict(zip(self.names, tensors, strict=True))
        whole = {name: part for name, part in parts.items() if "." not in name}
        for name in PAIRS:
            if f"{name}.0" in parts:
                whole[name] = tuple(part for n, part in parts.items() if n.startswith(f"{name}."))
        return whole

    def turned(self, shape: Any) -> bool:
        """Whether the axes of heads and rows of such an array are swapped for the kernel."""
        return self.heads_axis == -2 and len(shape) > 2


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


def checked(given: Given, arrays: Any) -> Call:
    """Check a call of arrays; heads come before rows in it."""
    arguments = given.arguments(arrays)
    if given.heads_axis == -2:
        for name in ("query", "key", "value"):
            if np.ndim(arguments[name]) > 2:
                arguments[name] = np.swapaxes(arguments[name], -2, -3)
    return check(**arguments)


# -------------------------------------------------------------------------------------- on arrays


def forward(given: Given, *arrays: Array, strict: bool = False) -> tuple[Array, Array]:
    """Compute output and lse, in float64; `strict` refuses a bias that spoils a row."""
    call = checked(given, arrays)
    query = call.query
    rows = call.shape[1:-1] if call.flat else call.shape[:-1]
    output, inner_output = _rooms(given, call, (*rows, call.value.shape[-1]), query.dtype)
    lse = room(rows, FLOAT64)
    attends_bad_bias = _kernel.forward(
        bits(query),
        bits(call.key),
        bits(call.value),
        bits(inner_output),
        lse[None] if call.flat else lse,
        *call.rule,
        call.dropout,
        call.seed,
    )
    if strict and attends_bad_bias:
        raise ValueError(
            "bias: expected finite numbers or -inf wherever a query may attend, "
            "received +inf or NaN"
        )
    return output, lse


def backward(given: Given, *arrays: Array) -> list[Array]:
    """Compute the gradients of the FLOATS among the arrays, each in its shape and dtype.

    Behind the call's own arrays come output, lse, grad_output and, if there is one, grad_lse.
    """
    count = len(given.names)
    call = checked(given, arrays[:count])
    output, lse, grad_output, *grad_lse = arrays[count:]
    arguments = given.arguments(arrays[:count])
    turned, wide = given.turned(output.shape), real(call.dtype)
    rooms = {}
    for name in ("query", "key", "value"):
        shape = _swapped(arguments[name].shape) if turned else arguments[name].shape
        batch = shape[:-3] if call.flat else call.batch
        # What will be summed over items is summed in float32 or wider.
        dtype = call.dtype if batch == shape[:-3] else wide
        rooms[name] = _rooms(given, call, (*batch, *shape[-3:]), dtype)
    of_query, of_key, of_value = (bits(inner) for _, inner in rooms.values())
    bias, sinks = call.rule.bias, call.rule.sinks
    of_bias = np.zeros_like(bias, wide) if bias is not None and "bias" in given.names else None
    of_sinks = np.zeros_like(sinks) if sinks is not None and "sinks" in given.names else None
    _kernel.backward(
        bits(call.query),
        bits(call.key),
        bits(call.value),
        bits(_inner(given, call, output)),
        lse[None] if call.flat else lse,
        bits(_inner(given, call, grad_output)),
        None if not grad_lse else grad_lse[0][None] if call.flat else grad_lse[0],
        of_query,
        of_key,
        of_value,
        of_bias,
        of_sinks,
        *call.rule,
        call.dropout,
        call.seed,
    )
    found = {name: outer for name, (outer, _) in rooms.items()}
    found |= {name: g for name, g in (("bias", of_bias), ("sinks", of_sinks)) if g is not None}
    return [_like(found[n], arguments[n]) for n in given.names if n in FLOATS]


def _rooms(given: Given, call: Call, shape: tuple[int, ...], dtype: Any) -> tuple[Array, Array]:
    """Room for what the caller gets, and the kernel's view of it, in which heads precede rows.

    The shape is the view's.
    """
    outer = room(_swapped(shape) if given.turned(shape) else shape, dtype)
    return outer, _inner(given, call, outer)


def _swapped(shape: Any) -> tuple[int, ...]:
    return (*shape[:-3], shape[-2], shape[-3], shape[-1])


def _inner(given: Given, call: Call, outer: Array) -> Array:
    """The caller's array as the kernel takes it: heads before rows."""
    if call.flat:
        return outer[None]
    return outer.swapaxes(-2, -3) if given.turned(outer.shape) else outer


def _like(grad: Array, own: Array) -> Array:
    """The gradient summed over the axes that were broadcast, in memory TensorFlow can take."""
    if grad.shape != own.shape:
        axes = tuple(n for n, size in enumerate(own.shape) if size != grad.shape[n])
        grad = grad.sum(axis=axes, keepdims=True)
    elif grad.dtype == own.dtype and grad.ctypes.data % ALIGNMENT == 0:
        return grad
    found = room(own.shape, own.dtype)
    found[...] = grad
    return found


# ------------------------------------------------------------------------------------- on tensors


def _eager_forward(given: Given, *tensors: Any) -> Any:
    output, lse = forward(given, *map(array, tensors), strict=True)
    return eager(output), eager(lse)


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
        shape = tf.TensorShape(_swapped(shape))
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
