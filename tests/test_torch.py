"""PyTorch's door: the right numbers and gradients, and PyTorch's own rules where it has some."""

import math
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from cases import CASES, GRADIENTS, REFUSED
from hypothesis import given, settings
from hypothesis import strategies as st
from near import near
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import regard
from regard import _kernel
from regard.torch import scaled_dot_product_attention, tensors

cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
floats = pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: str(dtype)[6:])


@pytest.fixture
def elsewhere(monkeypatch):
    """Treat tensors as if they lay on an accelerator."""
    monkeypatch.setattr(tensors, "pretend_elsewhere", True)


@pytest.fixture
def ran():
    """What has run in the kernel since the test began: forward, backward."""
    before = _kernel.calls()
    return lambda: tuple(b - a for a, b in zip(before, _kernel.calls(), strict=True))[:2]


def tensor(given):
    """A NumPy array as a tensor with the same strides; in pairs and other things too."""
    if isinstance(given, tuple):
        return tuple(map(tensor, given))
    if not isinstance(given, np.ndarray):
        return given
    if given.dtype.name == "bfloat16":
        return torch.from_numpy(given.view(np.int16)).view(torch.bfloat16)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(given)


def array(given: Tensor) -> np.ndarray:
    return tensors.array(given)


def options(case):
    return {name: tensor(given) for name, given in case.options.items()}


def normal(seed: int, *shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit."""
    return a.dtype == b.dtype and a.shape == b.shape and array(a).tobytes() == array(b).tobytes()


def gradients(run, inputs):
    """What run gives, and the gradients of a sum over all of it that weighs every element."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    given = run(*inputs)
    outputs = given if isinstance(given, tuple) else (given,)
    generator = torch.Generator().manual_seed(9)
    loss = sum(
        (torch.where(o.isfinite(), o, 0) * torch.randn(o.shape, generator=generator)).sum()
        for o in outputs
    )
    return [o.detach() for o in outputs], torch.autograd.grad(loss, inputs)


# ----------------------------------------------------------------------------- the same numbers


@cases
def test_cases(case, ran):
    given = [tensor(x) for x in case.inputs]
    output, lse = regard.attention(*given, **options(case), return_lse=True)
    assert ran() == (1, 0)
    expected = regard.attention(*case.inputs, **case.options, return_lse=True)
    assert output.dtype == given[0].dtype
    assert same(output, tensor(expected[0]))
    assert same(lse, tensor(expected[1]))
    assert same(regard.attention(*given, **options(case)), output)
    relative, absolute = case.tolerance
    np.testing.assert_allclose(
        array(output).astype(float), case.answer("output"), relative, absolute
    )


@cases
def test_cases_with_weights(case):
    relative, absolute = case.tolerance
    look = regard.look(*(tensor(x) for x in case.inputs), **options(case))
    assert isinstance(look.output, Tensor)
    expected = regard.look(*case.inputs, **case.options).weights[...]
    np.testing.assert_array_equal(look.weights[...], expected)
    # A single lse can't hold the lowest number and a logarithm, so weights beside it are lost.
    if expected.size < 1000 and case.name != "the lowest finite bias is no mask":
        np.testing.assert_allclose(look.weights[...], case.answer("weights"), relative, absolute)
        assert look.check().verified


@pytest.mark.parametrize("case", GRADIENTS, ids=lambda case: case.name)
@pytest.mark.parametrize("place", ["kernel", "blocks"])
def test_gradient_cases(case, place, ran, monkeypatch):
    monkeypatch.setattr(tensors, "pretend_elsewhere", place == "blocks")
    wanted = [tensor(x).requires_grad_() for x in case.inputs]
    given = options(case)
    if "bias" in given:
        wanted.append(given["bias"].requires_grad_())
    output = regard.attention(*wanted[:3], **given)
    found = torch.autograd.grad(output, wanted, tensor(case.cotangent))
    assert ran() == ((1, 1) if place == "kernel" else (0, 0))
    for name, gradient in zip(("query", "key", "value", "bias"), found, strict=False):
        np.testing.assert_allclose(gradient, case.answer(name), *case.tolerance)


@pytest.mark.parametrize(("case", "error"), REFUSED, ids=lambda x: getattr(x, "name", ""))
def test_refused_cases(case, error):
    with pytest.raises(error):
        regard.attention(*(tensor(x) for x in case.inputs), **options(case))


@floats
def test_every_argument_as_a_tensor(dtype):
    q, k, v = normal(1, (2, 6, 5, 11), (2, 3, 7, 11), (2, 3, 7, 13), dtype=dtype)
    generator = torch.Generator().manual_seed(2)
    arguments = {
        "mask": torch.rand(2, 1, 5, 7, generator=generator) < 0.8,
        "bias": torch.randn(6, 1, 7, generator=generator),
        "window": (3, 2),
        "query_offset": torch.tensor([1, 2]),
        "key_lengths": torch.tensor([7, 5], dtype=torch.int32),
        "segments": (torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 1, 0, 1, 1, 1, 1])),
        "ranges": (torch.zeros(5, dtype=torch.long), torch.tensor([7, 7, 6, 7, 7])),
        "softcap": 3.0,
        "sinks": torch.randn(6, generator=generator),
        "scale": torch.tensor(0.7),
    }
    found = regard.attention(q, k, v, **arguments, return_lse=True)
    plain = {
        name: tuple(map(np.asarray, x)) if name in ("segments", "ranges") else x
        for name, x in arguments.items()
    }
    plain = {name: x.numpy() if isinstance(x, Tensor) else x for name, x in plain.items()}
    expected = regard.attention(*map(array, (q, k, v)), **plain, return_lse=True)
    assert all(same(a, tensor(b)) for a, b in zip(found, expected, strict=True))
    # NumPy's arrays and lists beside tensors are taken too.
    found = regard.attention(q, array(k), v, **plain, return_lse=True)
    assert all(same(a, tensor(b)) for a, b in zip(found, expected, strict=True))


