"""What the machine can do now: multiplications of matrices, and reading memory."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from bench.measure import settle

WORK = {"gflops": 2 * 1024**3, "gbytes": 2**28}  # operations, bytes


class Limits:
    """Both by NumPy with all threads: a float32 product of 1024² matrices, maxima of 256 MiB."""

    def __init__(self, threads: int) -> None:
        a = np.random.default_rng(0).standard_normal((1024, 1024), np.float32)
        parts = np.array_split(np.ones(2**26, np.float32), threads)
        pool = ThreadPoolExecutor(threads)
        self.calls: dict[str, Callable[[], object]] = {
            "gflops": lambda: np.dot(a, a),
            "gbytes": lambda: list(pool.map(np.max, parts)),
        }
        self.bound = "gflops"

    def rest(self) -> None:
        """Answer once everything is loaded."""

    def prepare(self, bound: str) -> None:
        """Measure this one from now on."""
        self.bound = bound

    def time(self) -> float:
        """Seconds of that work: the best of some tries, as the limit is what could be."""
        seconds = min(_seconds(self.calls[self.bound]) for _ in range(4))
        settle()
        return seconds


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
