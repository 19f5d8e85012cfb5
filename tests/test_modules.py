"""Recording PyTorch modules that Hugging Face knows nothing of: same answers, right weights."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention as imported

from regard.recording.capture import record
from regard.transformers.mask import attention_mask

ITEMS, TOKENS, HEADS, WIDTH = 3, 11, 2, 14  # 7 wide each
LENGTHS = (11, 7, 5)


def made(kind, *args, **options):
    """A module in eval mode, sharp enough that attention is no mean."""
    torch.manual_seed(0)
    module = kind(*args, **options).eval()
    for name, weights in module.named_parameters():
        if weights.ndim == 2 and ("in_proj" in name or "c_attn" in name or "qkv" in name):
            weights.data *= 4
    return module


class CausalAttention(nn.Module):
    """As people write it: one projection, heads by view, and the fused function or none."""

    def __init__(self, fused=True):
        super().__init__()
        self.c_attn, self.c_proj, self.fused = nn.Linear(14, 42), nn.Linear(14, 14), fused

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, HEADS, 7).transpose(1, 2) for p in self.c_attn(x).split(c, dim=2))
        if self.fused:
            y = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(7)
            hidden = torch.ones(t, t, dtype=torch.bool).triu(1)
            self.weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
            y = self.weights @ v
        return self.c_proj(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, fused=True, direct=False):
        super().__init__()
        self.ln, self.attn, self.direct = nn.LayerNorm(14), CausalAttention(fused), direct

    def forward(self, x):
        return x + (self.attn.forward if self.direct else self.attn)(self.ln(x))


class NanoGPT(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.wte, self.h = nn.Embedding(53, 14), nn.ModuleList(Block(**options) for _ in range(3))

    def forward(self, idx):
        x = self.wte(idx)
        for block in self.h:
            x = block(x)
        return x


class VisionAttention(nn.Module):
    """A block as in timm: queries, keys and values in one, a function imported by name."""

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(14, 42), nn.Linear(14, 14)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, HEADS, 7).permute(2, 0, 3, 1, 4).unbind(0)
        self.weights = ((q * 7**-0.5) @ k.transpose(-2, -1)).softmax(-1)
        return self.proj(imported(q, k, v).transpose(1, 2).reshape(b, n, c))


class Vision(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleDict({"attn": VisionAttention()}) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = x + block["attn"](x)
        return x


def ids():
    return torch.from_numpy(np.random.default_rng(3).integers(5, 50, (ITEMS, TOKENS)))


def vectors(tokens=TOKENS):
    return torch.randn(ITEMS, tokens, WIDTH, generator=torch.manual_seed(1))


def padding():
    return torch.arange(TOKENS) >= torch.tensor(LENGTHS)[:, None]


def watched(model, *args, **options):
    """A recording, made of a call that gives the same bits with it, without it, and after it."""
    with torch.no_grad():
        before = model(*args, **options)
        with record(model) as seen:
            given = model(*args, **options)
        after = model(*args, **options)
    for other in (given, after):
        pairs = zip(before, other, strict=True) if isinstance(before, tuple) else [(before, other)]
        assert all(torch.equal(a, b) for a, b in pairs if a is not None)
    assert seen.check().verified
    assert 0 < seen.check().relative < 3e-6
    return seen


@pytest.mark.parametrize("direct", [False, True])
def test_a_model_written_by_hand(direct):
    model, plain = made(NanoGPT, direct=direct), made(NanoGPT, fused=False)
    seen = watched(model, ids())
    with torch.no_grad():
        plain(ids())
    assert [layer.name for layer in seen.layers] == ["h.0.attn", "h.1.attn", "h.2.attn"]
    assert [(layer.number, layer.kind) for layer in seen.layers] == [
        (n, "decoder") for n in range(3)
    ]
    for layer, block in zip(seen.layers, plain.h, strict=True):
        assert np.abs(layer.weights[...] - block.attn.weights.numpy()).max() < 2e-6
    assert seen.tokens == [[str(n) for n in row] for row in ids().tolist()]
    assert len(seen.heads()) == 3 * HEADS
    assert len(seen.edges()) == 100


class Named(nn.Module):
    """Layers whose names have no numbers, called in another order than they are declared."""

    def __init__(self):
        super().__init__()
        self.wte, self.later, self.sooner = nn.Embedding(53, 14), Block(), Block()

    def forward(self, idx):
        return self.later(self.sooner(self.wte(idx)))


def test_names_without_numbers_are_counted_in_order_of_their_first_call():
    model = made(Named)
    with torch.no_grad(), record(model) as seen:
        model(ids()), model(ids())
    for run in seen.runs:
        assert [(layer.number, layer.name) for layer in run.layers] == [
            (0, "sooner.attn"),
            (1, "later.attn"),
        ]


def test_what_computes_its_weights_itself_is_an_error_that_says_so():
    model = made(NanoGPT, fused=False)
    with pytest.raises(RuntimeError, match="NanoGPT computes attention in code of its own"):  # noqa: SIM117
        with torch.no_grad(), record(model):
            model(ids())


def test_a_block_of_a_vision_model():
    model = made(Vision)
    seen = watched(model, vectors())
    assert [layer.name for layer in seen.layers] == ["blocks.0.attn", "blocks.1.attn"]
    for layer, block in zip(seen.layers, model.blocks, strict=True):
        assert layer.kind == "encoder"
        assert np.abs(layer.weights[...] - block["attn"].weights.numpy()).max() < 2e-6


def attended(**options):
    return made(nn.MultiheadAttention, WIDTH, HEADS, **{"batch_first": True} | options)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_first": False},
        {"bias": False},
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"kdim": 14, "vdim": 5},
    ],
    ids=str,
)
def test_multihead_attention(options, need_weights):
    module = attended(**options)
    x = vectors()
    value = vectors()[..., : options.get("vdim", WIDTH)].contiguous()
    if value.shape == x.shape:
        value = x
    masks = {"key_padding_mask": padding()}
    if not module.batch_first:
        x = value = x.transpose(0, 1)
    seen = watched(module, x, x, value, need_weights=need_weights, **masks)
    with torch.no_grad():
        _, expected = module(x, x, value, average_attn_weights=False, **masks)
    assert np.abs(seen.layers[0].weights[...] - expected.numpy()).max() < 2e-6


def test_masks_of_both_kinds_and_another_sequence():
    module = attended()
    x, other = vectors(), vectors(7)
    causal = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    seen = watched(module, x, x, x, attn_mask=causal, key_padding_mask=padding())
    with torch.no_grad():
        _, expected = module(
            x, x, x, attn_mask=causal, key_padding_mask=padding(), average_attn_weights=False
        )
    assert seen.layers[0].kind == "decoder"
    assert "mask" not in seen.layers[0].kept.options  # two numbers a row say it
    assert np.abs(seen.layers[0].weights[...] - expected.numpy()).max() < 2e-6
    assert seen.item(2).layers[0].shape == (HEADS, 5, 5)

    seen = watched(module, x, other, other)
    with torch.no_grad():
        _, expected = module(x, other, other, average_attn_weights=False)
    assert (seen.layers[0].kind, seen.layers[0].shape) == ("cross", (ITEMS, HEADS, TOKENS, 7))
    assert np.abs(seen.layers[0].weights[...] - expected.numpy()).max() < 2e-6


def encoder(**options):
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 20, batch_first=True, **options)
    return made(nn.TransformerEncoder, layer, 3, enable_nested_tensor=not options.get("norm_first"))


@pytest.mark.parametrize("options", [{}, {"activation": "gelu"}, {"norm_first": True}], ids=str)
@pytest.mark.parametrize("padded", [False, True])
def test_an_encoder_keeps_its_fast_path(options, padded):
    model, x = encoder(**options), vectors()
    given = {"src_key_padding_mask": padding()} if padded else {}
    weights, handles = [], []

    def ask(module, args, kwargs):
        q, k, v = (x.to_padded_tensor(0.0) if x.is_nested else x for x in args)
        mask = padding() if padded else None
        with torch.no_grad():
            found = functional.multi_head_attention_forward(
                *(x.transpose(0, 1) for x in (q, k, v)), WIDTH, HEADS, module.in_proj_weight,
                module.in_proj_bias, None, None, False, 0.0, module.out_proj.weight,
                module.out_proj.bias, training=False, key_padding_mask=mask,
                average_attn_weights=False,
            )  # fmt: skip
        weights.append(found[1].numpy())

    seen = watched(model, x, **given)
    for layer in model.layers:
        handles.append(layer.self_attn.register_forward_pre_hook(ask, with_kwargs=True))
    with torch.no_grad():
        model(x, **given)
    for handle in handles:
        handle.remove()
    assert [layer.name for layer in seen.layers] == [f"layers.{n}.self_attn" for n in range(3)]
    assert [layer.number for layer in seen.layers] == [0, 1, 2]
    real = ~padding().numpy() if padded else np.ones((ITEMS, TOKENS), bool)
    for layer, expected in zip(seen.layers, weights, strict=True):
        apart = np.abs(layer.weights[...] - expected).transpose(0, 2, 1, 3)[real]
        assert apart.max() < 1e-5  # asked by a hook, a layer leaves its fast path and rounds anew
    if padded:
        assert [seen.item(n).layers[0].shape[-1] for n in range(ITEMS)] == list(LENGTHS)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_layer_alone_keeps_its_fast_path(norm_first):
    layer = made(
        nn.TransformerEncoderLayer, WIDTH, HEADS, 20, batch_first=True, norm_first=norm_first
    )
    seen = watched(layer, vectors(), src_key_padding_mask=padding())
    assert [found.name for found in seen.layers] == ["self_attn"]
    with pytest.raises(RuntimeError), torch.no_grad(), record(layer):
        layer(vectors()[..., :5])
    watched(layer, vectors())


def test_encoder_and_decoder_of_pytorch():
    model = made(
        nn.Transformer, WIDTH, HEADS, num_encoder_layers=2, num_decoder_layers=2,
        dim_feedforward=20, batch_first=True,
    )  # fmt: skip
    target = vectors()[:, :5]
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    seen = watched(model, vectors(), target, tgt_mask=mask, tgt_is_causal=True)
    found = [(layer.kind, layer.number, layer.shape[-2:]) for layer in seen.layers]
    assert found == [
        ("encoder", 0, (11, 11)),
        ("encoder", 1, (11, 11)),
        ("decoder", 0, (5, 5)),
        ("cross", 0, (5, 11)),
        ("decoder", 1, (5, 5)),
        ("cross", 1, (5, 11)),
    ]


def test_everything_is_put_back_after_an_error():
    model = encoder()
    with pytest.raises(RuntimeError), torch.no_grad(), record(model):
        model(vectors()[..., :5])
    assert not torch.overrides._get_current_function_mode_stack()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert functional.scaled_dot_product_attention is imported
    watched(model, vectors(), src_key_padding_mask=padding())


def test_some_heads_and_a_small_dtype():
    for model, given in ((made(NanoGPT), ids()), (encoder(), vectors())):
        with torch.no_grad():
            whole = watched(model, given)
            with record(model, heads=[1], layers=[1], dtype="float16") as seen:
                model(given)
        (layer,) = seen.layers
        assert layer.kept.query.dtype == np.float16
        assert (layer.number, layer.heads.tolist()) == (1, [1])
        assert np.abs(layer.weights[:, 0] - whole.layers[1].weights[:, 1]).max() < 5e-3
        assert 1e-6 < seen.check().relative < 2e-3


def test_with_our_kernel():
    for model, given in ((made(NanoGPT), ids()), (encoder(), vectors())):
        with torch.no_grad():
            expected = model(given)
            with record(model, engine="regard") as seen:
                found = model(given)
        assert len(seen.layers) == 3
        assert 0 < (found - expected).abs().max() < 1e-5 * expected.abs().max()


def test_recorders_within_each_other():
    model = encoder()
    with torch.no_grad(), record(model) as outer, record(model) as inner:
        model(vectors(), src_key_padding_mask=padding())
    assert len(outer.layers) == len(inner.layers) == 3
    model = made(NanoGPT)
    with torch.no_grad(), record(model) as outer, record(model) as inner:
        model(ids())
    assert len(outer.layers) == len(inner.layers) == 3


class PastItsHooks(nn.Module):
    """A block that calls its attention's `forward`, which no hook sees."""

    def __init__(self):
        super().__init__()
        self.first = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.second = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x):
        x = self.first(x, x, x)[0]
        return self.second.forward(x, x, x)[0]


