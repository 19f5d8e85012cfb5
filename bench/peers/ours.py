"""regard, from NumPy and from PyTorch, and with looks."""

from typing import Any

import numpy as np

import regard
from bench.peers import Cannot, Ready
from bench.problems import WINDOW, Problem


def options(problem: Problem) -> dict[str, Any]:
    """A problem's rule as arguments."""
    if problem.rule == "window":
        return {"window": (WINDOW - 1, 0)}
    if problem.rule == "segments":
        return {"segments": problem.segments()}
    if problem.rule == "bias":
        return {"bias": problem.bias()}
    if problem.rule in ("mask", "padding"):
        return {"mask": problem.allowed()}
    return {"causal": True} if problem.causal else {}


def numpy(problem: Problem) -> Ready:
    """A backward pass exists where a framework asks for gradients: from PyTorch."""
    if problem.backward:
        return torch(problem)
    arrays, chosen = problem.inputs(), options(problem)
    return Ready(lambda: regard.attention(*arrays, **chosen), lambda output: [output])


def torch(problem: Problem) -> Ready:
    from bench.peers import pytorch

    tensors, chosen = pytorch.tensors(problem), options(problem)
    return pytorch.ready(problem, tensors, lambda: regard.attention(*tensors, **chosen))


def top(problem: Problem) -> Ready:
    """The forward pass and the eight keys of each row that have the most weight."""
    arrays, chosen = _lookable(problem)

    def call() -> Any:
        look = regard.look(*arrays, **chosen)
        return look.output, look.top(8)

    return Ready(call, lambda found: [np.asarray(found[0])])


def looks(problem: Problem) -> Ready:
    """The forward pass and every summary that a look has of all its rows."""
    arrays, chosen = _lookable(problem)

    def call() -> Any:
        look = regard.look(*arrays, **chosen).prepare(top=8, map=(64, 64))
        maps = look.map(64, 64), look.map(64, 64, "max")
        sums = look.received(mean=True), look.entropy(), look.distance()
        return look.output, look.top(8), *sums, *maps

    return Ready(call, lambda found: [np.asarray(found[0])])


def _lookable(problem: Problem) -> tuple[Any, dict[str, Any]]:
    if problem.backward:
        raise Cannot("looks have no gradients")
    return problem.inputs(), options(problem)
