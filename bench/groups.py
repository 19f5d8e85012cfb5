"""What is measured: groups of problems, who takes part, and how a group becomes rows of results.

In each group problems are in rising order: `--quick` takes the first, README shows the last.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.apart import Apart
from bench.limits import WORK
from bench.measure import busy_neighbour, in_bursts, in_turns, quartiles, spread
from bench.peers import Cannot
from bench.problems import Problem, error

Row = dict[str, Any]
Found = dict[str, dict[str, Any]]

FEW = ["regard", "torch", "onnxruntime"]
MOST = [*FEW, "jax.nn", "keras, tensorflow", "numpy"]
ALL = [*MOST, "keras, jax"]  # which calls jax.nn: measured where it is not all the same
GROUPED = ["regard", "torch", "torch enable_gqa", "torch folded rows", *MOST[2:]]
MOST_MEBIBYTES = 4096  # growth: a peer stops where its next call would need more than this ...
MOST_SECONDS = 25.0  # ... or would take longer than this


@dataclass(frozen=True)
class Group:
    """Some problems of a kind. `bound`: the limit of the machine that the work runs into."""

    title: str
    problems: list[Problem]
    peers: list[str]
    rows: Callable[..., Iterator[Row]]
    bound: str = "gflops"


def turns(group: Group, peers: dict[str, Apart], limits: Apart, quick: bool) -> Iterator[Row]:
    """Each problem by turns: times, ratios, errors, memory, and the machine's limits meanwhile."""
    for problem in group.problems[: 1 if quick else None]:
        found = prepared(problem, peers)
        able = {name: peer for name, peer in peers.items() if "first" in found[name]}
        first = {name: found[name].pop("first") for name in able}
        limits.ask("prepare", group.bound)
        everybody, starts = {**able, "limits": limits}, {**first, "limits": 0.0}
        times = in_turns(everybody, starts, *((0.5, 2) if quick else (5, 3)))
        limit = WORK[group.bound] / np.array(times.pop("limits")) / 1e9
        work = problem.operations if group.bound == "gflops" else problem.bytes_of_keys
        for name, taken in times.items():
            found[name]["seconds"] = quartiles(taken)
            found[name]["rounds"] = int(np.isfinite(taken).sum())
            found[name]["share"] = quartiles(work / np.array(taken) / 1e9 / limit)[1]
            if "regard" in times:
                found[name]["ratio"] = quartiles(np.array(taken) / np.array(times["regard"]))
        reached = {group.bound: float(np.median(limit))}
        yield {"problem": problem.name, "limit": reached, "peers": found}


def prepared(problem: Problem, peers: dict[str, Apart]) -> Found:
    """The first call of each: its time, memory and error, or why there is none."""
    truth, found = problem.truth(), {}
    for name, peer in peers.items():
        try:
            seconds, grown, sample = peer.ask("prepare", problem)
        except Cannot as reason:
            found[name] = {"cannot": str(reason)}
        else:
            found[name] = {"first": seconds, "mebibytes": grown, "error": error(sample, truth)}
    return found


def bursts(group: Group, peers: dict[str, Apart], limits: Apart, quick: bool) -> Iterator[Row]:
    """Short calls, every one timed: alone, and while another process keeps one core busy."""
    for problem in group.problems:
        found = prepared(problem, peers)
        able = {name: peer for name, peer in peers.items() if "first" in found[name]}
        number = 200 if quick else 2000 if problem.rows < 100 else 500
        for neighbour in (False, True):
            with busy_neighbour() if neighbour else nullcontext():
                times = in_bursts(able, number)
            yield {
                "problem": problem.name + ", beside a busy process" * neighbour,
                "peers": {
                    name: {"microseconds": spread(times[name])} if name in able else found[name]
                    for name in peers
                },
            }


