"""A peer in a process of its own, that does one thing at a time when it is told to.

So every peer has its own threads, its own backend and its own memory, which can be measured; one
that is not installed, or dies, takes nobody along. Arrays are made over there: what travels is a
problem, and back come seconds, MiB and a sample of the answer.
"""

import contextlib
import ctypes
import gc
import multiprocessing
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import peers
from bench.limits import Limits
from bench.measure import settle
from bench.problems import Array, Problem

TINY = Problem(1, 2, 16, 16, 32)
SHORT = 0.020  # seconds: shorter calls are repeated that long


class Apart:
    """The near end of such a process. `name` is a peer's, or "limits"."""

    def __init__(self, name: str, threads: int) -> None:
        # Libraries read these when they are imported; the process to come inherits them.
        os.environ |= {
            "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads),
            "OPENBLAS_NUM_THREADS": str(threads), "REGARD_THREADS": str(threads),
            "TF_NUM_INTRAOP_THREADS": str(threads), "TF_NUM_INTEROP_THREADS": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }  # fmt: skip
        self.name = name
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, name, threads), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, order: str, *arguments: Any) -> Any:
        """Do one thing and give its answer. Raises `peers.Cannot` with the reason why not."""
        try:
            self.connection.send((order, *arguments))
            done, answer = self.connection.recv()
        except (EOFError, OSError):
            raise peers.Cannot("its process ended, perhaps for want of memory") from None
        if not done:
            raise peers.Cannot(answer)
        return answer

    def settle(self) -> None:
        """Wait until everything is loaded and still, or known to be missing."""
        with contextlib.suppress(peers.Cannot):
            self.ask("rest")

    def end(self) -> None:
        self.process.kill()
        self.process.join()


def serve(connection: Any, name: str, threads: int) -> None:
    """The far end: answers until it is ended."""
    if hasattr(os, "sched_setaffinity"):  # XLA has as many threads as there are cores
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    worker, lacking = None, ""
    try:
        worker = Limits(threads) if name == "limits" else Worker(name)
    except Exception as error:
        lacking = _in_words(error)
    while True:
        order, *arguments = connection.recv()
        if worker is None:
            connection.send((False, lacking))
            continue
        try:
            connection.send((True, getattr(worker, order)(*arguments)))
        except Exception as error:
            connection.send((False, _in_words(error)))


def _in_words(error: Exception) -> str:
    kind = "" if isinstance(error, peers.Cannot) else f"{type(error).__name__}: "
    return (kind + str(error)).splitlines()[0][:200]


class Worker:
    """One peer, with one problem at hand."""

    def __init__(self, name: str) -> None:
        self.peer = peers.find(name)
        self.ready: peers.Ready | None = None
        self.warm: set[tuple[str, bool]] = set()
        self._warm_up(TINY)

    def rest(self) -> None:
        """Answer once everything is loaded and still."""
        settle()

    def _warm_up(self, problem: Problem) -> None:
        """What a library loads or starts at its first call of a kind is not a problem's memory."""
        kind = problem.dtype, problem.backward
        if kind in self.warm:
            return
        self.warm.add(kind)
        with contextlib.suppress(peers.Cannot):
            self.peer(replace(TINY, dtype=problem.dtype, backward=problem.backward)).call()

    def prepare(self, problem: Problem) -> tuple[float, float | None, list[Array]]:
        """Make a problem ready; seconds, MiB beyond the inputs and a sample, of its first call."""
        self.ready = None
        self._warm_up(problem)
        gc.collect()
        self.ready = self.peer(problem)
        before = _peak_from_now()
        begin = time.perf_counter()
        answer = self.ready.call()
        seconds = time.perf_counter() - begin
        grown = None if before is None else (_kibibytes("VmHWM") - before) / 1024
        sample = problem.sample(self.ready.arrays(answer))
        settle()
        return seconds, grown, sample

    def time(self) -> float:
        """Seconds of a call; of a short one the median of some, but for the first: it finds all
        caches cold, and threads that have to be woken.
        """
        times = self._times(1)
        if times[0] < SHORT:
            begin, times = time.perf_counter(), []
            while not times or time.perf_counter() - begin < SHORT:
                times += self._times(1)
        settle()
        return sorted(times)[len(times) // 2]

    def burst(self, number: int) -> list[float]:
        """Seconds of each of many calls; the first after a pause finds cold caches, and is not."""
        self._times(1)
        times = self._times(number)
        settle()
        return times

    def _times(self, number: int) -> list[float]:
        times = []
        call = self.ready.call
        for _ in range(number):
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
        return times


def _peak_from_now() -> int | None:
    """Let the peak begin anew, on Linux, and give what is held now, in KiB."""
    if sys.platform != "linux":
        return None
    with contextlib.suppress(AttributeError):  # not every C library has it
        ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _kibibytes("VmHWM")


def _kibibytes(field: str) -> int:
    (line,) = (
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith(field)
    )
    return int(line.split()[1])
