"""How many threads compute, and on which kernel: by call, by context, by environment."""

import os
import subprocess
import sys

import pytest

import regard
from regard import _kernel


@pytest.fixture(autouse=True)
def put_back():
    before = _kernel.threads()
    yield
    _kernel.set_threads(before)


def test_a_call_sets_and_a_context_puts_back():
    regard.threads(3)
    assert _kernel.threads() == 3
    with regard.threads(2) as inside:
        assert _kernel.threads() == inside.count == 2
        with pytest.raises(RuntimeError), regard.threads(5):
            raise RuntimeError
        assert _kernel.threads() == 2
    assert _kernel.threads() == 3


def test_without_a_number_it_only_says():
    regard.threads(2)
    assert repr(regard.threads()) == "2 threads"
    assert repr(regard.threads(1)) == "1 thread"


@pytest.mark.parametrize(
    ("count", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_refused(count, error):
    with pytest.raises(error, match=rf"threads: expected .* received {count}"):
        regard.threads(count)


def started(**environment: str) -> subprocess.CompletedProcess:
    """A new interpreter that says how many threads and which kernel it would use."""
    code = "import regard; print(regard.threads().count, regard._kernel.kernel())"
    names = ("REGARD_THREADS", "OMP_NUM_THREADS", "REGARD_KERNEL")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    return subprocess.run(
        [sys.executable, "-c", code], env=clean | environment, capture_output=True, text=True
    )


CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, CORES),
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "3,1"}, 3),
        ({"OMP_NUM_THREADS": "many"}, CORES),
        ({"OMP_NUM_THREADS": "3", "REGARD_THREADS": "5"}, 5),
    ],
)
def test_environment(environment, count):
    assert started(**environment).stdout.split() == [str(count), _kernel.kernels()[-1]]


@pytest.mark.parametrize("name", _kernel.kernels())
def test_a_kernel_by_name(name):
    assert started(REGARD_KERNEL=name).stdout.split()[1] == name


@pytest.mark.parametrize(
    ("name", "value"),
    [("REGARD_THREADS", "0"), ("REGARD_THREADS", "all"), ("REGARD_KERNEL", "gpu")],
)
def test_a_wrong_environment_says_so(name, value):
    said = started(**{name: value}).stderr
    assert f"{name}: expected" in said
    assert value in said
