"""Who is measured: each peer as a call without arguments on its own kind of arrays."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import regard
from bench.measure import Call


@dataclass(frozen=True)
class Shape:
    """One attention problem, self-attention unless `keys` says otherwise."""

    batch: int
    heads: int
    rows: int
    keys: int
    width: int
    causal: bool = False

    @property
    def name(self) -> str:
        numbers = f"{self.batch}×{self.heads} heads, {self.rows}×{self.keys}, D {self.width}"
        return numbers + ", causal" * self.causal

    @property
    def operations(self) -> float:
        """Floating-point operations of both products."""
        return 4 * self.batch * self.heads * self.rows * self.keys * self.width / (1 + self.causal)

    def inputs(self) -> list[np.ndarray]:
        random = np.random.default_rng(0)
        lengths = (self.rows, self.keys, self.keys)
        return [
            random.standard_normal((self.batch, self.heads, n, self.width), np.float32)
            for n in lengths
        ]


def set_threads(count: int) -> None:
    """Give everyone as many threads."""
    import threadpoolctl
    import torch

    regard.threads(count)
    torch.set_num_threads(count)
    torch.set_float32_matmul_precision("highest")
    threadpoolctl.threadpool_limits(count)


def ours(shape: Shape, arrays: list[np.ndarray]) -> Call:
    if shape.causal:
        return lambda: regard.attention(*arrays, causal=True)
    return lambda: regard.attention(*arrays)


def pytorch(shape: Shape, arrays: list[np.ndarray]) -> Call:
    import torch

    tensors = [torch.from_numpy(array) for array in arrays]
    function = torch.nn.functional.scaled_dot_product_attention

    def call() -> Any:
        with torch.no_grad():
            return function(*tensors, is_causal=shape.causal).numpy()

    return call


@cache
def _session(heads: int, width: int, causal: bool, threads: int) -> Any:
    """An ONNX graph of one com.microsoft MultiHeadAttention, ready to run."""
    import onnxruntime
    from onnx import TensorProto, helper

    names = ("query", "key", "value", "output")
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", None, "w"]) for n in names]
    node = helper.make_node(
        "MultiHeadAttention", names[:3], names[3:], domain="com.microsoft", num_heads=heads,
        unidirectional=int(causal), scale=1 / math.sqrt(width),
    )  # fmt: skip
    graph = helper.make_graph([node], "attention", values[:3], values[3:])
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def onnxruntime(shape: Shape, arrays: list[np.ndarray]) -> Call:
    """Its layout is (batch, length, heads · width); it gets its inputs so."""
    session = _session(shape.heads, shape.width, shape.causal, regard.threads().count)
    flat = [
        np.ascontiguousarray(array.swapaxes(1, 2)).reshape(shape.batch, array.shape[2], -1)
        for array in arrays
    ]
    feed = dict(zip(("query", "key", "value"), flat, strict=True))
    shown = (shape.batch, shape.rows, shape.heads, shape.width)
    return lambda: session.run(None, feed)[0].reshape(shown).swapaxes(1, 2)


def numpy(shape: Shape, arrays: list[np.ndarray]) -> Call:
    """The formula, head by head, so that the table of weights stays as small as it can."""
    query, key, value = arrays
    scale = np.float32(1 / math.sqrt(shape.width))
    hidden = np.triu(np.ones((shape.rows, shape.keys), bool), 1) if shape.causal else None

    def call() -> np.ndarray:
        output = np.empty_like(query)
        for b in range(shape.batch):
            for h in range(shape.heads):
                scores = (query[b, h] * scale) @ key[b, h].T
                if hidden is not None:
                    scores[hidden] = -np.inf
                scores -= scores.max(axis=-1, keepdims=True)
                np.exp(scores, out=scores)
                scores /= scores.sum(axis=-1, keepdims=True)
                np.matmul(scores, value[b, h], out=output[b, h])
        return output

    return call


PEERS = {"regard": ours, "torch": pytorch, "onnxruntime": onnxruntime, "numpy": numpy}


def calls(
    shape: Shape, names: list[str], arrays: list[np.ndarray] | None = None
) -> dict[str, Call]:
    """The calls of some peers on one problem."""
    arrays = shape.inputs() if arrays is None else arrays
    return {name: PEERS[name](shape, arrays) for name in names}


def errors(shape: Shape, arrays: list[np.ndarray], found: dict[str, Any]) -> dict[str, Any]:
    """Largest and rms difference from float64, on up to 64 rows of each of up to 8 heads."""
    rows = np.unique(np.linspace(0, shape.rows - 1, 64).astype(int))
    heads = np.unique(np.linspace(0, shape.heads - 1, 8).astype(int))
    q, k, v = (array[0, heads].astype(np.float64) for array in arrays)
    scores = q[:, rows] @ k.swapaxes(-1, -2) / math.sqrt(shape.width)
    if shape.causal:
        scores = np.where(np.arange(shape.keys) <= rows[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    truth = weights / weights.sum(axis=-1, keepdims=True) @ v
    result = {}
    for name, output in found.items():
        off = np.abs(np.asarray(output)[0][np.ix_(heads, rows)] - truth)
        result[name] = {"largest": float(off.max()), "rms": float(np.sqrt((off**2).mean()))}
    return result