def test_a_bias_of_eight_bits():
    q, k, v = normal(3, (2, 5, 7), (2, 11, 7), (2, 11, 7))
    bias = torch.randn(5, 11).to(torch.float8_e4m3fn)
    assert same(regard.attention(q, k, v, bias=bias), regard.attention(q, k, v, bias=bias.float()))


@floats
def test_any_strides(dtype):
    base = normal(4, (3, 2, 7, 2, 4, 11), dtype=dtype)[0]
    q, k, v = (x.movedim(-2, 1) for x in base[..., 0, :, :])
    k = k.flip(-1)[..., ::2][..., :4]
    q, v = q[..., 1:9:2], v[:, :1].expand(-1, 4, -1, -1)
    clean = regard.attention(*(x.contiguous() for x in (q, k, v)))
    assert same(regard.attention(q, k, v), clean)
    assert same(scaled_dot_product_attention(q, k, v), clean)
    wanted = regard.attention(*(x.clone().requires_grad_() for x in (q, k, v)))
    assert same(wanted, clean)


def test_the_output_lies_as_the_query_does():
    q, k, v = (x.transpose(1, 2) for x in normal(5, *[(2, 5, 6, 16)] * 3))
    for output in (regard.attention(q, k, v), regard.attention(q, k, v, window=(1, 1))):
        assert output.stride() == q.stride()
        assert output.transpose(1, 2).is_contiguous()


def test_without_heads():
    q, k, v = normal(6, (5, 7), (11, 7), (11, 3))
    output, lse = regard.attention(q, k, v, sinks=torch.tensor([0.5]), return_lse=True)
    assert output.shape == (5, 3)
    assert lse.shape == (5,)
    wanted = [x.requires_grad_() for x in (q, k, v)]
    regard.attention(*wanted, bias=torch.zeros(5, 11)).sum().backward()
    assert [x.grad.shape for x in wanted] == [(5, 7), (11, 7), (11, 3)]


# ------------------------------------------------------------------------------------ gradients

OPTIONS = {
    "nothing": {},
    "causal": {"causal": True, "query_offset": 3},
    "window": {"window": (2, 1), "query_offset": 2},
    "mask": {"mask": torch.arange(7) % 3 != 1},
    "lengths": {"key_lengths": torch.tensor([3, 0])},
    "ranges": {"ranges": (torch.tensor([0, 1, 2, 3, 3]), torch.tensor([2, 2, 7, 5, 2]))},
    "segments": {"segments": (torch.arange(5) % 2, torch.arange(7) % 3)},
    "cap and scale": {"softcap": 2.0, "scale": -0.8},
    "dropout": {"dropout": 0.3, "seed": 2**64 - 1},
}
all_options = pytest.mark.parametrize("given", OPTIONS.values(), ids=OPTIONS)


