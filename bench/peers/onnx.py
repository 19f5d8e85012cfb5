"""onnxruntime, by the operator that is fastest for the problem."""

import math
import os
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from bench.peers import Cannot, Ready
from bench.problems import Array, Problem

MICROSOFT = "com.microsoft"


def onnxruntime(problem: Problem) -> Ready:
    if problem.dtype != "float32":
        raise Cannot(f"no {problem.dtype} on a CPU")
    if problem.backward:
        raise Cannot("no gradients")
    if problem.causal:
        return _grouped(problem)
    if problem.key_heads or problem.rule not in ("", "padding"):
        return _masked(problem)
    return _plain(problem)


def _plain(problem: Problem) -> Ready:
    """MultiHeadAttention: the fast path without masks; padding too. Layout (B, T, H · D)."""
    feed: dict[str, Array] = dict(zip(("query", "key", "value"), _flat(problem), strict=True))
    names, scale = list(feed), 1 / math.sqrt(problem.width)
    if problem.rule == "padding":
        feed["padding"] = problem.allowed()[:, 0, 0].astype(np.int32)
        names += ["", "padding"]
    return _ready(
        problem, "MultiHeadAttention", feed, names,
        domain=MICROSOFT, num_heads=problem.heads, scale=scale,
    )  # fmt: skip


def _grouped(problem: Problem) -> Ready:
    """GroupQueryAttention: causal always, and quicker at that than the others."""
    feed: dict[str, Array] = dict(zip(("query", "key", "value"), _flat(problem), strict=True))
    feed["lengths"] = np.full(problem.batch, problem.keys - 1, np.int32)
    feed["total"] = np.array(problem.keys, np.int32)
    names = ["query", "key", "value", "", "", "lengths", "total"]
    return _ready(
        problem, "GroupQueryAttention", feed, names, ["output", "keys", "values"],
        domain=MICROSOFT, num_heads=problem.heads, kv_num_heads=problem.groups,
    )  # fmt: skip


def _masked(problem: Problem) -> Ready:
    """ONNX's own Attention: masks, biases and shared heads. Layout (B, H, T, D)."""
    feed = dict(zip(("query", "key", "value"), problem.inputs(), strict=True))
    if problem.rule:
        given = problem.bias() if problem.rule == "bias" else problem.allowed()
        feed["mask"] = given.reshape((1,) * (4 - given.ndim) + given.shape)
    return _ready(problem, "Attention", feed, list(feed))


def _flat(problem: Problem) -> list[Array]:
    return [
        np.ascontiguousarray(a.swapaxes(1, 2)).reshape(problem.batch, a.shape[2], -1)
        for a in problem.inputs()
    ]


def _ready(
    problem: Problem,
    operator: str,
    feed: dict[str, Array],
    inputs: list[str],
    outputs: list[str] | None = None,
    **attributes: Any,
) -> Ready:
    """A graph of one node, in a session with as many threads as everybody has."""
    outputs = outputs or ["output"]
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in feed.items()
    ]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    node = helper.make_node(operator, inputs, outputs, **attributes)
    sets = [helper.make_opsetid("", 23), helper.make_opsetid(MICROSOFT, 1)]
    graph = helper.make_graph([node], "attention", values, made)
    model = helper.make_model(graph, opset_imports=sets, ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )

    def arrays(output: Array) -> list[Array]:
        if output.ndim == 3:
            output = output.reshape(*output.shape[:2], problem.heads, -1).swapaxes(1, 2)
        return [output]

    return Ready(lambda: session.run(outputs[:1], feed)[0], arrays)
