"""What a reader must know to judge results: the machine, the versions, and how quiet it was."""

import datetime
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from regard import _kernel

ROOT = Path(__file__).parent.parent
LIBRARIES = ("numpy", "torch", "onnxruntime", "jax", "keras", "tensorflow")


def setting(threads: int) -> dict[str, Any]:
    """The machine and the versions that all results depend on."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "kernel": _kernel.kernel(),
        "regard": commit() or version("regard"),
        "python": platform.python_version(),
        "versions": {name: found for name in LIBRARIES if (found := _version(name))},
        "load before": load(),
    }


def today() -> str:
    return datetime.datetime.now().astimezone().isoformat(" ", "minutes")


def now() -> str:
    """For groups that are measured anew: when, of what, and beside how much else."""
    return f"{today()}, regard {commit() or version('regard')}, load {load()}"


def processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    )
    return done.stdout.strip()


def load() -> float | None:
    """How many processes wanted a core in the last minute: how quiet the machine was."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _version(name: str) -> str:
    for distribution in (name, f"{name}-cpu"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            pass
    return ""
