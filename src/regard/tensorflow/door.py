"""`dot_product_attention`, `look` and `merge` for tensors, and which way a call is computed."""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf  # type: ignore[import-untyped]
from tensorflow.python.eager import record  # type: ignore[import-untyped]

# Both say what a function is traced for, which TensorFlow tells nobody in public.
from tensorflow.python.ops import control_flow_util  # type: ignore[import-untyped]
from tensorflow.python.saved_model import save_context  # type: ignore[import-untyped]

from regard.core.changed import copied
from regard.core.given import FLOATS, Given, checked
from regard.core.look import Look
from regard.tensorflow import blocks, kernel
from regard.tensorflow.blocks import where_else_zero
from regard.tensorflow.kernel import Route
from regard.tensorflow.tensors import array, is_tensor, tensor

# AutoGraph rewrites what a traced function calls; there is nothing in here for it to do.
_as_it_is = tf.autograph.experimental.do_not_convert


@_as_it_is  # type: ignore[untyped-decorator]
def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    mask: Any = None,
    bias: Any = None,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    query_offset: Any = None,
    key_lengths: Any = None,
    segments: Any = None,
    ranges: Any = None,
    softcap: float | None = None,
    sinks: Any = None,
    scale: float | None = None,
    dropout: float = 0.0,
    seed: Any = None,
    precision: str = "highest",
    return_lse: bool = False,
    heads_axis: int = -3,
) -> Any:
    """Compute softmax(scale · Q Kᵀ) V for tensors, exactly, in memory linear in T + S.

    The arguments are those of `regard.attention` and mean the same. All arrays may be tensors,
    also without values yet (in `tf.function`, `tf.data`); numbers and flags are Python's. There
    are gradients for query, key, value, bias and sinks, but no gradients of these.

    The kernel computes, but under XLA (`jit_compile=True`), while a SavedModel is written and for
    tensors on an accelerator: there the same is computed block by block by TensorFlow's own
    operations.

    Args:
        query: (B…, H, T, D), or (T, D); float64, float32, bfloat16 or float16.
        key: (B…, G, S, D).
        value: (B…, G, S, V).
        mask: booleans that broadcast against (B…, H, T, S); True = may attend.
        bias: floats that broadcast likewise, added to the scaled scores; -inf excludes.
        causal: query i sees key j where j <= i + query_offset.
        window: (before, after), distances around the query's own position, both included.
        query_offset: position of the first query among the keys; needed with causal or window
            where T ≠ S.
        key_lengths: (B…) ints; keys from there on do not exist.
        segments: ints (B…, T), or a tuple of (B…, T) and (B…, S).
        ranges: (first, past), ints (B…, T).
        softcap: scores become c · tanh(score / c).
        sinks: (H,) floats, one more logit a head.
        scale: factor of the dot products; 1 / √D unless given.
        dropout: probability that a weight is dropped.
        seed: int or integer tensor; drawn by `tf.random` unless given, so `tf.random.set_seed`
            repeats it.
        precision: "highest" or "high".
        return_lse: also return the log-sum-exp of each row, (B…, H, T).
        heads_axis: -3; or -2 for query, key, value and output as Keras has them, (B…, T, H, D).

    Returns:
        The output (B…, H, T, V), in the query's dtype; with `return_lse` also lse.

    Raises:
        TypeError: an argument has the wrong type or dtype.
        ValueError: shapes or numbers do not fit. A row that may attend a bias that is +inf or NaN
            raises it too, but is NaN in a graph.

    >>> query = tf.constant([[1.0, 0.0]])
    >>> keys = tf.constant([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> values = tf.constant([[10.0, 0.0], [0.0, 20.0], [30.0, 30.0]])
    >>> print(dot_product_attention(query, keys, values, scale=1).numpy().round(4))
    [[16.8928 15.7768]]
    """
    arguments = {"query": query, "key": key, "value": value, "mask": mask, "bias": bias}
    arguments |= {"causal": causal, "window": window, "query_offset": query_offset}
    arguments |= {"key_lengths": key_lengths, "segments": segments, "ranges": ranges}
    arguments |= {"softcap": softcap, "sinks": sinks, "scale": scale, "dropout": dropout}
    arguments |= {"seed": seed, "precision": precision}
    given, tensors = _given(arguments, heads_axis)
    output, lse = _computed(given, tensors, return_lse)
    if not return_lse:
        return output
    return output, tf.cast(lse, tf.float64 if output.dtype == tf.float64 else tf.float32)


