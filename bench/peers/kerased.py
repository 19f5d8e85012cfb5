"""keras.ops.dot_product_attention on TensorFlow and on JAX, compiled. Layout (B, T, H, D).

Keras reads KERAS_BACKEND once a process; each of these has one to itself.
"""

import os
from typing import Any

from bench.peers import Cannot, Ready, heads_last
from bench.problems import Problem


def _rule(problem: Problem) -> dict[str, Any]:
    """A bias or dense booleans: Keras has no other rules than these and causal order."""
    if problem.rule == "bias":
        return {"bias": problem.bias()[None]}
    allowed = problem.allowed() if problem.rule else None
    if allowed is None:
        return {}
    return {"mask": allowed.reshape((1,) * (4 - allowed.ndim) + allowed.shape)}


def tensorflow(problem: Problem) -> Ready:
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras
    import tensorflow as tf

    if problem.rows * problem.keys * problem.batch * problem.heads > 2**32:
        raise Cannot("table of scores beyond 16 GiB")
    arrays = [tf.constant(heads_last(a)) for a in problem.inputs()]
    rule = {name: tf.constant(array) for name, array in _rule(problem).items()}
    gradient = tf.constant(heads_last(problem.gradient())) if problem.backward else None

    @tf.function(autograph=False)
    def attend(*arrays: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            output = keras.ops.dot_product_attention(*arrays, is_causal=problem.causal, **rule)
        return output if gradient is None else tape.gradient(output, arrays, gradient)

    traced = attend.get_concrete_function(*arrays)
    return Ready(
        lambda: traced(*arrays),
        lambda found: [a.numpy().swapaxes(1, 2) for a in tf.nest.flatten(found)],
    )


def jax(problem: Problem) -> Ready:
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    from bench.peers.jaxed import compiled

    def attend(*arrays: Any, **rule: Any) -> Any:
        return keras.ops.dot_product_attention(*arrays, is_causal=problem.causal, **rule)

    return compiled(problem, attend, _rule(problem))
