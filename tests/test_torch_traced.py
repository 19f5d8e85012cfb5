"""PyTorch's door under what watches a call: compilers, transforms, modes, checkpoints."""

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import regard
from regard import _kernel
from regard.torch import attention, scaled_dot_product_attention
from regard.torch.computing import Options

ROWS, KEYS = 5, 11


def normal(seed: int, *shapes):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def qkv(seed: int = 0):
    return normal(seed, (2, 6, ROWS, 7), (2, 3, KEYS, 7), (2, 3, KEYS, 13))


def ours(q, k, v):
    return attention(q, k, v, causal=True, query_offset=3)


def theirs(q, k, v):
    mask = torch.ones(ROWS, KEYS, dtype=torch.bool).tril(3)
    return functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)


def loss(run):
    return lambda *inputs: run(*inputs).square().sum()


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------ operations

WATCHED = {
    "plain": {},
    "bias and sinks": {
        "bias": torch.zeros(6, ROWS, KEYS, requires_grad=True),
        "sinks": torch.zeros(6, requires_grad=True),
        "causal": True,
        "offset": 3,
    },
    "masks": {
        "mask": torch.arange(KEYS) % 3 != 1,
        "key_lengths": torch.tensor([7, 11]),
        "before": 2,
        "offset": 1,
        "dropout": 0.3,
        "seed": torch.tensor(5),
    },
}


@pytest.mark.parametrize("options", WATCHED.values(), ids=WATCHED)
@pytest.mark.parametrize("lies", ["contiguous", "as a projection leaves it", "broadcast"])
def test_opcheck(options, lies):
    q, k, v = qkv()
    if lies == "as a projection leaves it":
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    if lies == "broadcast":
        k = k[:1]
    arguments = (q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), *Options(**options))
    torch.library.opcheck(torch.ops.regard.attention.default, arguments)


@pytest.mark.parametrize("options", WATCHED.values(), ids=WATCHED)
def test_opcheck_of_the_backward_pass(options):
    q, k, v = qkv()
    rest = [x.detach() if isinstance(x, torch.Tensor) else x for x in Options(**options)]
    output, lse = torch.ops.regard.attention(q, k, v, *rest)
    both = "bias" in options
    arguments = (q, k, v, output, lse, torch.ones_like(output), torch.ones_like(lse), *rest)
    torch.library.opcheck(torch.ops.regard.attention_backward.default, (*arguments, both, both))


# -------------------------------------------------------------------------------------- compiled


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_compiled_whole(backend, dynamic):
    torch._dynamo.reset()
    mask = torch.arange(KEYS) % 3 != 1

    def run(q, k, v, mask):
        return attention(q, k, v, mask=mask, causal=True, query_offset=3, return_lse=True)

    compiled = torch.compile(run, backend=backend, fullgraph=True, dynamic=dynamic)
    results = []
    for function in (run, compiled):
        before = _kernel.calls()
        inputs = [x.requires_grad_() for x in qkv()]
        output, lse = function(*inputs, mask)
        grads = torch.autograd.grad(output.sum() + lse.sum(), inputs)
        ran = [b - a for a, b in zip(before, _kernel.calls(), strict=True)]
        assert ran[:2] == [1, 1]
        results.append([output, lse, *grads])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_compiled_again_for_other_shapes():
    torch._dynamo.reset()
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (2, 5, 9):
        q, k, v = normal(1, (2, 6, rows, 7), (2, 3, 13, 7), (2, 3, 13, 7))
        assert torch.equal(compiled(q, k, v), ours(q, k, v))


def test_the_general_name_compiles_too():
    torch._dynamo.reset()
    q, k, v = qkv()
    compiled = torch.compile(lambda *x: regard.attention(*x), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(q, k, v), regard.attention(q, k, v))


def test_compiled_dropout_draws_anew_on_each_run():
    torch._dynamo.reset()
    q, k, v = qkv()

    def run(q, k, v):
        return scaled_dot_product_attention(q, k, v, dropout_p=0.4, enable_gqa=True)

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    assert not torch.equal(compiled(q, k, v), compiled(q, k, v))
    torch.manual_seed(3)
    first = compiled(q, k, v)
    torch.manual_seed(3)
    assert torch.equal(first, compiled(q, k, v))


