"""What PyTorch's tensors can do to careless code, each in a process of its own where it matters."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from fresh import fresh as new

import regard
from regard import _kernel
from regard.torch import scaled_dot_product_attention


def fresh(code: str, *arguments: object) -> str:
    return new(code, *arguments, seconds=120).strip()


def test_a_value_longer_than_the_key_is_refused():
    # PyTorch takes the number of keys from the value and reads past the key, sometimes past memory.
    said = fresh("""
        import torch, regard
        from regard.torch import scaled_dot_product_attention
        q, k, v = torch.ones(1, 2, 3, 64), torch.ones(1, 2, 5, 64), torch.ones(1, 2, 2**20, 64)
        for run in (regard.attention, scaled_dot_product_attention):
            for value in (v, v[:, :, :4]):
                try:
                    run(q, k, value)
                except ValueError as error:
                    print("value" in str(error))
    """)
    assert said.split() == ["True"] * 4


def test_the_shortest_way_takes_tensors_alone():
    said = fresh("""
        import numpy as np, torch
        from regard import _kernel
        x = torch.ones(1, 2, 3, 4)
        for wrong in (None, 1, "x", [1.0], np.ones((1, 2, 3, 4)), x[0], x.to("meta"), x.short(),
                      x.to(torch.uint16), x.to_sparse(), x.double(), x[..., :3], x[:, :, :2]):
            for place in range(4):
                given = [x, x, x, x.clone()]
                given[place] = wrong
                try:
                    _kernel.forward_tensors(*given, 1.0, False, False)
                    print("taken:", type(wrong), place, getattr(wrong, "shape", ""))
                except (TypeError, ValueError, AttributeError, RuntimeError, BufferError):
                    pass
    """)
    # Fewer queries than keys, or keys than queries, are a legal call only where output fits.
    assert [line for line in said.splitlines() if not line.endswith("[1, 2, 2, 4])")] == []


def test_a_pytorch_without_the_fast_table():
    said = fresh("""
        import torch
        del torch.Tensor.__dlpack_c_exchange_api__
        from regard.torch import scaled_dot_product_attention as ours
        q, k, v = torch.randn(3, 1, 2, 5, 16)
        theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        print(torch.allclose(ours(q, k, v, is_causal=True), theirs, atol=1e-6))
    """)
    assert said == "True"


def test_lazily_negated_tensors():
    q, k, v = torch.randn(3, 1, 2, 5, 16)
    expected = regard.attention(-q, -k, -v)
    negated = [torch._neg_view(x) for x in (q, k, v)]
    for run in (regard.attention, scaled_dot_product_attention):
        assert torch.equal(run(*negated), expected)
        wanted = [x.requires_grad_() for x in negated]
        assert torch.equal(run(*wanted), expected)
    imaginary = torch.complex(q, k).conj().imag
    assert imaginary.is_neg()
    assert torch.equal(regard.attention(imaginary, imaginary, v), regard.attention(-k, -k, v))
    bias = torch._neg_view(torch.ones(5, 5).tril())
    assert torch.equal(regard.attention(q, k, v, bias=bias), regard.attention(q, k, v, bias=+bias))
    look = regard.look(torch._neg_view(q), k, v)
    np.testing.assert_array_equal(look.weights[...], regard.look(-q, k, v).weights[...])


def test_a_masked_array_beside_tensors_is_refused():
    q = torch.ones(1, 2, 3, 4)
    masked = np.ma.masked_array(np.ones((3, 3), bool), mask=np.eye(3, dtype=bool))
    with pytest.raises(TypeError, match=r"mask.*masked array"):
        regard.attention(q, q, q, mask=masked)


def test_what_is_given_is_never_written():
    q, k, v = torch.randn(3, 1, 2, 5, 16, requires_grad=True)
    bias, sinks = torch.randn(5, 5, requires_grad=True), torch.randn(2, requires_grad=True)
    everything = [q, k, v, bias, sinks]
    before = [(x.detach().clone(), x._version) for x in everything]
    output, lse = regard.attention(q, k, v, bias=bias, sinks=sinks, return_lse=True)
    torch.autograd.grad(output.sum() + lse.sum(), everything)
    for x, (values, version) in zip(everything, before, strict=True):
        assert torch.equal(x, values)
        assert x._version == version


def test_inputs_changed_before_the_backward_pass_are_found_out():
    q, k, v = torch.randn(3, 1, 2, 5, 16)
    output = regard.attention(q.requires_grad_(), k, v)
    k.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_many_threads_at_once():
    inputs = [x.requires_grad_() for x in torch.randn(3, 2, 4, 67, 32)]

    def both(_):
        output = scaled_dot_product_attention(*inputs, is_causal=True)
        return output.detach(), *torch.autograd.grad(output.square().sum(), inputs)

    expected = both(0)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(both, range(24)):
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_only_pytorch_is_imported():
    loaded = fresh("import regard.torch, sys; print(*sys.modules)").split()
    assert not {"transformers", "tensorflow", "jax", "keras"} & set(loaded)


# ---------------------------------------------------------------------------------------- memory

PEAK = """
import resource, sys, torch, regard, regard.torch
from torch.nn import functional
*names, size = sys.argv[1:]
regard.threads(1), torch.set_num_threads(1)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

