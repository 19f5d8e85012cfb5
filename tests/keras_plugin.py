"""Loaded by pytest in a process of its own (`-p keras_plugin`): Keras's own tests meet our layers.

What each test did is written, a line of JSON each, to the file that REGARD_REPORT names.
"""

import json
import os

import pytest
from keras.src import layers

import regard.keras
from regard import _kernel

layers.MultiHeadAttention = regard.keras.MultiHeadAttention
layers.GroupedQueryAttention = regard.keras.GroupQueryAttention
layers.Attention = regard.keras.Attention


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "setup":
        item.calls_before = sum(_kernel.calls()[:2])
    skipped_here = call.when == "setup" and report.skipped
    if call.when == "call" or skipped_here:
        line = {
            "test": f"{item.cls.__name__}.{item.name}",
            "outcome": report.outcome,
            "kernel": sum(_kernel.calls()[:2]) - item.calls_before,
            "reason": str(report.longrepr) if report.outcome != "passed" else "",
        }
        with open(os.environ["REGARD_REPORT"], "a") as file:
            file.write(json.dumps(line) + "\n")
    return report