attention = dot_product_attention


@_as_it_is  # type: ignore[untyped-decorator]
def look(query: Any, key: Any, value: Any, *, copy: bool = False, **options: Any) -> Look:
    """Compute attention as `dot_product_attention` does, and keep sight of every weight.

    The arguments are those of `regard.look`, and `heads_axis`. `output` of the `Look` is a tensor,
    with its gradient; what is asked for comes as NumPy arrays.

    Raises:
        TypeError: an argument has the wrong type or dtype, or a tensor has no value yet.
        ValueError: shapes or numbers do not fit.

    >>> query, key, value = tf.unstack(tf.random.normal((3, 2, 4, 8)))
    >>> look(query, key, value, causal=True).weights[0, 0].round(6)
    array([1., 0., 0., 0.], dtype=float32)
    """
    heads_axis = options.pop("heads_axis", -3)
    given, tensors = _given({"query": query, "key": key, "value": value, **options}, heads_axis)
    if not tf.executing_eagerly():
        raise TypeError(
            "look: expected tensors with values, received those of a function that is being "
            "traced; look outside of tf.function"
        )
    output, lse = _computed(given, tensors, True)
    call = checked(given, [array(one) for one in tensors])
    inner = array(output)
    inner = inner.swapaxes(-2, -3) if given.turned(inner.shape) else inner
    inner, inner_lse = (one[None] if call.flat else one for one in (inner, array(lse)))
    seen = Look(copied(call) if copy else call, inner, inner_lse)
    seen.output = output
    return seen


@_as_it_is  # type: ignore[untyped-decorator]
def merge(outputs: Any, lses: Any) -> Any:
    """Put attention over parts of the keys together, as `regard.merge` does, with gradients.

    Args:
        outputs: the output of each part, (…, T, V), of one shape and dtype.
        lses: the lse of each part, (…, T).

    >>> query, key, value = tf.unstack(tf.random.normal((3, 2, 5, 4)))
    >>> parts = [
    ...     attention(query, key[:, part], value[:, part], return_lse=True)
    ...     for part in (slice(0, 2), slice(2, 5))
    ... ]
    >>> output, lse = merge(*zip(*parts))
    >>> print(output.shape, lse.shape)
    (2, 5, 4) (2, 5)
    """
    outputs = [tensor("outputs", one) for one in outputs]
    lses = [tensor("lses", one) for one in lses]
    if len(outputs) != len(lses) or not outputs:
        raise ValueError(
            "outputs and lses: expected one of each for every part, at least one part, "
            f"received {len(outputs)} and {len(lses)}"
        )
    if len({one.dtype for one in outputs}) > 1 or len({one.dtype for one in lses}) > 1:
        raise TypeError(
            "outputs and lses: expected one dtype for all outputs, and one for all lses"
        )
    shapes = [(output.shape, lse.shape) for output, lse in zip(outputs, lses, strict=True)]
    if not all(
        output.is_compatible_with(shapes[0][0]) and lse.is_compatible_with(output[:-1])
        for output, lse in shapes
    ):
        raise ValueError(
            "outputs and lses: expected (…, T, V) and (…, T), equal for all, received "
            + ", ".join(f"{output} and {lse}" for output, lse in shapes)
        )
    wide = lses[0].dtype
    # A row without any key: exp(-inf - 0) is 0, not NaN.
    peak = tf.reduce_max(tf.stack([tf.stop_gradient(lse) for lse in lses]), axis=0)
    peak = tf.where(peak == -math.inf, tf.zeros_like(peak), peak)
    total, summed = tf.zeros_like(peak), tf.zeros(tf.shape(outputs[0]), wide)
    for output, lse in zip(outputs, lses, strict=True):
        absent = lse == -math.inf
        share = where_else_zero(~absent, tf.exp(tf.where(absent, peak, lse) - peak))
        total += share
        # What a part without keys holds does not matter, NaN included.
        part = where_else_zero(~absent[..., None], tf.cast(output, wide))
        summed += share[..., None] * part
    filled = tf.where(total == 0, tf.ones_like(total), total)
    whole = tf.where(total == 0, tf.constant(-math.inf, wide), peak + tf.math.log(filled))
    return tf.cast(summed / filled[..., None], outputs[0].dtype), whole


