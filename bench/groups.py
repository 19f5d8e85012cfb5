"""What is measured. A group is a function that yields one row, a dictionary, for each problem.

To add a group, write such a function and name it in `GROUPS`; bench/report.py draws its rows by
their `kind`.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from bench import peers
from bench.measure import Limits, busy_neighbour, in_bursts, in_turns, quartiles, spread
from bench.peers import Shape

FORWARD = [
    Shape(1, 12, 128, 128, 32),
    Shape(1, 12, 512, 512, 32),
    Shape(8, 12, 512, 512, 64),
    Shape(1, 9, 4096, 4096, 64, causal=True),
    Shape(1, 16, 2048, 2048, 128),
    Shape(1, 1, 8192, 8192, 64),
    Shape(1, 9, 4096, 4096, 64),
]
SMALL = [Shape(1, 4, 16, 16, 64), Shape(1, 12, 128, 128, 32)]


def forward(names: list[str], threads: int, quick: bool) -> Iterator[dict[str, Any]]:
    """Float32 forward passes: time by turns, error, and the share of the machine's limit."""
    limits = Limits(threads)
    for shape in FORWARD[: -1 if quick else None]:  # the last takes longest
        arrays = shape.inputs()
        calls = peers.calls(shape, names, arrays)
        error = peers.errors(shape, arrays, {name: call() for name, call in calls.items()})
        before = limits.measure()
        times = in_turns(calls, *((3, 3) if quick else (60, 12)))
        after = limits.measure()
        limit = {name: max(before[name], after[name]) for name in before}
        rate = {name: shape.operations / quartiles(t)[1] / 1e9 for name, t in times.items()}
        yield {
            "kind": "forward",
            "problem": shape.name,
            "rounds": len(times["regard"]),
            "milliseconds": {name: [x * 1e3 for x in quartiles(t)] for name, t in times.items()},
            "ratio": {
                name: quartiles(np.array(t) / np.array(times["regard"]))
                for name, t in times.items()
                if name != "regard"
            },
            "gflops": rate,
            "limit": limit,
            "share": {name: rate[name] / limit["gflops"] for name in rate},
            "error": error,
        }


def small(names: list[str], threads: int, quick: bool) -> Iterator[dict[str, Any]]:
    """Short calls, every one timed: alone, and while another process keeps one core busy."""
    for shape in SMALL:
        number = (1000 if quick else 5000) // (1 if shape.rows < 100 else 4)
        calls = peers.calls(shape, names)
        for neighbour in (False, True):
            with busy_neighbour() if neighbour else nullcontext():
                times = in_bursts(calls, number)
            yield {
                "kind": "small",
                "problem": shape.name,
                "neighbour": neighbour,
                "calls": number,
                "microseconds": {name: spread(t) for name, t in times.items()},
            }


def memory(names: list[str], threads: int, quick: bool) -> Iterator[dict[str, Any]]:
    """Peak memory of one call beyond its inputs, each peer in a process of its own; on Linux."""
    if sys.platform != "linux":
        return
    length = 4096 if quick else 8192
    shape = Shape(1, 4, length, length, 64)
    grown = {}
    for name in names:
        code = f"from bench import groups; groups.print_growth({name!r}, {length}, {threads})"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        grown[name] = float(done.stdout)
    output = shape.inputs()[0].nbytes / 2**20
    yield {"kind": "memory", "problem": shape.name, "output": output, "mebibytes": grown}


def print_growth(name: str, length: int, threads: int) -> None:
    """Print by how many MiB the peak of this process rises above what it holds before a call."""
    peers.set_threads(threads)
    shape = Shape(1, 4, length, length, 64)
    peers.calls(Shape(1, 4, 64, 64, 64), [name])[name]()  # what is loaded once is not the call's
    call = peers.calls(shape, [name])[name]
    status, forget = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    forget.write_text("5")  # Linux: the peak begins anew at what is held now
    before = _kibibytes(status, "VmHWM")
    held = call()
    print((_kibibytes(status, "VmHWM") - before) / 1024, flush=True)
    del held


def _kibibytes(status: Path, field: str) -> int:
    (line,) = (line for line in status.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1])


GROUPS = {"forward": forward, "small": small, "memory": memory}
