"""The pool: the same bits from any number of threads, callers and forks, and no one waits.

What its pieces promise to each other is tested in C++ (kernel/tests/selftest.cpp), also under
ThreadSanitizer.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from fresh import fresh as new

import regard
from regard import _kernel

# Enough work for several threads, and sizes that leave rests everywhere.
SHARED = ((2, 6, 131, 64), (2, 3, 211, 64), (2, 3, 211, 37))
fresh = partial(new, seconds=None)  # pytest ends it
FORKS = hasattr(os, "fork")


@pytest.fixture(autouse=True)
def put_back():
    before = _kernel.threads()
    yield
    _kernel.set_threads(before)


def call(seed: int, dtype=np.float32) -> tuple[tuple[np.ndarray, ...], dict]:
    """A random call: small ones, which one thread computes, and larger ones, which many do."""
    random = np.random.default_rng(seed)
    heads = int(random.integers(1, 4)) * (groups := int(random.integers(1, 3)))
    rows, keys = (int(random.choice([1, 5, 17, 61, 103, 257])) for _ in range(2))
    width, value_width = (int(random.choice([3, 16, 29, 64])) for _ in range(2))
    shapes = ((heads, rows, width), (groups, keys, width), (groups, keys, value_width))
    options = {"causal": True, "query_offset": keys - rows} if random.integers(2) else {}
    return tuple(random.standard_normal(shape).astype(dtype) for shape in shapes), options


def answer(arrays: tuple[np.ndarray, ...], options: dict) -> bytes:
    output, lse = regard.attention(*arrays, return_lse=True, **options)
    return output.tobytes() + lse.tobytes()


def large(seed: int = 0) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(seed)
    return tuple(random.standard_normal(shape).astype(np.float32) for shape in SHARED)


# ---------------------------------------------------------------------------- threads


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(
    "options", [{}, {"causal": True, "query_offset": 80}], ids=["all", "causal"]
)
def test_any_number_of_threads_gives_the_same_bits(kernel, dtype, options):
    arrays = tuple(array.astype(dtype) for array in large())
    found = set()
    for count in (1, 2, 3, 7):
        with regard.threads(count):
            found.add(answer(arrays, options))
    assert len(found) == 1


def test_eight_callers_at_once():
    callers, calls = 8, 1000
    with regard.threads(1):
        expected = [answer(*call(seed)) for seed in range(100)]
    regard.threads(3)
    ready = threading.Barrier(callers)

    def compute(number: int) -> int:
        ready.wait()
        order = np.random.default_rng(number).integers(0, len(expected), calls)
        return sum(answer(*call(seed)) != expected[seed] for seed in order)

    with ThreadPoolExecutor(callers) as pool:
        assert sum(pool.map(compute, range(callers))) == 0


def test_others_run_while_a_call_computes():
    """The GIL is free: a thread that counts goes on while another is in one long call."""
    query, key, value = np.random.default_rng(0).standard_normal((3, 1, 4099, 64), np.float32)
    ticks, done = [], threading.Event()

    def count() -> None:
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    with regard.threads(1):
        thread.start()
        begin = time.perf_counter()
        regard.attention(query, key, value)
        end = time.perf_counter()
        done.set()
        thread.join()
    assert sum(begin < tick < end for tick in ticks) >= 5


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="a worker that shares the caller's core is sent off it where there are two, on Linux",
)
def test_workers_sent_off_a_core_are_as_free_as_before_and_pinned_ones_stay():
    code = """
    import os, subprocess, sys, time
    import numpy as np
    import regard

    arrays = np.random.default_rng(0).standard_normal((3, 6, 509, 64)).astype(np.float32)
    regard.threads(3)
    before = {int(name) for name in os.listdir("/proc/self/task")}
    expected = regard.attention(*arrays)
    workers = {int(name) for name in os.listdir("/proc/self/task")} - before
    everywhere, here = os.sched_getaffinity(0), {min(os.sched_getaffinity(0))}
    assert len(workers) == 2

    def stay(cores):  # the last call may have sent one away who has not run since
        end = time.monotonic() + 20
        while any(os.sched_getaffinity(worker) != cores for worker in workers):
            assert time.monotonic() < end, [os.sched_getaffinity(worker) for worker in workers]
            time.sleep(0.01)

    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in everywhere]
    try:
        for cores in (everywhere, here, everywhere):
            for worker in workers:
                os.sched_setaffinity(worker, cores)
            for _ in range(30):
                assert (regard.attention(*arrays) == expected).all()
                time.sleep(0.001)
            stay(cores)
    finally:
        for process in busy:
            process.kill()
    print("good")
    """
    assert fresh(code) == "good\n"


def test_subnormal_numbers_count_on_every_thread():
    """A library may tell a thread to take them for 0, and threads inherit that or do not."""
    code = """
    import numpy as np, regard, torch
    random = np.random.default_rng(0)
    q, k = (random.standard_normal((2, 3, 211, 29)).astype("f2") for _ in range(2))
    v = np.full((2, 3, 211, 29), 6e-7, "f2")
    answers = set()
    for flush in (False, True):
        torch.set_flush_denormal(flush)
        for count in (1, 2, 3):
            with regard.threads(count):
                answers.add(regard.attention(q, k, v).tobytes())
    assert torch.set_flush_denormal(False)
    print(len(answers), regard.attention(q, k, v).max() > 0)
    """
    assert fresh(code) == "1 True\n"


def test_fewer_threads_than_asked_for():
    """Where the system gives no more threads, those there are do the work."""
    code = """
    import resource, numpy as np, regard
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((2, 6, 211, 64)).astype("f4") for _ in range(3))
    with regard.threads(1):
        alone = regard.attention(q, k, v)
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    # A stack is 8 MiB: room for twelve threads, and half a MiB for what each computes in.
    resource.setrlimit(resource.RLIMIT_AS, (used + 103 * 2**20,) * 2)
    with regard.threads(200):
        assert regard.attention(q, k, v).tobytes() == alone.tobytes()
    print("computed")
    """
    if sys.platform != "linux":
        pytest.skip("machine: limits of memory are Linux's here")
    assert fresh(code) == "computed\n"


def test_no_memory_is_a_memory_error():
    """A workspace that can't be had ends the call, whichever thread found out."""
    code = """
    import resource, numpy as np, regard
    q = np.broadcast_to(np.float32(1), (64, 3, 2**21))  # each row as wide as 8 MiB
    k = np.broadcast_to(np.float32(1), (64, 5, 2**21))
    v = np.ones((64, 5, 1), np.float32)
    with regard.threads(2):
        regard.attention(*(np.ones((4, 97, 64), np.float32) for _ in range(3)))  # starts a worker
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 50 * 2**20,) * 2)
        try:
            regard.attention(q, k, v)
        except MemoryError:
            print("refused")
        small = np.ones((1, 2, 3), np.float32)
        print(regard.attention(small, small, small).tolist())
    """
    if sys.platform != "linux":
        pytest.skip("machine: limits of memory are Linux's here")
    assert fresh(code) == "refused\n[[[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]]\n"