def test_hooks_that_do_not_fire_are_named():
    model = made(PastItsHooks)
    with torch.no_grad(), pytest.warns(UserWarning, match="second: its forward was called past"):  # noqa: SIM117
        with record(model) as seen:
            model(vectors())
    assert [layer.name for layer in seen.layers] == ["first"]
    assert list(seen.unrecorded) == ["second"]


@pytest.mark.filterwarnings(
    "ignore:.*torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning"
)
def test_a_compiled_script_is_named():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.open, self.closed = (
                CausalAttention(),
                torch.jit.trace(CausalAttention(), vectors()),
            )

        def forward(self, x):
            return self.closed(self.open(x))

    model = made(Both)
    with torch.no_grad(), pytest.warns(UserWarning, match="closed: a TorchScript module"):  # noqa: SIM117
        with record(model) as seen:
            model(vectors())
    assert [layer.name for layer in seen.layers] == ["open"]


class MaskedAttention(nn.Module):
    """One head, whose keys are masked by whatever it is given."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(14, 42)

    def forward(self, x, mask):
        q, k, v = (part[:, None] for part in self.qkv(x).split(14, dim=-1))
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)[:, 0]


@pytest.mark.parametrize("kind", ["two axes", "a rule"])
def test_a_mask_of_any_form(kind):
    seen_keys = torch.arange(TOKENS) != 4
    mask = seen_keys[None] if kind == "two axes" else attention_mask(ITEMS, TOKENS, TOKENS)
    module, x = made(MaskedAttention), torch.randn(ITEMS, TOKENS, 14)
    with torch.no_grad(), record(module) as seen:
        module(x, mask)
    allowed = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    allowed = seen_keys.expand(TOKENS, TOKENS) if kind == "two axes" else allowed
    assert np.array_equal(seen.layers[0].allowed[0, 0], allowed.numpy())
    assert seen.check().verified
