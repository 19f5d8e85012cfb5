"""Recording Hugging Face models: nothing changes, everything is right, what is missing is named."""

import gc
import weakref

import numpy as np
import pytest
import torch
import transformers
from embedded import BANK, CAT, loaded, recorded
from embedded import eager as embedded_eager
from tiny import eager, ids, padded, tiny, worst
from transformers.modeling_utils import AttentionInterface

import regard
from regard.recording import watcher
from regard.recording.capture import record
from regard.recording.rules import translate

ENCODER_DECODER = {"input_ids": ids(1, 5), "decoder_input_ids": ids(2, 3)[1:]}


def test_the_embedded_model_agrees_with_its_eager_attention():
    for text in (CAT, BANK):
        apart = [
            np.abs(layer.weights[0] - given).max()
            for layer, given in zip(recorded(text).layers, embedded_eager(text), strict=True)
        ]
        assert max(apart) < 2e-6


def test_eager_attention_is_never_called(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("eager attention was called")

    monkeypatch.setattr(transformers.models.bert.modeling_bert, "eager_attention_forward", refuse)
    model, tokenizer, _ = loaded()
    with torch.no_grad(), record(model, tokenizer=tokenizer) as seen:
        model(**tokenizer(CAT, return_tensors="pt"))
    assert len(seen.layers) == 6
    assert seen.layer(3).weights[0, 1, 8, 2] == pytest.approx(0.49, abs=0.005)


def test_what_is_kept_is_small_where_the_model_says_it_in_a_mask():
    model = tiny("LlamaForCausalLM")
    shapes = {}
    mask = torch.ones(2, 11, dtype=torch.long)
    mask[0, :4] = mask[1, 3:6] = 0  # padding on the left, and in the middle
    for label, inputs in {"left": padded("left"), "middle": {"input_ids": ids(2, 11)}}.items():
        given = inputs if label == "left" else inputs | {"attention_mask": mask}
        with torch.no_grad(), record(model) as seen:
            model(**given)
        shapes[label] = {
            name: np.shape(value) for name, value in seen.layers[0].kept.options.items()
        }
        assert seen.layers[1].kept.options["ranges"] is seen.layers[2].kept.options["ranges"]
        assert worst(seen, eager(model, **given)) < 5e-6
    assert shapes["left"] == {"scale": (), "ranges": (2, 3, 11), "query_offset": ()}
    assert shapes["middle"]["mask"] == (2, 1, 1, 11)


def test_grouped_heads_are_not_repeated():
    model = tiny("LlamaForCausalLM")
    with torch.no_grad(), record(model) as seen:
        model(ids(1, 11))
    layer = seen.layers[0]
    assert layer.kept.query.shape == (1, 6, 11, 8)
    assert layer.kept.key.shape == layer.kept.value.shape == (1, 2, 11, 8)
    assert layer.shape == (1, 6, 11, 11)
    assert layer.name == "model.layers.0.self_attn"
    assert (layer.number, layer.kind) == (0, "decoder")


@pytest.mark.parametrize("side", ["left", "right"])
def test_an_item_of_a_batch_is_the_sequence_alone(side):
    model = tiny("LlamaForCausalLM" if side == "left" else "BertModel")
    inputs = padded(side)
    with torch.no_grad(), record(model) as seen:
        model(**inputs)
    assert seen.run.items == 3
    assert [len(tokens) for tokens in seen.tokens] == [11, 11, 11]
    for item, length in enumerate((11, 7, 4)):
        one = seen.item(item)
        assert [layer.shape[-2:] for layer in one.layers] == [(length, length)] * len(one.layers)
        real = inputs["attention_mask"][item].bool()
        assert one.tokens == [[str(n) for n in inputs["input_ids"][item][real].tolist()]]
        expected = seen.layers[1].weights[item][:, real.numpy()][..., real.numpy()]
        assert np.array_equal(one.layers[1].weights[...], expected)
        np.testing.assert_allclose(expected.sum(-1), 1, atol=1e-6)
        assert one.check().verified
    with pytest.raises(IndexError, match=r"item 3: expected 0\.\.2"):
        seen.item(3)


def test_padding_that_the_model_reads_all_the_same_is_not_cut_away():
    model = tiny("BertModel")

    def deaf(module, args, kwargs):  # the layers get no mask, whatever the caller said
        return args, kwargs | {"attention_mask": None}

    handle = model.encoder.register_forward_pre_hook(deaf, with_kwargs=True)
    try:
        with torch.no_grad(), record(model) as seen:
            model(**padded("right"))
    finally:
        handle.remove()
    assert seen.item(2).layers[0].shape == (3, 11, 11)
    np.testing.assert_allclose(seen.item(2).layers[0].weights[...].sum(-1), 1, atol=1e-6)


def test_a_small_float_type():
    model = tiny("LlamaForCausalLM", sharp=2.0).to(torch.bfloat16)
    try:
        with torch.no_grad(), record(model) as seen:
            model(ids(1, 5))
    finally:
        model.to(torch.float32)
    layer = seen.layers[0]
    assert str(layer.kept.query.dtype) == "bfloat16"
    assert layer.weights[...].dtype == np.float32
    assert layer.weights.shape == (1, 6, 5, 5)
    assert seen.check().verified


# ------------------------------------------------------------------ nothing is left behind


def hooks(model):
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()
    )


