"""Measuring in turns: a call of each peer after another, and ratios within a round.

On a shared machine an absolute time says little; what two peers take in the same round is
comparable. Each begins when the threads of the last one have gone to sleep (`settle`).
"""

import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

WINDOW = 0.025  # seconds, some ticks of any kernel: several count the time of a process in ticks


class Asked(Protocol):
    """What is measured: bench.apart.Apart, or what a test puts in its place."""

    def ask(self, order: str, *arguments: Any) -> Any:
        """Do one thing and give its answer."""


def in_turns(
    peers: Mapping[str, Asked], first: Mapping[str, float], budget: float, least: int
) -> dict[str, list[float]]:
    """Time rounds of one call each, at least some, until the budget of seconds is spent.

    Who took more than an eighth of the budget for the first call sits out after one round: NaN.
    """
    times: dict[str, list[float]] = {name: [] for name in peers}
    begin, names, turn = time.perf_counter(), list(peers), 0
    shuffled = random.Random(0)
    while turn < least or (turn < 100 and time.perf_counter() < begin + budget):
        shuffled.shuffle(names)  # so that none comes after the same neighbour every time
        for name in names:
            out = turn >= 1 and first[name] > budget / 8
            times[name].append(np.nan if out else peers[name].ask("time"))
        turn += 1
    return times


def quartiles(numbers: Any) -> list[float]:
    """The first quartile, the median and the third, of those that are numbers."""
    numbers = np.asarray(numbers, float)
    return [float(x) for x in np.percentile(numbers[~np.isnan(numbers)], [25, 50, 75])]


def in_bursts(peers: Mapping[str, Asked], number: int, burst: int = 50) -> dict[str, list[float]]:
    """Time every single one of many short calls, in bursts by turns."""
    times: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(number // burst):
        for name, peer in peers.items():
            times[name] += peer.ask("burst", burst)
    return times


def spread(times: list[float]) -> dict[str, float]:
    """What users of short calls feel: median, mean and 99th percentile, in microseconds."""
    found = np.array(times) * 1e6
    return {
        "median": float(np.median(found)),
        "mean": float(found.mean()),
        "p99": float(np.percentile(found, 99)),
    }


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


def settle(most: float = 0.5) -> None:
    """Wait until this process is at rest: many libraries' threads spin for a while after a call."""
    end = time.perf_counter() + most
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(WINDOW)
        if time.process_time() - before < 0.001:
            return
