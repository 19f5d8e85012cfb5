"""What the machine can do now: multiplications of matrices, and reading memory."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np


class Limits:
    """Both by NumPy with all threads: a float32 product of 1024² matrices, maxima of 256 MiB."""

    def __init__(self, threads: int) -> None:
        self.a = np.random.default_rng(0).standard_normal((1024, 1024), np.float32)
        self.parts = np.array_split(np.ones(2**26, np.float32), threads)
        self.pool = ThreadPoolExecutor(threads)

    def rest(self) -> None:
        """Answer once everything is loaded."""

    def measure(self) -> dict[str, float]:
        """GFLOP/s and GB/s: the best of some tries, as the limit is what could be."""
        product = min(_seconds(lambda: np.dot(self.a, self.a)) for _ in range(7))
        read = min(_seconds(lambda: list(self.pool.map(np.max, self.parts))) for _ in range(5))
        return {"gflops": 2 * 1024**3 / product / 1e9, "gbytes": 2**28 / read / 1e9}


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