def test_everything_is_put_back_when_the_call_raises():
    model, fetch = tiny("GPT2LMHeadModel"), AttentionInterface.get_interface
    before = hooks(model)  # transformers leaves some of its own
    recorder = record(model)
    seen = recorder.__enter__()
    model(ids(1, 6))
    assert not recorder.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert len(seen.layers) == 2
    with pytest.raises(IndexError), record(model):
        model(torch.tensor([[99]]))  # no such token
    assert AttentionInterface.get_interface is fetch
    assert hooks(model) == before


def test_recorders_within_each_other_and_side_by_side():
    outer, inner, fetch = (
        tiny("GPT2LMHeadModel"),
        tiny("BertModel"),
        AttentionInterface.get_interface,
    )
    before = hooks(outer) + hooks(inner)
    first, second, third = record(outer), record(inner), record(outer)
    a, b = first.__enter__(), second.__enter__()
    with torch.no_grad():
        outer(ids(1, 6))
        inner(ids(1, 5))
    c = third.__enter__()
    first.__exit__(None, None, None)  # not in the reverse order
    with torch.no_grad():
        outer(ids(1, 4))
    second.__exit__(None, None, None)
    third.__exit__(None, None, None)
    assert [x.layers[0].shape[-1] for x in (a, b, c)] == [6, 5, 4]
    assert AttentionInterface.get_interface is fetch
    assert hooks(outer) + hooks(inner) == before


def test_no_graph_is_kept():
    model = transformers.GPT2LMHeadModel(tiny("GPT2LMHeadModel").config)
    with record(model, layers=[1]) as seen:
        output = model(ids(1, 6)).logits
    assert output.requires_grad
    assert [layer.number for layer in seen.layers] == [1]
    gone = weakref.ref(model)
    del model, output
    gc.collect()
    assert gone() is None
    assert isinstance(seen.layers[0].kept.query, np.ndarray)
    output = seen.layers[0].output
    assert output.shape == (1, 2, 6, 8)


def test_arrays_are_our_own():
    model = tiny("LlamaForCausalLM")
    arrays = []
    with torch.no_grad(), record(model) as seen:
        hook = model.model.layers[0].self_attn.o_proj.register_forward_pre_hook(
            lambda module, args: arrays.append(args[0])
        )
        model(ids(1, 6))
        hook.remove()
    assert all(kept.flags.owndata for kept in (seen.layers[0].kept.query, seen.layers[0].kept.key))


# ------------------------------------------------------------------ what is asked of it


def test_some_heads_layers_and_tokens():
    model, inputs = tiny("LlamaForCausalLM"), {"input_ids": ids(1, 11)}
    expected = eager(model, **inputs)[None]
    with torch.no_grad(), record(model, layers=[2, 0], heads=[5, 1], tokens=(4, 9)) as seen:
        model(**inputs)
    assert [layer.number for layer in seen.layers] == [0, 2]
    assert seen.unrecorded == {}
    for layer in seen.layers:
        assert layer.heads.tolist() == [5, 1]
        assert layer.shape == (1, 2, 5, 11)
        assert layer.offset == 4
        given = expected[layer.number][:, [5, 1], 4:9]
        assert np.abs(layer.weights[...] - given).max() < 5e-6
    assert seen.check().verified
    assert set(seen.heads()["head"]) == {5, 1}
    with pytest.raises(ValueError, match="rollout needs all rows"):
        seen.rollout(seen.words()[5])
    with pytest.raises(ValueError, match="what it reads was not recorded"):
        seen.reads(seen.words()[2])
    assert len(seen.reads(seen.words()[5])) > 0
    assert set(seen.edges()["query"]) <= set(range(4, 9))