def five(seed: int, dtype=torch.float64):
    """Query, key, value, bias and sinks; a key's batch axis and two of the bias's broadcast."""
    return normal(seed, (2, 4, 5, 3), (1, 2, 7, 3), (2, 2, 7, 2), (4, 1, 7), (4,), dtype=dtype)


@all_options
@pytest.mark.parametrize("place", ["kernel", "blocks"])
def test_gradcheck(given, place, monkeypatch):
    if place == "blocks" and not given.keys() & {"softcap", "dropout", "segments"}:
        return  # the others differ in who may attend, which the kernel's answers judge below
    monkeypatch.setattr(tensors, "pretend_elsewhere", place == "blocks")

    def run(q, k, v, bias, sinks):
        return regard.attention(q, k, v, bias=bias, sinks=sinks, **given, return_lse=True)

    wanted = [x.requires_grad_() for x in five(7)]
    assert torch.autograd.gradcheck(run, wanted)


@pytest.mark.parametrize("dtype", FLOATS[1:], ids=lambda dtype: str(dtype)[6:])
def test_gradients_of_every_dtype(dtype):
    given = five(8, dtype)

    def run(q, k, v, bias, sinks):
        return regard.attention(q, k, v, bias=bias, sinks=sinks, causal=True, query_offset=2)

    def by_formula(q, k, v, bias, sinks):
        k, v = (x.repeat_interleave(2, 1) for x in (k, v))
        scores = q @ k.mT / math.sqrt(3) + bias
        scores = scores.masked_fill(torch.ones(5, 7, dtype=torch.bool).triu(3), -torch.inf)
        sink = sinks[:, None, None].expand(2, 4, 5, 1)
        return torch.cat([scores, sink], -1).softmax(-1)[..., :-1] @ v

    output, found = gradients(run, given)
    _, truth = gradients(by_formula, [x.double() for x in given])
    _, naive = gradients(by_formula, given)
    assert output[0].dtype == dtype
    numpy_dtype = array(given[0]).dtype
    for name, a, b, c in zip("qkvbs", found, truth, naive, strict=True):
        assert a.dtype == dtype
        near(array(a).astype(float), array(b), array(c).astype(float), numpy_dtype, name)


def test_gradients_are_the_same_bits_every_time():
    given = normal(9, (1, 2, 300, 64), (1, 1, 300, 64), (1, 1, 300, 64))
    _, first = gradients(lambda *x: regard.attention(*x, causal=True), given)
    with regard.threads(2):
        _, second = gradients(lambda *x: regard.attention(*x, causal=True), given)
    assert all(same(a, b) for a, b in zip(first, second, strict=True))


def test_only_what_needs_a_gradient_gets_one():
    q, k, v, bias, sinks = five(10)
    output = regard.attention(q, k, v.requires_grad_(), bias=bias, sinks=sinks)
    (gradient,) = torch.autograd.grad(output.sum(), v)
    assert gradient.shape == v.shape
    output, lse = regard.attention(q.requires_grad_(), k, v.detach(), return_lse=True)
    (through_lse,) = torch.autograd.grad(lse.sum(), q)
    assert through_lse.abs().sum() > 0


def test_a_gradient_is_never_lost():
    q, k, v = normal(11, (1, 2, 5, 7), (1, 2, 5, 7), (1, 2, 5, 7))
    for position in range(3):
        wanted = [x.clone().requires_grad_(i == position) for i, x in enumerate((q, k, v))]
        assert regard.attention(*wanted).requires_grad
        assert scaled_dot_product_attention(*wanted).requires_grad
        assert regard.look(*wanted).output.requires_grad
    assert regard.attention(q, k, v, bias=torch.zeros(5, 5, requires_grad=True)).requires_grad
    assert regard.attention(q, k, v, sinks=torch.zeros(2, requires_grad=True)).requires_grad
    parameter = torch.nn.Parameter(q)
    assert scaled_dot_product_attention(parameter, k, v).requires_grad
    with torch.no_grad():
        assert not scaled_dot_product_attention(parameter, k, v).requires_grad


def test_rows_that_attend_nothing_have_gradient_0():
    q, k, v = normal(12, *[(1, 2, 5, 7)] * 3)
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[2] = False
    q[:, :, 2] = torch.nan
    _, found = gradients(lambda *x: regard.attention(*x, mask=mask, return_lse=True), (q, k, v))
    assert not found[0][:, :, 2].any()
    assert all(x.isfinite().all() for x in found)