def run(name, size):
    q = torch.randn(1, 4, size, 64, requires_grad=True)
    k, v = (torch.randn(1, 2, size, 64, requires_grad=True) for _ in range(2))
    keys = torch.arange(size) % 7 != 3
    bias = torch.zeros(size, requires_grad=True)
    both = dict(enable_gqa=True, is_causal=True)
    calls = {
        "pytorch": lambda: functional.scaled_dot_product_attention(q, k, v, **both),
        "plain": lambda: regard.torch.scaled_dot_product_attention(q, k, v, **both),
        "masked": lambda: regard.attention(q, k, v, mask=keys, causal=True, window=(99, 0)),
        "biased": lambda: regard.attention(q, k, v, bias=bias, sinks=bias[:4]),
        "dropped": lambda: regard.attention(q, k, v, dropout=0.1, causal=True),
        "packed": lambda: regard.attention(q, k, v, segments=torch.arange(size) // 100),
        "looked": lambda: regard.look(q, k, v, causal=True).output,
        "lse": lambda: regard.attention(q, k, v, causal=True, return_lse=True)[1],
    }
    calls[name]().sum().backward()

for name in names:
    run(name, 64)
before = peak()
for name in names:
    run(name, int(size))
print(peak() - before)
"""


def test_no_table_of_weights_is_ever_held():
    names = ["plain", "masked", "biased", "dropped", "packed", "looked", "lse"]
    size = 3000  # a table would take 4 · 3000² · 4 bytes = 137 MiB; all inputs and gradients 15
    assert int(fresh(PEAK, *names, size)) < 48


def test_training_takes_no_more_memory_than_with_pytorch():
    ours, theirs = (int(fresh(PEAK, name, 4096)) for name in ("plain", "pytorch"))
    assert ours <= theirs + 2


@pytest.mark.long
def test_a_short_call_costs_little_more_than_pytorchs():
    # Medians of ratios, so that other work on the machine does not decide.
    ratio = fresh("""
        import time, torch
        from regard.torch import scaled_dot_product_attention as ours
        theirs = torch.nn.functional.scaled_dot_product_attention
        torch.set_num_threads(1)
        q = torch.randn(1, 4, 1, 64)

        def seconds(run):
            begin = time.perf_counter()
            for _ in range(2000):
                run(q, q, q)
            return time.perf_counter() - begin

        with torch.no_grad():
            print(sorted(seconds(ours) / seconds(theirs) for _ in range(31))[15])
    """)
    assert float(ratio) <= 1.5


@pytest.mark.long
@pytest.mark.parametrize(("shape", "causal"), [((1, 9, 2048, 64), True), ((2, 12, 512, 64), False)])
def test_training_is_faster_than_with_pytorch(shape, causal):
    ratio = fresh(
        """
        import sys, time, torch, regard
        from regard.torch import scaled_dot_product_attention as ours
        theirs = torch.nn.functional.scaled_dot_product_attention
        regard.threads(2), torch.set_num_threads(2)
        shape, causal = eval(sys.argv[1]), eval(sys.argv[2])
        q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
        seed = torch.randn(shape)

        def seconds(run):
            time.sleep(0.01)
            begin = time.perf_counter()
            run(q, k, v, is_causal=causal).backward(seed)
            return time.perf_counter() - begin

        seconds(ours), seconds(theirs)
        print(sorted(seconds(theirs) / seconds(ours) for _ in range(15))[7])
        """,
        shape,
        causal,
    )
    assert float(ratio) >= 1.3


def test_the_kernel_counts_what_ran():
    q = torch.ones(1, 2, 3, 4, requires_grad=True)
    before = _kernel.calls()
    regard.attention(q, q, q).sum().backward()
    after = _kernel.calls()
    assert [b - a for a, b in zip(before, after, strict=True)][:2] == [1, 1]
