"""PyTorch's own threads compute for its tensors: to the same bits, and with none beside them."""

import sys
import textwrap

import pytest
from fresh import fresh

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="machine: threads are counted in /proc"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]

BEGIN = """
import os, threading, time, torch, regard, regard.torch
torch.set_num_threads(2), regard.threads(2)
weights = torch.randn(512, 512)
arrays = tuple(torch.randn(1, 6, size, 64).numpy() for size in (131, 211, 211))
tensors = tuple(map(torch.from_numpy, arrays))

def threads():
    return len(os.listdir("/proc/self/task"))

def expected():  # by NumPy's door, on a thread that PyTorch's tensors never came to
    found = []
    thread = threading.Thread(target=lambda: found.append(regard.attention(*arrays)))
    thread.start(), thread.join()
    while os.path.exists(f"/proc/self/task/{thread.native_id}"):
        time.sleep(0.001)  # the system's thread ends a little later than Python's
    return torch.from_numpy(found[0])
"""


def after(code: str) -> list[str]:
    """The lines that a new interpreter prints after the beginning."""
    return fresh(BEGIN + textwrap.dedent(code), seconds=100).splitlines()


def test_tensors_start_no_threads_beside_pytorchs():
    said = after("""
        weights @ weights
        before = threads()
        out = regard.torch.scaled_dot_product_attention(*tensors)
        masked = regard.attention(*tensors, mask=torch.ones(211, dtype=torch.bool))
        asked = [t.clone().requires_grad_() for t in tensors]
        regard.attention(*asked, causal=True, query_offset=80).sum().backward()
        regard.look(*tensors).top(3)
        model = torch.nn.MultiheadAttention(64, 4, batch_first=True).eval()
        with torch.no_grad(), regard.record(model) as seen:
            model(*[torch.randn(1, 211, 64)] * 3)
        seen.check(), seen.heads()
        print(threads() - before)
        assert torch.equal(out, expected()) and torch.equal(masked, out)
        print(threads() - before)
    """)
    assert said == ["0", "1"]  # the second is the pool's, which NumPy's arrays use


@pytest.mark.parametrize(("theirs", "ours"), [(1, 2), (3, 2), (2, 3), (2, 1)])
def test_unequal_numbers_of_threads(theirs, ours):
    assert after(f"""
        torch.set_num_threads({theirs}), regard.threads({ours})
        weights @ weights
        assert torch.equal(regard.attention(*tensors), expected())
        print("equal")
    """) == ["equal"]


def test_a_child_of_fork_does_not_wait_for_threads_that_it_lacks():
    assert after("""
        weights @ weights
        truth = regard.attention(*tensors)
        for _ in range(20):
            child = os.fork()
            if not child:
                found = regard.attention(*tensors)
                os._exit(0 if found.numpy().tobytes() == truth.numpy().tobytes() else 2)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert torch.equal(regard.attention(*tensors), truth)
        print("equal")
    """) == ["equal"]


def test_eight_callers_at_once():
    assert after("""
        from concurrent.futures import ThreadPoolExecutor
        def compute(_):
            weights @ weights
            return regard.attention(*tensors)
        with ThreadPoolExecutor(8) as callers:
            found = list(callers.map(compute, range(400)))
        truth = expected()
        assert all(torch.equal(f, truth) for f in found)
        print("equal")
    """) == ["equal"]


def test_an_interrupt_ends_a_long_call():
    said = after("""
        import signal, time
        long = torch.randn(1, 64, 8209, 64)
        begin = time.perf_counter()
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            regard.attention(long, long, long)
        except KeyboardInterrupt:
            print("interrupted", time.perf_counter() - begin < 10)
        assert torch.equal(regard.attention(*tensors), expected())
        print("right")
    """)
    assert said == ["interrupted True", "right"]


def test_where_no_pytorch_is_loaded_there_is_no_team():
    said = fresh("""
        import numpy as np, regard
        regard._kernel.join_team(), regard.threads(2)
        x = np.ones((2, 300, 64), np.float32)
        print(regard.attention(x, x, x).sum())
    """)
    assert said == "38400.0\n"
