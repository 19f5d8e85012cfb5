"""The formula in NumPy, head by head, so that the table of weights stays as small as it can."""

import math

import numpy as np

from bench.peers import Cannot, Ready
from bench.problems import Array, Problem


def numpy(problem: Problem) -> Ready:
    if problem.dtype != "float32":
        raise Cannot(f"no fast {problem.dtype}")
    if problem.backward:
        raise Cannot("no gradients")
    query, key, value = problem.inputs()
    scale, group = np.float32(1 / math.sqrt(problem.width)), problem.heads // problem.groups
    allowed = problem.allowed()
    hidden = None if allowed is None else ~allowed
    bias = problem.bias() if problem.rule == "bias" else None

    def call() -> Array:
        output = np.empty_like(query)
        for b in range(problem.batch):
            for h in range(problem.heads):
                scores = (query[b, h] * scale) @ key[b, h // group].T
                if bias is not None:
                    scores += bias[h]
                if hidden is not None:
                    which = hidden[b, 0] if hidden.ndim == 4 else hidden
                    np.copyto(scores, -np.inf, where=which)
                scores -= scores.max(axis=-1, keepdims=True)
                np.exp(scores, out=scores)
                scores /= scores.sum(axis=-1, keepdims=True)
                np.matmul(scores, value[b, h // group], out=output[b, h])
        return output

    return Ready(call, lambda output: [output])