def test_kept_in_float16_it_says_what_that_costs():
    model = tiny("LlamaForCausalLM", sharp=2.0)
    with torch.no_grad(), record(model, dtype="float16") as seen:
        model(ids(1, 11))
    assert seen.layers[0].kept.key.dtype == np.float16
    assert 1e-5 < seen.check().relative < 2e-3
    assert seen.check().verified


def test_with_our_kernel():
    model, inputs = tiny("LlamaForCausalLM"), padded("left")
    with torch.no_grad():
        expected = model(**inputs).logits
        with record(model, engine="regard") as seen:
            given = model(**inputs).logits
    real = inputs["attention_mask"].bool()
    apart = (given - expected)[real].abs().max() / expected[real].abs().max()
    assert 0 < apart < 1e-5
    assert worst(seen, eager(model, **inputs)) < 5e-6
    with pytest.raises(ValueError, match="no gradients"), record(model, engine="regard"):
        model(**inputs)


def test_with_our_kernel_attention_is_computed_once(monkeypatch):
    model, calls, computed = tiny("BertModel"), [], watcher.compute

    def counted(*args, **kwargs):
        calls.append(computed(*args, **kwargs))
        return calls[-1]

    monkeypatch.setattr(watcher, "compute", counted)
    with torch.no_grad(), record(model, engine="regard") as seen:
        model(**padded("right"))
    assert len(calls) == len(seen.layers) == 2
    assert str(seen.check()) == "matches the model exactly"
    for layer, (output, lse) in zip(seen.layers, calls, strict=True):
        assert np.array_equal(layer.kept.lse, lse)
        assert np.array_equal(layer.output, output)


def test_a_run_is_one_call():
    model = tiny("BertModel")
    with torch.no_grad(), record(model) as seen:
        model(ids(1, 5))
        assert seen.layers[0].shape == (1, 3, 5, 5)  # readable on the way
        model(ids(1, 7))
    assert [run.layers[0].shape[-1] for run in seen.runs] == [5, 7]
    assert seen.layers[0].shape[-1] == 7
    assert [step.layers[0].shape for step in seen.run.steps] == [(1, 3, 7, 7)]


def test_layers_by_number():
    model = tiny("BartForConditionalGeneration")
    with torch.no_grad(), record(model) as seen:
        model(**ENCODER_DECODER)
    kinds = [(layer.kind, layer.number, layer.shape[-2:]) for layer in seen.layers]
    assert kinds == [
        ("encoder", 0, (5, 5)),
        ("encoder", 1, (5, 5)),
        ("decoder", 0, (3, 3)),
        ("cross", 0, (3, 5)),
        ("decoder", 1, (3, 3)),
        ("cross", 1, (3, 5)),
    ]
    cross = seen.layer(1, "cross")
    assert cross.query_labels == [str(n) for n in ENCODER_DECODER["decoder_input_ids"][0].tolist()]
    assert cross.key_labels == [str(n) for n in ENCODER_DECODER["input_ids"][0].tolist()]
    with pytest.raises(KeyError, match="there are several"):
        seen.layer(1)
    with pytest.raises(KeyError, match="not recorded"):
        seen.layer(7)
    with pytest.raises(ValueError, match="expected 3 labels, received 5"):
        cross.labels(queries=cross.key_labels)


# ------------------------------------------------------------------ what cannot be recorded


def test_layers_without_attention_are_named_and_keep_their_number():
    model = tiny("JambaForCausalLM")
    with torch.no_grad(), pytest.warns(UserWarning, match=r"model\.layers\.0: JambaMamba"):  # noqa: SIM117
        with record(model) as seen:
            model(ids(1, 7))
    assert [layer.number for layer in seen.layers] == [1, 3]
    assert list(seen.unrecorded) == ["model.layers.0", "model.layers.2"]


def test_flex_attention_is_an_error_that_names_the_setting():
    model = tiny("LlamaForCausalLM", num_hidden_layers=2)
    model.set_attn_implementation("flex_attention")
    try:
        with pytest.raises(RuntimeError, match=r"set_attn_implementation\('sdpa'\)"):  # noqa: SIM117
            with torch.no_grad(), record(model):
                model(ids(1, 7))
    finally:
        model.set_attn_implementation("sdpa")


