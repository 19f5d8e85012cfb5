"""Things people do with a layer, a recording and its views, from first to last."""

import os
import re
import subprocess
import sys
import warnings
from time import perf_counter

import numpy as np
import pytest
import torch
import transformers as hf
from browser import Opened, started
from rich.cells import cell_len

from regard.recording.capture import record
from regard.recording.recording import Recording

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
hf.logging.set_verbosity_error()


def gpt2(**options):
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 8, "vocab_size": 53, "n_positions": 16}
    ends = {"bos_token_id": 1, "eos_token_id": 52}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**sizes | ends | options)).eval()


def numbers(*shape):
    return torch.from_numpy(np.random.default_rng(3).integers(5, 50, shape))


@torch.no_grad()
def recorded(model, *inputs, **named) -> Recording:
    with record(model) as seen:
        model(*inputs, **named)
    return seen


def uniform(tokens) -> Recording:
    """One head with uniform causal weights over these tokens."""
    model = gpt2(n_layer=1, n_head=1)
    model.transformer.h[0].attn.c_attn.weight.data.zero_()
    seen = recorded(model, numbers(1, len(tokens)))
    seen.tokens = tokens
    rows = 1 / np.arange(1, len(tokens) + 1)
    assert np.allclose(seen.layers[0].weights[0, 0], np.tril(rows[:, None] + 0 * rows))
    return seen


@pytest.fixture(scope="module")
def page():
    with started() as running:
        yield Opened(running.new_page(viewport={"width": 1240, "height": 900}))


# ------------------------------------------------------------------ function and layer


def keras_layer(**options):
    from regard.keras import MultiHeadAttention

    return MultiHeadAttention(num_heads=2, key_dim=4, **options)


def test_dropout_only_in_training():
    import keras

    x, y = (np.random.default_rng(n).standard_normal((1, n, 8)).astype("f4") for n in (5, 7))
    keras.utils.set_random_seed(0)
    layer, plain = keras_layer(dropout=0.9), keras_layer()
    first, second = (np.asarray(layer(x, y)) for _ in range(2))
    plain(x, y)
    plain.set_weights(layer.get_weights())
    assert np.array_equal(first, second)
    assert np.allclose(first, np.asarray(plain(x, y)), atol=1e-6)
    assert not np.allclose(first, np.asarray(layer(x, y, training=True)))


def test_symbolic_scores():
    import keras

    from regard.keras import MultiHeadAttention

    query, value = keras.Input((3, 8)), keras.Input((5, 8))
    output, scores = MultiHeadAttention(4, 2)(query, value, return_attention_scores=True)
    assert output.shape == (None, 3, 8)
    assert scores.shape == (None, 4, 3, 5)
    model = keras.Model([query, value], [output, scores])
    given = [np.random.default_rng(n).standard_normal((2, n, 8)).astype("f4") for n in (3, 5)]
    assert np.allclose(model.predict(given, verbose=0)[1].sum(-1), 1, atol=1e-6)


def test_embedding_mask_meets_causal():
    import keras

    ids = np.array([[4, 7, 2, 0, 0, 0], [5, 0, 0, 0, 0, 0]])
    embed = keras.layers.Embedding(11, 8, mask_zero=True)
    for scores in (False, True):
        layer, x = keras_layer(), embed(ids)  # a call takes the mask off its inputs
        output = layer(x, x, use_causal_mask=True, return_attention_scores=scores)
        output, weights = output if scores else (output, None)
        assert np.isfinite(np.asarray(output)).all()
        if not scores:  # beside scores Keras hands no mask on
            assert np.array_equal(np.asarray(output._keras_mask), ids != 0)
    for item, length in enumerate((3, 1)):
        rows = np.asarray(weights)[item]
        allowed = np.tril(np.ones((6, 6), bool)) & (np.arange(6) < length)
        assert (rows[:, ~allowed] == 0).all()
        assert (rows[:, :length, :length][:, np.tril(np.ones((length, length), bool))] > 0).all()


def test_value_mask_with_distinct_sizes():
    query, value = (
        np.random.default_rng(n).standard_normal((2, n, 5)).astype("f4") for n in (3, 4)
    )
    mask = np.array([[True, True, True, False], [True, True, False, False]])
    _, weights = keras_layer()(query, value, value_mask=mask, return_attention_scores=True)
    weights = np.asarray(weights)
    assert weights.shape == (2, 2, 3, 4)
    assert (weights[0, ..., 3:] == 0).all()
    assert (weights[1, ..., 2:] == 0).all()
    assert np.allclose(weights.sum(-1), 1, atol=1e-6)