def lengths(group: Group, peers: dict[str, Apart], limits: Apart, quick: bool) -> Iterator[Row]:
    """Time and memory, T = S doubled each time; a peer stops before it goes beyond the limits."""
    memory: dict[str, list[float]] = {name: [] for name in peers}
    stopped: dict[str, str] = {}
    for problem in group.problems[: 4 if quick else None]:
        going = {name: peer for name, peer in peers.items() if name not in stopped}
        found = prepared(problem, going) | {name: {"cannot": why} for name, why in stopped.items()}
        able = {name: peer for name, peer in going.items() if "first" in found[name]}
        first = {name: found[name].pop("first") for name in able}
        again = {name: peer for name, peer in able.items() if first[name] < 3}
        times = in_turns(again, dict.fromkeys(again, 0.0), 0, 3) if again else {}
        for name in able:
            found[name]["seconds"] = quartiles(times.get(name, [first[name]]))
            memory[name].append(found[name]["mebibytes"] or 0)
            if 4 * found[name]["seconds"][1] > MOST_SECONDS:
                stopped[name] = f"would take more than {MOST_SECONDS:.0f} s"
            if len(memory[name]) > 1 and memory[name][-1] > 64:
                following = memory[name][-1] ** 2 / max(memory[name][-2], 1)
                if following > MOST_MEBIBYTES:
                    stopped[name] = f"would need more than {MOST_MEBIBYTES / 1024:.0f} GiB"
        yield {"problem": problem.name, "length": problem.rows, "peers": found}


FORWARD = [
    Problem(1, 12, 128, 128, 32),
    Problem(1, 12, 512, 512, 32),
    Problem(8, 12, 512, 512, 64),
    Problem(1, 16, 2048, 2048, 128),
    Problem(1, 1, 8192, 8192, 64),
    Problem(1, 9, 4096, 4096, 64),
]
DECODE = [
    Problem(1, 32, 1, keys, 128, key_heads=8, dtype=dtype)
    for keys in (8192, 32768)
    for dtype in ("bfloat16", "float32")
]
CUT = ["torch by pieces", "torch flex"]

GROUPS = {
    "forward": Group("forward", FORWARD, ALL, turns),
    "causal": Group(
        "causal",
        [Problem(8, 12, 512, 512, 64, causal=True), Problem(1, 9, 4096, 4096, 64, causal=True)],
        MOST, turns,
    ),
    "masked": Group(
        "masked",
        [
            Problem(1, 9, 2048, 2048, 64, rule="mask"),
            Problem(1, 9, 2048, 2048, 64, rule="bias"),
            Problem(8, 12, 1024, 1024, 64, rule="padding"),
            Problem(1, 2, 8192, 8192, 64, rule="segments"),
            Problem(1, 2, 8192, 8192, 64, rule="window"),
        ],
        ["regard", "torch", *CUT, *MOST[2:]], turns,
    ),
    "grouped": Group(
        "grouped heads",
        [
            Problem(1, 9, 2048, 2048, 64, key_heads=3),
            Problem(1, 32, 1024, 1024, 128, key_heads=8, causal=True),
        ],
        GROUPED, turns,
    ),
    "decode": Group("decoding", DECODE, GROUPED, turns, bound="gbytes"),
    "looks": Group(
        "forward and looks",
        [Problem(1, 9, 1024, 1024, 64), Problem(1, 9, 4096, 4096, 64)],
        ["regard", "regard + top 8", "regard + all looks", "torch", "onnxruntime"], turns,
    ),
    "backward": Group(
        "forward and backward",
        [
            Problem(2, 12, 512, 512, 64, backward=True),
            Problem(1, 9, 2048, 2048, 64, causal=True, backward=True),
        ],
        ALL, turns,
    ),
    "bfloat16": Group(
        "bfloat16", [replace(p, dtype="bfloat16") for p in FORWARD[2:]],
        ["regard", "torch", "jax.nn"], turns,
    ),
    "small": Group(
        "short calls",
        [Problem(1, 4, 16, 16, 64), Problem(1, 12, 128, 128, 32)],
        ["regard", "onnxruntime", "numpy", "regard from torch", "torch", *ALL[3:5], "keras, jax"],
        bursts,
    ),
    "growth": Group(
        "growth", [Problem(1, 1, 2**n, 2**n, 64) for n in range(8, 17)], MOST, lengths
    ),
}  # fmt: skip