# ---------------------------------------------------------------------------- forks


def in_a_fork(arrays: tuple[np.ndarray, ...], expected: bytes) -> int:
    """Compute in a child of fork, and give its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if answer(arrays, {}) == expected else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not FORKS, reason="machine: no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_two_hundred_forks():
    """Children compute with a pool of their own, whether the parent's is idle or at work."""
    regard.threads(3)
    arrays = large()
    expected = answer(arrays, {})
    assert [in_a_fork(arrays, expected) for _ in range(100)] == [0] * 100
    done = threading.Event()

    def keep_busy() -> None:
        while not done.is_set():
            regard.attention(*arrays)

    busy = threading.Thread(target=keep_busy)
    busy.start()
    try:
        assert [in_a_fork(arrays, expected) for _ in range(100)] == [0] * 100
    finally:
        done.set()
        busy.join()
    assert answer(arrays, {}) == expected


def of_seed(seed: int) -> bytes:
    return answer(large(seed), {})


@pytest.mark.skipif(not FORKS, reason="machine: no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_multiprocessing_with_fork():
    regard.threads(2)
    expected = [of_seed(seed) for seed in range(6)]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(of_seed, range(6)) == expected


def test_a_data_loader_with_workers():
    code = """
    import numpy as np, regard, torch
    from torch.utils.data import DataLoader, Dataset

    class Outputs(Dataset):
        def __len__(self):
            return 12
        def __getitem__(self, seed):
            random = np.random.default_rng(seed)
            q, k, v = (random.standard_normal((4, 131, 64)).astype("f4") for _ in range(3))
            with regard.threads(2):
                return regard.attention(q, k, v)

    data = Outputs()
    expected = np.stack([data[i] for i in range(12)])
    loader = DataLoader(data, batch_size=3, num_workers=2, multiprocessing_context="fork")
    found = torch.cat(list(loader)).numpy()
    assert found.tobytes() == expected.tobytes()
    print("equal")
    """
    pytest.importorskip("torch")
    if not FORKS:
        pytest.skip("machine: no fork here")
    assert fresh(code) == "equal\n"


# ---------------------------------------------------------------------------- interrupts


@pytest.mark.skipif(sys.platform == "win32", reason="machine: no SIGINT here")
@pytest.mark.parametrize("count", [1, 3])
def test_ctrl_c_ends_a_long_call(count):
    """With KeyboardInterrupt, in far less time than the call takes; the next call is right."""
    code = f"""
    import sys, time, numpy as np, regard
    random = np.random.default_rng(0)
    q, k, v = random.standard_normal((3, 64, 8209, 64), np.float32)  # a minute or more
    small = tuple(x[:2, :211] for x in (q, k, v))
    regard.threads({count})
    before = regard.attention(*small)
    print("begin", flush=True)
    try:
        regard.attention(q, k, v)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    assert regard.attention(*small).tobytes() == before.tobytes()
    print("right", flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "begin\n"
    time.sleep(0.3)
    begin = time.perf_counter()
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=120)
    assert rest == "interrupted\nright\n", errors
    assert time.perf_counter() - begin < 10


def test_workers_take_no_signals():
    """Signals belong to the program's own threads; a blocked one stays blocked."""
    code = """
    import os, signal, time, numpy as np, regard
    regard.threads(3)
    regard.attention(*(np.ones((4, 211, 64), np.float32) for _ in range(3)))  # starts two workers
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    os.kill(os.getpid(), signal.SIGUSR1)  # would end the process in a thread that takes it
    time.sleep(0.05)
    print(signal.sigtimedwait({signal.SIGUSR1}, 5).si_signo == signal.SIGUSR1)
    """
    if not hasattr(signal, "sigtimedwait"):
        pytest.skip("machine: no sigtimedwait here")
    # NumPy's own threads would take it.
    assert fresh(code, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1") == "True\n"