MEMORY = """
import resource, numpy as np, regard
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((1, n, 4096, 16), np.float32) for n in (8, 2, 2))
mask = rng.random((1, 1, 1, 4096)) < 0.7
mask[..., 0] = True
regard.attention(q[:, :, :64], k[:, :, :64], v[:, :, :64], causal=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
out = regard.attention(q, k, v, mask=mask, causal=True)
more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
for head, row in ((0, 0), (7, 4095), (3, 2047)):
    allowed = mask[0, 0, 0] & (np.arange(4096) <= row)
    s = np.where(allowed, k[0, head // 4].astype(float) @ q[0, head, row] / 4, -np.inf)
    w = np.exp(s - s.max())
    assert np.allclose(w / w.sum() @ v[0, head // 4], out[0, head, row], atol=1e-6)
print(more - out.nbytes)
"""


def test_masked_grouped_attention_in_memory():
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64 << 20


# ------------------------------------------------------------------ inspector


def test_recording_changes_nothing():
    model, ids = gpt2(), numbers(1, 6)
    with torch.no_grad():
        expected = model(ids).logits
        before = model.config._attn_implementation
        with record(model) as seen:
            given = model(ids).logits
    assert torch.equal(given, expected)
    for layer in seen.layers:
        weights = layer.weights[...]
        assert weights.shape == (1, 2, 6, 6)
        assert not np.triu(weights, 1).any()
        assert np.allclose(weights.sum(-1), 1, atol=1e-6)
    assert model.config._attn_implementation == before


def test_batch_of_several():
    config = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8, "vocab_size": 53}
    torch.manual_seed(0)
    model = hf.BertModel(hf.BertConfig(**config, intermediate_size=12)).eval()
    mask = (torch.arange(7) < torch.tensor([[7], [5], [2]])).long()
    ids = numbers(3, 7)
    seen = recorded(model, input_ids=ids, attention_mask=mask)
    one = seen.item(1)
    assert one.tokens == [[str(n) for n in ids[1, :5].tolist()]]
    assert one.layers[0].weights[...].shape == (2, 5, 5)
    assert np.array_equal(one.layers[0].weights[...], seen.layers[0].weights[1][:, :5, :5])
    for text in (one.to_terminal(colours="none"), seen.item(2).to_terminal(colours="none")):
        assert "nan" not in text
    with pytest.raises(IndexError, match=r"item 3: expected 0\.\.2"):
        seen.item(3)


def test_bfloat16_model(tmp_path):
    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"hidden_size": 32, "intermediate_size": 24, "vocab_size": 53}
    torch.manual_seed(0)
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**config | sizes)).eval().to(torch.bfloat16)
    seen = recorded(model, numbers(1, 5))
    weights = seen.layers[1].weights[...]
    assert (weights.dtype, weights.shape) == (np.float32, (1, 4, 5, 5))
    assert seen.check().verified
    assert "layer" in seen.to_terminal(colours="none")
    seen.to_figure().savefig(tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 5000
    assert seen.to_html(tmp_path / "x.html").stat().st_size > 50_000


def test_hooks_that_do_not_fire():
    model = gpt2()

    class Direct(torch.nn.Module):  # calls its attention's forward past all hooks
        def __init__(self):
            super().__init__()
            self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x, *args, **kwargs):
            return self.attention.forward(x, x, x)[0], None

    model.transformer.h[1].attn = Direct()
    with pytest.warns(UserWarning, match=r"transformer\.h\.1"):
        seen = recorded(model, numbers(1, 6))
    assert [layer.number for layer in seen.layers] == [0]
    assert any(name.startswith("transformer.h.1") for name in seen.unrecorded)


def test_own_scale_is_used():
    config = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    sizes = {"hidden_size": 32, "intermediate_size": 24, "vocab_size": 53, "head_dim": 16}
    torch.manual_seed(0)
    options = {"query_pre_attn_scalar": 1, "attn_logit_softcapping": 2.0, "sliding_window": 3}
    model = hf.Gemma2ForCausalLM(hf.Gemma2Config(**config | sizes | options)).eval()
    for name, weights in model.named_parameters():
        if "q_proj" in name or "k_proj" in name:
            weights.data *= 30
    ids = numbers(1, 7)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(ids, output_attentions=True).attentions
    seen = recorded(model, ids)
    for layer, given in zip(seen.layers, expected, strict=True):
        assert layer.call.rule.scale == 1.0
        assert layer.call.rule.softcap == 2.0
        assert np.abs(layer.scores[0, 0, 6, 4:]).max() > 1.5  # the cap is at work
        assert np.abs(layer.weights[...] - given.numpy()).max() < 1e-5
    assert seen.check().verified


