"""Measuring in turns: a call of each peer after another, with gaps, and ratios within a round.

On a shared machine an absolute time says little; what two peers take in the same round is
comparable. The gap lets the threads of the last one go to sleep: many spin for a while after it.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

Call = Callable[[], Any]


def seconds(call: Call) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def in_turns(calls: dict[str, Call], budget: float, least: int) -> dict[str, list[float]]:
    """Time rounds of one call each, at least some, until the budget of seconds is spent.

    Who takes more than a third of the budget for a call sits out after `least` / 3 rounds: NaN.
    """
    random = np.random.default_rng(0)
    first = {name: seconds(call) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    begin, names, turn = time.perf_counter(), list(calls), 0
    while turn < least or (turn < 200 and time.perf_counter() < begin + budget):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            if first[name] > budget / 3 and turn >= least / 3:
                times[name].append(np.nan)
                continue
            time.sleep(random.uniform(0.003, 0.010))
            times[name].append(seconds(calls[name]))
        turn += 1
    return times


def quartiles(numbers: Any) -> list[float]:
    """The first quartile, the median and the third, of those that are numbers."""
    numbers = np.asarray(numbers, float)
    return [float(x) for x in np.percentile(numbers[~np.isnan(numbers)], [25, 50, 75])]


def spread(times: list[float]) -> dict[str, float]:
    """What users of short calls feel: median, mean and 99th percentile, in microseconds."""
    found = np.array(times) * 1e6
    return {
        "median": float(np.median(found)),
        "mean": float(found.mean()),
        "p99": float(np.percentile(found, 99)),
    }


def in_bursts(calls: dict[str, Call], number: int, burst: int = 50) -> dict[str, list[float]]:
    """Time every single one of many short calls, in bursts by turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(20):
            call()
    for _ in range(number // burst):
        for name, call in calls.items():
            time.sleep(0.005)
            call()  # the first after a pause finds cold caches; not what is asked here
            times[name] += [seconds(call) for _ in range(burst)]
    return times


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """Another process that keeps one core busy meanwhile."""
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.2)
        yield
    finally:
        neighbour.kill()
        neighbour.wait()


class Limits:
    """What the machine can do now: multiplications of matrices, and reading memory."""

    def __init__(self, threads: int) -> None:
        self.a = np.random.default_rng(0).standard_normal((1024, 1024), np.float32)
        self.long = np.ones(2**26, np.float32)  # 256 MiB, beyond any cache
        self.parts = np.array_split(self.long, threads)
        self.pool = ThreadPoolExecutor(threads)

    def product(self) -> None:
        np.dot(self.a, self.a)

    def read(self) -> None:
        list(self.pool.map(np.sum, self.parts))

    def measure(self) -> dict[str, float]:
        """Give GFLOP/s and GB/s: the best of some tries, as the limit is what could be."""
        self.product(), self.read()
        product = min(seconds(self.product) for _ in range(7))
        read = min(seconds(self.read) for _ in range(4))
        return {"gflops": 2 * 1024**3 / product / 1e9, "gbytes": self.long.nbytes / read / 1e9}
