"""Nothing outside an array is touched: each one lies against memory that may not be."""

import subprocess
import sys

import pytest

import regard

pytestmark = pytest.mark.usefixtures("kernel")

GUARDED = """
import ctypes, itertools, mmap, sys
import ml_dtypes, numpy as np, regard
from regard import _kernel
_kernel.use_kernel(sys.argv[1])
page, kept = mmap.PAGESIZE, []
libc = ctypes.CDLL(None, use_errno=True)

def guarded(array, at_end):
    # A copy that ends (or begins) where memory that may not be touched begins (or ends).
    pages = -(-max(array.nbytes, 1) // page)
    room = mmap.mmap(-1, (pages + 2) * page)
    kept.append(room)
    start = ctypes.addressof(ctypes.c_char.from_buffer(room))
    for edge in (start, start + (pages + 1) * page):
        assert libc.mprotect(ctypes.c_void_p(edge), page, 0) == 0
    offset = page + (pages * page - array.nbytes if at_end else 0)
    copy = np.frombuffer(room, np.uint8, array.nbytes, offset).view(array.dtype)
    copy = copy.reshape(array.shape)
    copy[...] = array
    return copy

random = np.random.default_rng(0)
sizes = itertools.product((1, 30), (1, 7, 65), (1, 16, 23), (16, 19))
types = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)
sides = [(dtype, True) for dtype in types] + [(np.float32, False)]
for (T, S, D, V), (dtype, at_end) in itertools.product(sizes, sides):
    make = lambda *shape: guarded(random.standard_normal(shape).astype(dtype), at_end)
    q, k, v = make(4, T, D), make(2, S, D), make(2, S, V)
    mask = guarded(random.random((4, T, S)) < 0.8, at_end)
    options = [
        {}, {"mask": mask}, {"bias": make(4, T, S)}, {"sinks": make(4)},
        {"causal": True, "query_offset": S - T},
        {"ranges": guarded(np.sort(random.integers(0, S + 1, (2, T)), axis=0), at_end)},
        {"segments": (guarded(random.integers(0, 3, T), at_end),
                      guarded(random.integers(0, 3, S), at_end))},
    ]
    for option in options:
        regard.look(q, k, v, **option).weights[...]
    regard.attention(q[..., ::-1, ::-1], k, v[..., ::-1, ::-1], mask=mask[..., ::-1])
print("done")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="machine: needs mprotect")
def test_nothing_outside_an_array_is_touched():
    kernel = regard._kernel.kernel()
    done = subprocess.run([sys.executable, "-c", GUARDED, kernel], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.returncode} {done.stderr}"
    assert done.stdout == "done\n"