# ------------------------------------------------------------------ views


def test_html_escapes_tokens(page, tmp_path):
    tokens = ["<s>", "</s>", "a<b", "<!--#x", '"q"', "'", "&lt;"]
    tokens.append("x<script>document.title='bad'</script>")
    shown = page.open(uniform(tokens).to_html(tmp_path / "x.html"))
    text = page.page.locator("body").inner_text()
    assert all(token in text for token in tokens)
    assert page.page.title() != "bad"
    assert page.page.locator("script:not([type='text/plain'])").count() == 2  # others carry numbers
    comments = "document.createNodeIterator(document, NodeFilter.SHOW_COMMENT).nextNode()"
    assert page.page.evaluate(f"{comments} === null || !{comments}.data.includes('#x')")
    shown.quiet()


def test_byte_level_markers(page, tmp_path):
    tokens = ["Hello", "Ġworld", "Ċ", "▁the", "##ing"]
    seen = uniform(tokens)
    page.open(seen.to_html(tmp_path / "x.html"))
    for text in (seen.to_terminal(colours="none"), page.page.locator("body").inner_text()):
        assert "world" in text
        assert not set("ĠĊ") & set(text)
    assert "↵" in page.page.locator("body").inner_text()
    assert seen.tokens == [tokens]  # as they are
    plain = uniform(["Hello", "world", "Ġ", "the"])
    assert "Ġ" in plain.to_terminal(colours="none")


def test_zero_width_characters(page, tmp_path):
    tokens = ["wo\u2060rd", "a\u200d", "", " ", "\t", "end"]
    marks = ["wo⟨2060⟩rd", "a⟨200D⟩", "(empty)", "␣", "⇥"]
    seen = uniform(tokens)
    text = seen.to_terminal(colours="none") + seen.to_terminal(colours="none", kind="matrix")
    body = page.open(seen.to_html(tmp_path / "x.html")).page.locator("body").inner_text()
    for mark in marks:
        assert mark in text, mark
        assert mark in body, mark
    assert "\t" not in text
    assert "(empty) → a⟨200D⟩" in text
    table = re.findall(r"^  (\S.* → .*?)(?=━)", text, re.MULTILINE)
    assert len(table) == 10
    assert len({cell_len(line) for line in table}) == 1  # the columns stand in line


def test_square_brackets_in_the_terminal(capsys):
    tokens = ["[INST]", "[/INST]", "[bold]", "[SEP]", "\x1b[31mred"]
    seen = uniform(tokens)
    for text in (seen.to_terminal(colours="none"), seen.to_terminal(colours="none", kind="matrix")):
        for token in ("[INST]", "[/INST]", "[bold]", "[SEP]", "␛[31mred"):
            assert token in text
        assert "\x1b" not in text
    coloured = seen.to_terminal(colours="truecolor")
    assert "\x1b[31m" not in coloured
    assert coloured.count("\x1b[0m") == len(re.findall(r"\x1b\[(?!0m)[\d;]*m", coloured))


def test_png_with_foreign_script(tmp_path):
    seen = uniform(["注意", "機構", "मन", "hello"])
    for kind in ("matrix", "lines"):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            seen.to_figure(kind=kind).savefig(tmp_path / f"{kind}.png")
        assert (tmp_path / f"{kind}.png").stat().st_size > 5000
        assert len(heard) <= 1


def test_page_stands_alone(page, tmp_path):
    path = uniform(["The", "cat", "sat"]).to_html(tmp_path / "x.html")
    page.page.context.set_offline(True)
    try:
        shown = page.open(path)
        assert page.word(1).is_visible()
        shown.quiet()
    finally:
        page.page.context.set_offline(False)
    outside = re.findall(r"""<[^>]*(?:src|href)\s*=\s*["']?(?!#|data:)[\w/:.]+""", path.read_text())
    assert outside == []


@pytest.mark.long
def test_long_sequence(page, tmp_path, capsys):
    model = gpt2(n_layer=12, n_head=12, n_embd=96, n_positions=1024)
    seen = recorded(model, numbers(1, 1024))
    begin = perf_counter()
    path = seen.to_html(tmp_path / "x.html")
    written = perf_counter() - begin
    page.open(path)
    with capsys.disabled():
        print(f"\n{path.stat().st_size / 1e6:.1f} MB, written in {written:.1f} s, "
              f"open after {perf_counter() - begin - written:.1f} s")  # fmt: skip
    assert written < 20
    assert path.stat().st_size < 64e6
    assert page.sentence()