# ----------------------------------------------------------------------------------------- inside


def _given(arguments: dict[str, Any], heads_axis: int) -> tuple[Given, list[Any]]:
    """Read the arguments, and tell tensors from the rest."""
    if heads_axis not in (-3, -2):
        raise ValueError(f"heads_axis: expected -3 or -2, received {heads_axis!r}")
    for name in ("query", "key", "value"):
        arguments[name] = tensor(name, arguments[name])
    for name in ("causal", "window", "softcap", "scale", "dropout", "precision"):
        if is_tensor(arguments.get(name)):
            hint = " Multiply query by it, with scale=1." if name == "scale" else ""
            raise TypeError(f"{name}: expected a value of Python's, received a tensor.{hint}")
    if arguments.get("dropout") and arguments.get("seed") is None:
        lowest, highest = tf.int64.min, tf.int64.max
        arguments["seed"] = tf.random.uniform((), lowest, highest, tf.int64)
    given, tensors = Given.of(arguments, heads_axis, is_tensor)
    return given, [tensor(name, one) for name, one in zip(given.names, tensors, strict=True)]


def _route(given: Given, tensors: Sequence[Any]) -> Route:
    """Choose who computes: the kernel, unless TensorFlow must do without Python or elsewhere."""
    device = tensors[given.names.index("query")].device
    if tf.executing_eagerly():
        return kernel.EAGER if "CPU" in device else blocks.BLOCKS
    elsewhere = "CPU" not in device if device else _has_accelerator()
    under_xla = control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    if elsewhere or under_xla or save_context.in_save_context():
        return blocks.BLOCKS
    return kernel.TRACED


def _has_accelerator() -> bool:
    return any(one.device_type != "CPU" for one in tf.config.list_logical_devices())


def _computed(given: Given, tensors: list[Any], with_lse: bool) -> tuple[Any, Any]:
    """Compute output and lse, which may be wider than asked for, such that tapes find gradients.

    The lse has a gradient only `with_lse`.
    """
    route = _route(given, tensors)
    if route is not kernel.EAGER:
        kernel.refuse_wrong(given, tensors)
    elif not record.could_possibly_record():
        output, lse = route.forward(given, *tensors, with_lse=with_lse)
        return output, lse

    def compute(*tensors: Any) -> Any:
        output, lse = route.forward(given, *tensors)

        def gradients(*grads: Any) -> list[Any]:
            found = iter(_gradients(route, given, tensors, (output, lse, *grads)))
            return [next(found) if name in FLOATS else None for name in given.names]

        return ((output, lse) if with_lse else (output,)), gradients

    output, *lse = tf.custom_gradient(compute)(*tensors)
    return output, (lse or [None])[0]


def _gradients(route: Route, given: Given, tensors: Any, known: Any) -> Any:
    """Compute the gradients of FLOATS; `known` are output, lse and the gradients of these."""
    if route is kernel.EAGER and not tf.executing_eagerly():
        route = _route(given, tensors)  # computed eagerly, differentiated in a graph: `jacobian`
    return _once(route, given, (*tensors, *known))


def _once(route: Route, given: Given, tensors: Any) -> Any:
    """Compute gradients that have none themselves: TensorFlow alone would say so by None."""

    def refuse(*_: Any) -> Any:
        raise NotImplementedError(
            "regard: attention can be differentiated once, in reverse; there are no second "
            "derivatives (nested tapes) and no forward mode (ForwardAccumulator)"
        )

    def compute(*tensors: Any) -> Any:
        return route.backward(given, *tensors), refuse

    if tf.executing_eagerly() and not record.could_possibly_record():
        return route.backward(given, *tensors)
    return tf.custom_gradient(compute)(*tensors)