def test_a_bad_bias_in_a_graph_is_nan_in_its_row():
    torch._dynamo.reset()
    q, k, v = qkv()
    bias = torch.zeros(ROWS, KEYS)
    bias[2, 4] = torch.inf
    compiled = torch.compile(
        lambda q, k, v, bias: attention(q, k, v, bias=bias), backend="aot_eager", fullgraph=True
    )
    bad = compiled(q, k, v, bias).isnan()
    assert bad[:, :, 2].all()
    assert not bad[:, :, [0, 1, 3, 4]].any()
    # What is wrong with values is found where they are known: when the graph runs.
    lengths = torch.tensor([4, 99])
    compiled = torch.compile(
        lambda q, k, v, n: attention(q, k, v, key_lengths=n), backend="aot_eager", fullgraph=True
    )
    with pytest.raises(ValueError, match="key_lengths"):
        compiled(q, k, v, lengths)


class Layer(torch.nn.Module):
    def forward(self, q, k, v):
        return scaled_dot_product_attention(q, k, v, enable_gqa=True)


@pytest.mark.parametrize("strict", [False, True])
def test_exported(strict):
    q, k, v = qkv()
    exported = torch.export.export(Layer(), (q, k, v), strict=strict)
    assert "regard.attention" in str(exported.graph)
    q, k, v = qkv(2)
    assert torch.equal(exported.module()(q, k, v), Layer()(q, k, v))


def test_traced_by_jit():
    q, k, v = qkv()
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        traced = torch.jit.trace(Layer(), (q, k, v))
    q, k, v = qkv(2)
    assert torch.equal(traced(q, k, v), Layer()(q, k, v))


# ------------------------------------------------------------------------------------ transforms


def test_func_grad():
    found = torch.func.grad(loss(ours), (0, 1, 2))(*qkv())
    close(found, torch.func.grad(loss(theirs), (0, 1, 2))(*qkv()))


def test_vjp_and_jacrev():
    q, k, v = qkv()
    cotangent = torch.ones(2, 6, ROWS, 13)
    close(
        torch.func.vjp(ours, q, k, v)[1](cotangent), torch.func.vjp(theirs, q, k, v)[1](cotangent)
    )

    def corner(run):
        return lambda *inputs: run(*inputs)[:, :2, 1:3, :3]

    close(
        torch.func.jacrev(corner(ours), (0, 1, 2))(q, k, v),
        torch.func.jacrev(corner(theirs), (0, 1, 2))(q, k, v),
    )


def each(run, axes, inputs):
    """Call once for each element along the axes that are mapped over, and stack."""
    size = next(x.shape[n] for x, n in zip(inputs, axes, strict=True) if n is not None)
    parts = [
        run(*(x if n is None else x.select(n, i) for x, n in zip(inputs, axes, strict=True)))
        for i in range(size)
    ]
    if isinstance(parts[0], tuple):
        return tuple(map(torch.stack, zip(*parts, strict=True)))
    return torch.stack(parts)


AXES = [(0, 0, 0), (0, None, None), (None, 0, None), (None, None, 2), (1, 0, -1), (-2, None, 0)]


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_vmap(axes):
    inputs = [
        x if n is None else torch.stack([x, x * 0.5, x.flip(0), -x], n)
        for x, n in zip(qkv(), axes, strict=True)
    ]
    assert torch.equal(torch.vmap(ours, axes)(*inputs), each(ours, axes, inputs))
    gradient = torch.func.grad(loss(ours), (0, 1, 2))
    close(torch.vmap(gradient, axes)(*inputs), each(gradient, axes, inputs))