def test_a_model_with_attention_of_its_own_is_an_error():
    model = tiny("DebertaV2Model")
    with pytest.raises(RuntimeError, match="DebertaV2Model computes attention in code of its own"):  # noqa: SIM117
        with torch.no_grad(), record(model):
            model(ids(1, 7))


def test_no_call_at_all_is_an_error():
    model = tiny("BertModel")
    with pytest.raises(RuntimeError, match="the model was not called"), record(model):
        pass
    with pytest.raises(RuntimeError, match=r"no attention has a number in layers=\[9\]"):  # noqa: SIM117
        with torch.no_grad(), record(model, layers=[9]):
            model(ids(1, 7))


def test_an_attention_that_cannot_be_recorded_is_named_and_the_model_goes_on(monkeypatch):
    model = tiny("BertModel")

    def some(implementation, module, *call):
        if module is model.encoder.layer[0].attention.self:
            implementation = "flex_attention"
        return translate(implementation, module, *call)

    monkeypatch.setattr(watcher, "translate", some)
    with torch.no_grad():
        expected = model(ids(1, 7))[0]
        with pytest.warns(UserWarning, match="keeps its mask in a form of its own"):  # noqa: SIM117
            with record(model) as seen:
                given = model(ids(1, 7))[0]
    assert torch.equal(given, expected)
    assert [layer.number for layer in seen.layers] == [1]
    assert list(seen.unrecorded) == ["encoder.layer.0.attention.self"]


# ------------------------------------------------------------------ how much is kept


def test_too_much_is_refused_before_anything_runs():
    model, ran = tiny("LlamaForCausalLM"), []
    hook = model.model.embed_tokens.register_forward_hook(lambda *_: ran.append(1))
    need = 3 * 11 * (6 * (8 * 4 + 8) + 2 * 2 * 8 * 4)
    try:
        with pytest.raises(ValueError, match=r"would keep about .* over limit=.* layers="):  # noqa: SIM117
            with torch.no_grad(), record(model, limit=need - 1):
                model(ids(1, 11))
        assert ran == []
        for less in ({"layers": [1]}, {"heads": [0]}, {"tokens": (0, 5)}, {"dtype": "float16"}, {}):
            with torch.no_grad(), record(model, limit=need - (1 if less else 0), **less):
                model(ids(1, 11))
    finally:
        hook.remove()


def test_a_generation_that_grows_too_large_goes_on_unrecorded():
    model = tiny("LlamaForCausalLM")
    need = 3 * 13 * (6 * (8 * 4 + 8) + 2 * 2 * 8 * 4)
    options = {"max_new_tokens": 6, "do_sample": False}
    with torch.no_grad():
        expected = model.generate(ids(1, 11), **options)
        with pytest.warns(UserWarning, match="recording stopped in step 3"):  # noqa: SIM117
            with record(model, limit=need) as seen:
                given = model.generate(ids(1, 11), **options)
    assert torch.equal(given, expected)
    assert {layer.shape for layer in seen.layers} == {(1, 6, 13, 13)}
    assert "recording stopped in step 3 at model.layers.0.self_attn" in repr(seen)
    assert seen.tokens == [[str(n) for n in given[0, :13].tolist()]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"engine": "ours"}, "engine: expected 'model' or 'regard'"),
        ({"dtype": "int8"}, "dtype: expected one of"),
        ({"dtype": "no such"}, "dtype: expected one of"),
        ({"tokens": (5, 5)}, "tokens: expected"),
        ({"tokens": slice(0, 9, 2)}, "tokens: expected"),
    ],
)
def test_arguments_that_make_no_sense(arguments, message):
    with pytest.raises(ValueError, match=message), record(tiny("BertModel"), **arguments):
        pass


def test_what_is_no_model():
    message = "expected a PyTorch or Keras model, received str"
    with pytest.raises(TypeError, match=message), record("bert"):
        pass


def test_a_head_that_is_not_there():
    with pytest.raises(RuntimeError, match=r"heads: expected 0\.\.2, received \[3\]"):  # noqa: SIM117
        with torch.no_grad(), record(tiny("BertModel"), heads=[3]):
            tiny("BertModel")(ids(1, 5))


def test_the_public_name():
    assert regard.record is record
