"""Keras's own tests of its attention layers, as they are installed, run on our classes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest

ATTENTION = Path(keras.__file__).parent / "src" / "layers" / "attention"
FILES = [
    ATTENTION / f"{name}_test.py"
    for name in ("multi_head_attention", "grouped_query_attention", "attention")
]

# The tests in which nothing of ours has to run, and why.
NOT_OURS = {
    r"MultiHead.*(high_dim|non_4d|axes_negative|different_qv)": "attends over other axes: Keras",
    r"output_shape_error|shape_mismatch|invalid|validation|errors": "is refused before",
    r"initializer|constraints|dtype_policy|serialization|preserved|symbolic": "computes nothing",
    r"compute_mask|calculate_score": "calls another method of the layer",
}

# On JAX each test compiles for seconds; these meet everything that is ours.
SOME = "masking_causal or causal_only_fast or nd_inputs or with_mask or explicit_mask_fused"


def run(backend, tmp_path, *arguments):
    """What each test did, by its name."""
    report = tmp_path / "report"
    here = Path(__file__).parent
    paths = [str(here), os.environ.get("PYTHONPATH", "")]
    own = {"KERAS_BACKEND": backend, "REGARD_REPORT": str(report), "TF_CPP_MIN_LOG_LEVEL": "2"}
    own |= {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "keras_plugin", "-p", "no:cacheprovider"]
    command += ["--rootdir", str(tmp_path), "-c", os.devnull, *arguments, *map(str, FILES)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=900, env=os.environ | own, cwd=tmp_path
    )
    said = f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    assert done.returncode == 0, said
    lines = map(json.loads, report.read_text().splitlines())
    return {line["test"]: line for line in lines}


def judge(found):
    for name, line in found.items():
        if line["outcome"] == "skipped":
            assert "lash attention" in line["reason"], line
        elif not line["kernel"]:
            assert any(re.search(pattern, name) for pattern in NOT_OURS), (
                f"{name} met nothing of ours"
            )


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_keras_own_tests(backend, tmp_path):
    found = run(backend, tmp_path)
    assert len(found) >= 112
    judge(found)
    assert sum(line["kernel"] > 0 for line in found.values()) >= 40


def test_some_of_keras_own_tests_on_jax(tmp_path):
    found = run("jax", tmp_path, "-k", SOME)
    judge(found)


@pytest.mark.long
def test_all_of_keras_own_tests_on_jax(tmp_path):
    found = run("jax", tmp_path)
    assert len(found) >= 112
    judge(found)