def test_what_is_masked_spoils_no_gradient(monkeypatch):
    q, k, v = normal(13, *[(1, 2, 5, 7)] * 3)
    mask = torch.arange(5) != 3
    for place in (False, True):
        monkeypatch.setattr(tensors, "pretend_elsewhere", place)
        _, clean = gradients(lambda *x: regard.attention(*x, mask=mask, softcap=4.0), (q, k, v))
        for bad in (torch.nan, torch.inf):
            spoilt = [x.clone() for x in (q, k, v)]
            spoilt[1][:, :, 3], spoilt[2][:, :, 3] = bad, bad
            _, found = gradients(lambda *x: regard.attention(*x, mask=mask, softcap=4.0), spoilt)
            assert all(torch.equal(a, b) for a, b in zip(found, clean, strict=True))


@pytest.mark.parametrize("empty", range(5), ids=["batch", "heads", "rows", "keys", "width"])
def test_empty(empty):
    sizes = [2, 4, 5, 7, 3]
    sizes[empty] = 0
    B, H, T, S, V = sizes
    G = H // 2
    given = normal(14, (B, H, T, 11), (B, G, S, 11), (B, G, S, V))
    (output, lse), found = gradients(lambda *x: regard.attention(*x, return_lse=True), given)
    assert output.shape == (B, H, T, V)
    assert lse.shape == (B, H, T)
    assert [x.shape for x in found] == [x.shape for x in given]
    assert not found[0].any() or S


def test_gradients_through_merge():
    q, k, v = normal(15, (2, 5, 7), (2, 11, 7), (2, 11, 3), dtype=torch.float64)
    cuts = list(pairwise((0, 3, 3, 8, 11)))

    def in_parts(q, k, v):
        parts = [regard.attention(q, k[:, a:b], v[:, a:b], return_lse=True) for a, b in cuts]
        return regard.merge(*zip(*parts, strict=True))

    whole = gradients(lambda *x: regard.attention(*x, return_lse=True), (q, k, v))
    parts = gradients(in_parts, (q, k, v))
    for a, b in zip([*whole[0], *whole[1]], [*parts[0], *parts[1]], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)
    nothing = torch.full((2, 5), -torch.inf)
    output, lse = regard.merge([torch.zeros(2, 5, 3)] * 2, [nothing] * 2)
    assert not output.any()
    assert (lse == -torch.inf).all()


# ------------------------------------------------------------- PyTorch's own signature and rules


@st.composite
def calls(draw):
    """Arguments of `scaled_dot_product_attention`: shapes, mask, dtypes, strides."""
    size = st.sampled_from
    batch = draw(size([(), (2,), (3, 2)]))
    grouped = draw(st.booleans())
    G = draw(size([1, 2, 3]))
    H = G * draw(size([1, 2])) if grouped else draw(size([1, G]))
    T, S = draw(size([1, 2, 5, 17, 67])), draw(size([1, 3, 16, 65, 131]))
    D, V = draw(size([1, 7, 16, 37, 64])), draw(size([1, 13, 64]))
    dtype = draw(size(FLOATS))
    seed = draw(st.integers(0, 2**20))
    shapes = [(*batch, H, T, D), (*batch, G, S, D), (*batch, G, S, V)]
    query, key, value = normal(seed, *shapes, dtype=dtype)
    query = query * draw(size([1.0, 1.0, 8.0]))
    if draw(st.booleans()):  # as projections leave them
        query, key, value = (
            x.movedim(-3, -2).contiguous().movedim(-2, -3) for x in (query, key, value)
        )
    if draw(st.booleans()):
        key = key[..., :1, :, :].expand_as(key)
    arguments = {"scale": draw(size([None, None, 0.3, -1.0, 0.0])), "enable_gqa": grouped}
    heads = max(H, G)
    shape = draw(size([None, (T, S), (1, S), (T, 1), (heads, T, S), (heads, 1, S)]))
    generator = torch.Generator().manual_seed(seed)
    if shape is not None:
        mask = torch.rand(shape, generator=generator) < 0.7
        kind = draw(size(["bool", "float32", "own", "lowest"]))
        if kind != "bool":
            floats = dtype if kind == "own" else torch.float32
            low = torch.finfo(floats).min if kind == "lowest" else -torch.inf
            bias = torch.randn(shape, generator=generator).to(floats)
            mask = torch.where(mask, bias, torch.full_like(bias, low))
        arguments["attn_mask"] = mask
    else:
        arguments["is_causal"] = draw(st.booleans())
    return (query, key, value), arguments


