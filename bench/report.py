"""Results as Markdown tables, and what a reader must know about the machine to judge them."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from regard import _kernel

ROOT = Path(__file__).parent.parent


def processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def setting(threads: int) -> dict[str, Any]:
    """The machine, the versions and the settings that all results depend on."""
    import torch

    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    names = ("numpy", "torch", "onnxruntime")
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "kernel": _kernel.kernel(),
        "regard": commit or version("regard"),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in names},
        "torch float32 matmul precision": torch.get_float32_matmul_precision(),
        "load before": load(),
    }


def load() -> float | None:
    """How many processes wanted a core in the last minute: how quiet the machine was."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def forward(rows: list[dict[str, Any]], names: list[str]) -> str:
    others = [name for name in names if name != "regard"]
    head = ["float32, forward", "regard", *(f"× {name}" for name in others), "share of peak"]
    head.append("error, rms: " + " / ".join(names))
    body = []
    for row in rows:
        low, middle, high = row["milliseconds"]["regard"]
        cells = [row["problem"], f"{middle:.3g} ms [{low:.3g}–{high:.3g}]"]
        for name in others:
            low, middle, high = row["ratio"][name]
            cells.append(f"**{middle:.2f}** [{low:.2f}–{high:.2f}]")
        cells.append(f"{row['share']['regard']:.0%} of {row['limit']['gflops']:.0f} GFLOP/s")
        cells.append(" / ".join(f"{row['error'][name]['rms']:.1e}" for name in names))
        body.append(cells)
    return table(head, body)


def small(rows: list[dict[str, Any]], names: list[str]) -> str:
    head = ["short calls, µs: median / mean / p99", *names]
    body = [
        [
            row["problem"] + ", beside a busy process" * row["neighbour"],
            *(
                " / ".join(f"{row['microseconds'][name][k]:.0f}" for k in ("median", "mean", "p99"))
                for name in names
            ),
        ]
        for row in rows
    ]
    return table(head, body)


def memory(rows: list[dict[str, Any]], names: list[str]) -> str:
    head = ["peak memory beyond the inputs, MiB", "the output itself", *names]
    body = [
        [
            row["problem"],
            f"{row['output']:.0f}",
            *(f"{row['mebibytes'][name]:.0f}" for name in names),
        ]
        for row in rows
    ]
    return table(head, body)


TABLES = {"forward": forward, "small": small, "memory": memory}


def markdown(result: dict[str, Any]) -> str:
    """The whole result, to read."""
    where, names = result["setting"], result["peers"]
    versions = ", ".join(f"{name} {number}" for name, number in where["versions"].items())
    parts = [
        f"# regard beside {', '.join(names[1:])}\n\n"
        f"{where['processor']}, {where['cores']} cores, {where['threads']} threads each; kernel "
        f"{where['kernel']}; regard {where['regard']}, {versions}, Python {where['python']}; "
        f"torch float32 matmul precision '{where['torch float32 matmul precision']}'. Load of the "
        f"machine {where['load before']} before, {where['load after']} after (above 0 before: "
        f"others were at work). {result['date']}{', quick' * result['quick']}.\n"
    ]
    if any(row["kind"] == "forward" for row in result["rows"]):
        parts.append(
            "× is the peer's time over regard's in the same round, median [quartiles]: above 1 "
            "regard is faster. Peak is a float32 matrix product of NumPy's in the same run.\n"
        )
    for kind, draw in TABLES.items():
        if rows := [row for row in result["rows"] if row["kind"] == kind]:
            parts.append(draw(rows, names))
    return "\n".join(parts)