MAPPED = {
    "mask": (torch.rand(3, ROWS, KEYS) < 0.7, 0),
    "mask of keys": (torch.rand(KEYS, 3) < 0.7, 1),
    "bias": (torch.randn(3, 6, 1, KEYS), 0),
    "bias for all": (torch.randn(2, 1, ROWS, KEYS), None),
    "sinks": (torch.randn(3, 6), 0),
    "key_lengths": (torch.tensor([[3, 7], [11, 0], [5, 5]]), 0),
    "query_offset": (torch.tensor([0, 3, 6]), 0),
    "segments": (torch.arange(3)[:, None] * 0 + torch.arange(KEYS) // 4, 0),
}


@pytest.mark.parametrize("name", MAPPED)
def test_vmap_over_the_other_arguments(name):
    q, k, v = qkv()
    given, axis = MAPPED[name]
    name = name.split()[0]
    if name == "segments":
        q = k.repeat_interleave(2, 1)  # as many queries as keys

    def run(q, given):
        more = {"causal": True} if name == "query_offset" else {}
        return attention(q, k, v, **{name: given}, **more)

    many = torch.stack([q, -q, 2 * q])
    axes = (0, axis)
    assert torch.equal(torch.vmap(run, axes)(many, given), each(run, axes, (many, given)))
    if given.is_floating_point():
        gradient = torch.func.grad(loss(run), (0, 1))
        close(torch.vmap(gradient, axes)(many, given), each(gradient, axes, (many, given)))


def test_vmap_without_heads_and_twice():
    q, k, v = normal(3, (4, ROWS, 7), (4, KEYS, 7), (4, KEYS, 13))

    def run(q, k, v):
        return attention(q, k, v, bias=torch.ones(ROWS, KEYS), return_lse=True)

    found, expected = torch.vmap(run)(q, k, v), each(run, (0, 0, 0), (q, k, v))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    gradient = torch.func.grad(lambda *x: run(*x)[0].square().sum() + run(*x)[1].sum(), (0, 1, 2))
    close(torch.vmap(gradient)(q, k, v), each(gradient, (0, 0, 0), (q, k, v)))
    q = torch.stack([q, -q, 2 * q])

    def inner(q):
        return torch.vmap(run)(q, k, v)

    found, expected = torch.vmap(inner)(q), each(inner, (0,), (q,))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_vmap_of_dropout():
    q, k, v = qkv()

    def drawn(randomness):
        run = torch.vmap(lambda q: attention(q, k, v, dropout=0.5), randomness=randomness)
        return run(q.expand(3, *q.shape))

    same, different = drawn("same"), drawn("different")
    assert torch.equal(same[0], same[1])
    assert not torch.equal(different[0], different[1])
    with pytest.raises(RuntimeError, match="randomness"):
        drawn("error")


def test_compiled_vmap():
    torch._dynamo.reset()
    inputs = [torch.stack([x, -x]) for x in qkv()]
    mapped = torch.vmap(ours)
    compiled = torch.compile(mapped, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*inputs), mapped(*inputs))


# ---------------------------------------------------------------------- what can't be, and says so


def test_forward_mode_is_refused():
    q, k, v = qkv()
    with pytest.raises(NotImplementedError, match="jvp"):
        torch.func.jvp(lambda q: ours(q, k, v), (q,), (q,))
    for run in (ours, lambda *x: scaled_dot_product_attention(*x, enable_gqa=True)):
        with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward"):
            run(forward_ad.make_dual(q, q), k, v)


def test_second_derivatives_are_refused():
    q, k, v = qkv()
    wanted = q.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(ours)(wanted, k, v), wanted, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivative"):
        gradient.sum().backward()
    # A loss that is not linear in the gradient, and one whose graph is kept for another reason.
    torch.autograd.grad(loss(ours)(wanted, k, v), wanted, create_graph=True)[0].detach().sum()
    with pytest.raises(NotImplementedError, match="second derivative"):
        torch.func.grad(lambda q: torch.func.grad(loss(ours))(q, k, v).sum())(q)


# ------------------------------------------------------------------------------------- the others


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed(reentrant):
    q, k, v = qkv()

    def run(q):
        return scaled_dot_product_attention(q, k, v, dropout_p=0.4, enable_gqa=True)

    results = []
    for through in (run, lambda q: checkpoint(run, q, use_reentrant=reentrant)):
        torch.manual_seed(1)
        wanted = q.clone().requires_grad_()
        output = through(wanted)
        results.append((output, *torch.autograd.grad(output.sum(), wanted)) if not reentrant else 0)
        if reentrant:
            output.sum().backward()
            results[-1] = (output, wanted.grad)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_mode_sees_the_operation():
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    q, k, v = qkv()
    with Watch():
        attention(q, k, v)
        scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert seen.count("regard.attention.default") == 2


def test_tensors_without_memory():
    from torch._subclasses.fake_tensor import FakeTensorMode

    q, k, v = (x.to("meta") for x in qkv())
    for run in (attention, lambda *x: scaled_dot_product_attention(*x, enable_gqa=True)):
        output = run(q, k, v)
        assert output.is_meta
        assert output.shape == (2, 6, ROWS, 13)
    assert attention(q.requires_grad_(), k, v).requires_grad
    with FakeTensorMode() as mode:
        q, k, v = (mode.from_tensor(x) for x in qkv())
        assert attention(q, k, v, window=(1, 1), query_offset=0).shape == (2, 6, ROWS, 13)
    with pytest.raises((TypeError, NotImplementedError), match="meta"):
        regard.look(*(x.to("meta") for x in qkv()))


def test_inference_mode_and_subclasses():
    class Named(torch.Tensor):
        pass

    q, k, v = qkv()
    expected = attention(q, k, v)
    with torch.inference_mode():
        assert torch.equal(attention(q.clone(), k, v), expected)
        assert torch.equal(attention(q.clone(), k, v, mask=torch.ones(KEYS) > 0), expected)
    named = q.as_subclass(Named)
    assert np.array_equal(attention(named, k, v).numpy(), expected.numpy())