def theirs(inputs, attn_mask=None, is_causal=False, **rest):
    return functional.scaled_dot_product_attention(
        *inputs, attn_mask=attn_mask, is_causal=is_causal, **rest
    )


@settings(max_examples=300)
@given(calls())
def test_same_answers_as_pytorch(call):
    inputs, arguments = call
    found = scaled_dot_product_attention(*inputs, **arguments)
    wide = {
        name: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x
        for name, x in arguments.items()
    }
    truth = theirs([x.double() for x in inputs], **wide)
    yardstick = theirs(inputs, **arguments)
    assert found.dtype == yardstick.dtype
    assert found.shape == yardstick.shape
    near(array(found), array(truth), array(yardstick), array(inputs[0]).dtype)


@settings(max_examples=100)
@given(calls())
def test_same_gradients_as_pytorch(call):
    inputs, arguments = call
    mask = arguments.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        arguments["attn_mask"] = mask.float()
    inputs = [x.float() for x in inputs]  # PyTorch's halves sum in halves
    wide = {
        name: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x
        for name, x in arguments.items()
    }
    _, found = gradients(lambda *x: scaled_dot_product_attention(*x, **arguments), inputs)
    with sdpa_kernel(SDPBackend.MATH):  # the other one is off by S beside the lowest numbers
        _, truth = gradients(lambda *x: theirs(x, **wide), [x.double() for x in inputs])
    _, yardstick = gradients(lambda *x: theirs(x, **arguments), inputs)
    # A gradient is what is left of terms that cancel, so rounding is judged by their size; and a
    # weight inherits the rounding of its score's terms.
    q, k, v = (x.double() for x in inputs)
    scale = q.shape[-1] ** -0.5 if arguments["scale"] is None else abs(arguments["scale"])
    keys = k.repeat_interleave(q.shape[-3] // k.shape[-3] if arguments["enable_gqa"] else 1, -3)
    more = float((q.abs() @ keys.abs().mT * scale).max()) / 2
    q, k, v = q.abs(), k.abs(), v.abs()
    term = 4 * v.sum(-1).max() * scale  # no element of the loss weighs more than 4
    terms = (term * k.max(), term * q.max(), torch.zeros(()))
    for name, a, b, c, size in zip("qkv", found, truth, yardstick, terms, strict=True):
        error, theirs_error = (a - b).abs().max(), (c - b).abs().max()
        eps = torch.finfo(torch.float32).eps
        bound = 2 * theirs_error + (2 + more) * eps * max(b.abs().max(), size)
        assert a.isfinite().all()
        assert error <= bound, f"{name}: off by {error:.3g}, may be off by {bound:.3g}"


def test_gradients_beside_the_lowest_bias():
    inputs = normal(19, *[(1, 2, 3, 7)] * 3)
    mask = torch.zeros(3, 3)
    mask[1] = torch.finfo(torch.float32).min  # an ordinary softmax of equal scores
    _, found = gradients(lambda *x: scaled_dot_product_attention(*x, mask), inputs)
    with sdpa_kernel(SDPBackend.MATH):
        _, expected = gradients(lambda *x: theirs(x, mask), inputs)
    for a, b in zip(found, expected, strict=True):
        close(a, b)


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_rules_that_pytorch_has_for_heads_and_axes():
    q, k, v = normal(20, (2, 3, 5, 7), (2, 3, 11, 7), (2, 3, 11, 13))
    for inputs in (
        (q[0, 0], k[0, 0], v[0, 0]),
        (q[0], k[0], v[0]),
        (q[:, :1], k, v),
        (q, k[:, :1], v[:, :1]),
        (q, k[:, :1], v),
        (q[:1], k, v),
        (q, k[0, 0], v[0, 0]),
        (q[0, 0], k, v),
        (q, k[:1], v[:, :1]),
    ):
        close(scaled_dot_product_attention(*inputs), theirs(inputs))
    q, k, v = normal(21, (2, 6, 5, 7), (2, 3, 11, 7), (2, 2, 11, 13))
    for inputs in ((q, k, v[:, :1].expand(-1, 3, -1, -1)), (q, k, v), (q[0], k[0], v[0])):
        close(
            scaled_dot_product_attention(*inputs, enable_gqa=True), theirs(inputs, enable_gqa=True)
        )
    with pytest.raises(ValueError, match="enable_gqa=True"):
        scaled_dot_product_attention(q, k, k)
    with pytest.raises(ValueError, match="multiple"):
        scaled_dot_product_attention(q[:, :5], k, k, enable_gqa=True)
    with pytest.raises(ValueError, match="three axes"):
        scaled_dot_product_attention(q[0, 0], k[0, 0], k[0, 0], enable_gqa=True)


def test_three_axes_of_a_mask_are_heads():
    q, k, v = normal(22, *[(3, 3, 5, 7)] * 3)
    mask = torch.rand(3, 5, 5) < 0.6
    close(scaled_dot_product_attention(q, k, v, mask), theirs((q, k, v), mask))
    with pytest.raises(ValueError, match="mask"):  # the same is ambiguous for our own function
        regard.attention(q, k, v, mask=mask)


@pytest.mark.parametrize("rows", [3, 7, 11])
def test_causal_begins_at_the_first_key(rows):
    q, k, v = normal(23, (2, 3, rows, 7), (2, 3, 7, 7), (2, 3, 7, 7))
    close(scaled_dot_product_attention(q, k, v, is_causal=True), theirs((q, k, v), is_causal=True))


def test_mask_and_causal_both_hold():
    q, k, v = normal(24, *[(2, 3, 5, 7)] * 3)
    mask = torch.rand(5, 5) < 0.7
    both = mask & torch.ones(5, 5, dtype=torch.bool).tril()
    close(scaled_dot_product_attention(q, k, v, mask, is_causal=True), theirs((q, k, v), both))


def test_causal_masks_of_pytorch():
    from torch.nn.attention.bias import causal_lower_right, causal_upper_left

    q, k, v = normal(25, (2, 3, 5, 7), (2, 3, 11, 7), (2, 3, 11, 7))
    for mask in (causal_lower_right(5, 11), causal_upper_left(5, 11)):
        close(scaled_dot_product_attention(q, k, v, mask), theirs((q, k, v), mask))


def test_rows_without_keys_are_0():
    q, k, v = normal(26, *[(2, 3, 5, 7)] * 3)
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[2] = False
    for either in (mask, torch.zeros(5, 5).masked_fill(~mask, -torch.inf)):
        assert not scaled_dot_product_attention(q, k, v, either)[:, :, 2].any()
    lowest = torch.zeros(5, 5).masked_fill(~mask, torch.finfo(torch.float32).min)
    close(scaled_dot_product_attention(q, k, v, lowest)[:, :, 2], v.mean(2))
    assert not scaled_dot_product_attention(q, k[:, :, :0], v[:, :, :0]).any()


def test_a_bias_of_nan_is_pytorchs_own_business():
    q, k, v = normal(27, *[(1, 2, 3, 7)] * 3)
    bias = torch.zeros(3, 3)
    bias[1, 1] = torch.nan
    found = scaled_dot_product_attention(q, k, v, bias)
    assert torch.equal(found.isnan().all(-1), torch.tensor([[[False, True, False]] * 2]))
    with pytest.raises(ValueError, match="bias"):
        regard.attention(q, k, v, bias=bias)
    with pytest.raises(ValueError, match="bias"):
        regard.attention(q.requires_grad_(), k, v, bias=bias)


def test_a_learned_bias():
    q, k, v = normal(28, *[(2, 3, 5, 7)] * 3)
    bias = normal(29, (3, 5, 5))[0]
    found = gradients(lambda *x: scaled_dot_product_attention(*x), (q, k, v, bias))
    expected = gradients(lambda *x: theirs(x[:3], x[3]), (q, k, v, bias))
    for a, b in zip(found[1], expected[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_masks_of_another_dtype_are_refused():
    q, k, v = normal(30, *[(1, 2, 3, 7)] * 3)
    for dtype in (torch.float64, torch.float16, torch.int64, torch.uint8):
        with pytest.raises(TypeError, match="attn_mask"):
            scaled_dot_product_attention(q, k, v, torch.ones(3, 3, dtype=dtype))
    with pytest.raises(ValueError, match="mask"):
        scaled_dot_product_attention(q, k, v, torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(TypeError, match="dtype"):
        scaled_dot_product_attention(q, k.double(), v)


# -------------------------------------------------------------------------------------- dropout


def test_dropout_draws_from_pytorchs_generator():
    q, k, v = normal(31, (2, 3, 64, 16), (2, 3, 64, 16), (2, 3, 64, 16))

    def drawn():
        return scaled_dot_product_attention(q, k, v, dropout_p=0.3)

    torch.manual_seed(5)
    first, second = drawn(), drawn()
    torch.manual_seed(5)
    assert same(first, drawn())
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert same(first, regard.attention(q, k, v, dropout=0.3))
    seeded = regard.attention(q, k, v, dropout=0.3, seed=7)
    expected = regard.attention(*map(array, (q, k, v)), dropout=0.3, seed=7)
    assert same(seeded, tensor(expected))


def test_dropout_keeps_the_mean():
    q, k, _ = normal(32, *[(4, 8, 64, 16)] * 3)
    v = torch.ones(4, 8, 64, 1)
    torch.manual_seed(1)
    output = scaled_dot_product_attention(q * 0, k, v, dropout_p=0.4)
    assert abs(output.mean() - 1) < 0.01
    variance = 0.4 / 0.6 / 64  # of a mean of 64 weights, each dropped or 1 / (1 - p)
    assert abs(output.var() / variance - 1) < 0.1
    assert not scaled_dot_product_attention(q, k, v, dropout_p=1.0).any()
    with pytest.raises(ValueError, match="dropout"):
        scaled_dot_product_attention(q, k, v, dropout_p=-0.1)


# ------------------------------------------------------------------------- on an accelerator


@all_options
def test_blocks_give_the_kernels_answers(given, ran, monkeypatch):
    inputs = five(33, torch.float32)

    def run(q, k, v, bias, sinks):
        return regard.attention(q, k, v, bias=bias, sinks=sinks, **given, return_lse=True)

    kernel = gradients(run, inputs)
    assert ran() == (1, 1)
    monkeypatch.setattr(tensors, "pretend_elsewhere", True)
    monkeypatch.setattr("regard.torch.blocks.BLOCK", 2 * 4 * 7 * 2)  # two rows a block
    found = gradients(run, inputs)
    assert ran() == (1, 1)
    for a, b in zip([*kernel[0], *kernel[1]], [*found[0], *found[1]], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("elsewhere")
def test_pytorchs_own_attention_gives_the_output(monkeypatch):
    q, k, v = normal(34, (2, 6, 5, 7), (2, 3, 5, 7), (2, 3, 5, 13))
    called = []
    own = functional.scaled_dot_product_attention
    monkeypatch.setattr(
        functional, "scaled_dot_product_attention", lambda *x, **y: called.append(1) or own(*x, **y)
    )
    for arguments, fits in (
        ({}, True),
        ({"causal": True}, True),
        ({"mask": torch.rand(5, 5) < 0.8}, True),
        ({"bias": torch.randn(6, 5, 5).bfloat16()}, True),
        ({"scale": 0.3}, True),
        ({"window": (1, 1)}, False),
        ({"causal": True, "query_offset": 1}, False),
        ({"causal": True, "mask": torch.rand(5, 5) < 0.8}, False),
        ({"softcap": 2.0}, False),
        ({"sinks": torch.zeros(6)}, False),
    ):
        called.clear()
        before = _kernel.calls()
        found = regard.attention(q, k, v, **arguments, return_lse=True)
        assert bool(called) == fits
        assert _kernel.calls() == before
        plain = {name: x.float() if name == "bias" else x for name, x in arguments.items()}
        plain = {name: np.asarray(x) if isinstance(x, Tensor) else x for name, x in plain.items()}
        expected = regard.attention(*map(array, (q, k, v)), **plain, return_lse=True)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, tensor(b), rtol=1e-4, atol=1e-5)
        before = _kernel.calls()
        look = regard.look(q, k, v, **arguments)
        assert _kernel.calls() == before
        assert look.check().verified
        kernel = regard.look(*map(array, (q, k, v)), **plain).weights[...]
        np.testing.assert_allclose(look.weights[...], kernel, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("elsewhere")
def test_pytorchs_signature_elsewhere(ran):
    q, k, v = normal(39, *[(2, 3, 5, 7)] * 3)
    mask = torch.rand(5, 5) < 0.7
    for arguments in ({}, {"attn_mask": mask}, {"is_causal": True}, {"scale": 0.3}):
        close(scaled_dot_product_attention(q, k, v, **arguments), theirs((q, k, v), **arguments))
    both = mask & torch.ones(5, 5, dtype=torch.bool).tril()
    close(scaled_dot_product_attention(q, k, v, mask, is_causal=True), theirs((q, k, v), both))
    assert ran() == (0, 0)


@pytest.mark.usefixtures("elsewhere")
def test_a_bad_bias_in_blocks():
    q, k, v = normal(35, *[(1, 2, 3, 7)] * 3)
    bias = torch.zeros(3, 3)
    bias[1, 1] = torch.inf
    with pytest.raises(ValueError, match="bias"):
        regard.attention(q, k, v, bias=bias, softcap=2.0)


# ----------------------------------------------------------------------------------------- looks


def test_a_look_at_tensors():
    q, k, v = normal(36, (2, 6, 5, 7), (2, 3, 5, 7), (2, 3, 5, 13), dtype=torch.bfloat16)
    q.requires_grad_()
    look = regard.look(q, k, v, causal=True)
    plain = regard.look(*map(array, (q, k, v)), causal=True)
    assert isinstance(look.weights[0, 1], np.ndarray)
    np.testing.assert_array_equal(look.weights[...], plain.weights[...])
    np.testing.assert_array_equal(look.lse, plain.lse)
    assert same(look.output, tensor(plain.output))
    look.output.sum().backward()
    assert q.grad is not None
    assert look.check().verified
    k.fill_(3.0)
    assert not look.check().verified
    kept = regard.look(q, k, v, causal=True, copy=True)
    k.fill_(1.0)
    assert kept.check().verified
    flat = regard.look(q[0, 0], k[0, 0], v[0, 0], window=(1, 0))
    assert flat.weights[...].shape == (5, 5)
    assert flat.check().verified


# -------------------------------------------------------------------------------------- autocast


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
def test_autocast_casts_as_it_does_for_pytorch(narrow):
    q, k, v = normal(37, *[(2, 3, 5, 16)] * 3)
    mask = torch.randn(5, 5)
    with torch.autocast("cpu", dtype=narrow):
        own = theirs((q, k.to(narrow), v), mask)
        found = scaled_dot_product_attention(q, k.to(narrow), v, mask)
        assert found.dtype == own.dtype == narrow
        assert scaled_dot_product_attention(q, k, v).dtype == narrow
        assert regard.attention(q, k, v.to(narrow)).dtype == narrow
        assert regard.attention(*(x.double() for x in (q, k, v))).dtype == torch.float64
        wanted = q.clone().requires_grad_()
        scaled_dot_product_attention(wanted, k, v).sum().backward()
        assert wanted.grad.dtype == torch.float32
    eps = torch.finfo(narrow).eps
    torch.testing.assert_close(found, own, rtol=2 * eps, atol=2 * eps)


# ------------------------------------------------------------------------------------- bad input


def test_errors_name_the_argument():
    q, k, v = normal(38, *[(1, 2, 3, 7)] * 3)
    for run in (regard.attention, scaled_dot_product_attention):
        with pytest.raises(TypeError, match=r"query.*sparse"):
            run(q.to_sparse(), k, v)
        with pytest.raises(TypeError, match=r"key.*nested"):
            run(q, torch.nested.nested_tensor([k[0], k[0]]), v)
        with pytest.raises(TypeError, match=r"value.*quantized"):
            run(q, k, torch.quantize_per_tensor(v, 0.1, 0, torch.qint8))
        with pytest.raises(TypeError, match=r"query.*int64"):
            run(q.long(), k.long(), v.long())
        with pytest.raises(TypeError, match=r"query.*uint16"):
            run(*(x.abs().to(torch.uint16) for x in (q, k, v)))
        with pytest.raises(TypeError, match=r"query.*complex64"):
            run(q.to(torch.complex64), k, v)
        with pytest.raises(ValueError, match=r"value.*\n.*\(1, 2, 5, 7\)"):
            run(q, k, torch.zeros(1, 2, 5, 7))
        with pytest.raises(ValueError, match="width"):
            run(q, k[..., :5], v)
    for arguments, error in (
        ({"window": 3}, TypeError),
        ({"ranges": torch.zeros(3)}, TypeError),
        ({"window": (-1, 0)}, ValueError),
        ({"causal": 1}, TypeError),
        ({"seed": 2**64, "dropout": 0.1}, ValueError),
        ({"seed": 0.5, "dropout": 0.1}, TypeError),
        ({"bias": torch.ones(3, 3, dtype=torch.bool)}, TypeError),
        ({"key_lengths": torch.tensor([4])}, ValueError),
        ({"precision": "low"}, ValueError),
    ):
        for needed in (False, True):
            with pytest.raises(error, match=next(iter(arguments))):
                regard.attention(q.requires_grad_(needed), k, v, **arguments)
