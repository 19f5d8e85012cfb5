"""The bench: its peers compute the same thing, and a result can be drawn."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from bench import measure, peers, report  # noqa: E402
from bench.groups import GROUPS  # noqa: E402
from bench.peers import Shape  # noqa: E402


@pytest.mark.parametrize("causal", [False, True])
def test_all_peers_compute_the_same(causal):
    pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    shape = Shape(2, 3, 67, 67, 16, causal)
    arrays = shape.inputs()
    outputs = {name: call() for name, call in peers.calls(shape, list(peers.PEERS), arrays).items()}
    for name, error in peers.errors(shape, arrays, outputs).items():
        assert error["largest"] < 2e-6, name


def test_turns_and_quartiles():
    times = measure.in_turns({"a": lambda: None, "b": lambda: None}, budget=0.01, least=3)
    assert len(times["a"]) == len(times["b"]) >= 3
    assert measure.quartiles([1, 2, 3, np.nan]) == [1.5, 2, 2.5]


def test_a_small_run(tmp_path):
    """One group from start to end: progress on standard error, a table on standard output."""
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--groups", "memory", "--peers", "numpy",
         "--output", str(tmp_path / "result")],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "memory" in done.stderr
    assert "| peak memory" in done.stdout
    assert (tmp_path / "result.json").exists()
    assert (tmp_path / "result.md").read_text() in done.stdout
    assert set(report.TABLES) == set(GROUPS)
