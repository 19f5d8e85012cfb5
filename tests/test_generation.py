"""Generation: prompt and new tokens as one picture, whatever cache the model keeps."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from optimum.quanto.library.extensions import get_extension
from tiny import eager, ids, padded, tiny, worst

import regard.transformers  # noqa: F401
from regard.recording.capture import record


def generated(model, new=4, **inputs):
    """(what was generated, the recording)."""
    options = {"max_new_tokens": new, "do_sample": False}
    with torch.no_grad():
        expected = model.generate(**inputs, **options)
        with record(model) as seen:
            output = model.generate(**inputs, **options)
    assert torch.equal(output, expected)
    return output, seen


def test_steps_and_the_whole():
    model = tiny("GPT2LMHeadModel")
    output, seen = generated(model, new=3, input_ids=ids(1, 4))
    assert [step.layers[1].shape for step in seen.run.steps] == [
        (1, 2, 4, 4),
        (1, 2, 1, 5),
        (1, 2, 1, 6),
    ]
    assert len(seen.runs) == 1
    layer = seen.layers[1]
    assert layer.shape == (1, 2, 6, 6)  # the last new token was never fed
    assert np.array_equal(np.triu(layer.weights[0, 0], 1), np.zeros((6, 6)))
    np.testing.assert_allclose(layer.weights[...].sum(-1), 1, atol=1e-6)
    assert worst(seen, eager(model, input_ids=output[:, :-1])) < 5e-6
    # The row that chose the first new token is the last one of the prompt.
    assert np.array_equal(
        seen.run.steps[0].layers[1].weights[..., -1, :], layer.weights[..., 3, :4]
    )
    assert np.array_equal(seen.run.steps[2].layers[1].weights[..., 0, :], layer.weights[..., 5, :])
    assert seen.tokens == [[str(n) for n in output[0, :-1].tolist()]]
    assert seen.check().verified


@pytest.mark.parametrize("attention", ["sdpa", "regard"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "MistralForCausalLM", "GptOssForCausalLM"])
def test_every_cache_gives_the_same_picture(name, cache, attention):
    model, inputs = tiny(name), padded("left")
    if attention == "regard" or model._supports_sdpa:
        model.set_attn_implementation(attention)
    output, seen = generated(model, **inputs, cache_implementation=cache)
    whole = torch.cat([inputs["attention_mask"], torch.ones(3, 3, dtype=torch.long)], 1)
    expected = eager(model, input_ids=output[:, :-1], attention_mask=whole)
    assert {layer.shape for layer in seen.layers} == {(3, 6, 14, 14)}
    assert worst(seen, expected) < 5e-6
    assert [seen.item(i).layers[0].shape[-1] for i in range(3)] == [14, 10, 7]
    assert seen.item(2).tokens[0] == [str(n) for n in output[2, 7:-1].tolist()]
    assert seen.check().verified


def test_it_can_be_looked_at_while_it_grows():
    model, shapes = tiny("MistralForCausalLM"), []

    def look(tokens, logits):
        layer = seen.layers[2]
        shapes.append(layer.shape)
        assert np.allclose(layer.weights[0, 4, -1].sum(), 1, atol=1e-6)
        assert len(seen.tokens[0]) == layer.shape[-1] == tokens.shape[-1]
        return logits

    with torch.no_grad(), record(model) as seen:
        model.generate(ids(1, 5), max_new_tokens=3, do_sample=False, logits_processor=[look])
    assert shapes == [(1, 6, 5, 5), (1, 6, 6, 6), (1, 6, 7, 7)]
    assert seen.layers[2].shape == shapes[-1]


def test_memory_is_linear_in_the_steps():
    model = tiny("LlamaForCausalLM")
    _, seen = generated(model, new=9, input_ids=ids(1, 5))
    kept = seen.layers[0].kept
    assert kept.key.shape == (1, 2, 13, 8)
    assert seen.run.nbytes == sum(layer.kept.nbytes for layer in seen.layers)


def test_a_loop_of_one_s_own_and_a_second_call_with_the_same_cache():
    model, tokens = tiny("LlamaForCausalLM"), ids(1, 9)
    with torch.no_grad(), record(model) as seen:
        given = model(tokens[:, :4], use_cache=True)
        given = model(tokens[:, 4:7], cache=given.cache, use_cache=True)
        given = model(tokens[:, 7:], cache=given.cache)
        model(tokens[:, :3])  # without the cache: another run
    assert len(seen.runs) == 2
    run = seen.runs[0]
    assert [step.layers[0].shape[-2:] for step in run.steps] == [(4, 4), (3, 7), (2, 9)]
    expected = eager(model, input_ids=tokens)[None]
    for layer, weights in zip(run.layers, expected, strict=True):
        assert np.abs(layer.weights[...] - weights).max() < 5e-6


def test_what_was_in_the_cache_before_recording_began():
    model, tokens = tiny("LlamaForCausalLM"), ids(1, 9)
    expected = eager(model, input_ids=tokens)[None]
    with torch.no_grad():
        before = model(tokens[:, :5], use_cache=True)
        with record(model) as seen:
            model(tokens[:, 5:], cache=before.cache, attention_mask=torch.ones(1, 9))
    layer = seen.layers[1]
    assert layer.shape == (1, 6, 4, 9)
    assert layer.offset == 5
    assert np.abs(layer.weights[...] - expected[1][:, :, 5:]).max() < 5e-6
    assert len(seen.tokens[0]) == 9
    assert set(seen.edges()["query"]) <= {5, 6, 7, 8}


def test_beams_that_change_places_are_told_apart():
    model = tiny("LlamaForCausalLM")
    options = {"max_new_tokens": 5, "num_beams": 3, "do_sample": False}
    with torch.no_grad(), record(model) as seen:
        model.generate(ids(1, 6), **options)
    run = seen.run
    assert run.parted > 0
    assert len({layer.shape for layer in seen.layers}) == 1  # all layers agree
    assert seen.layers[0].shape[-1] == len(seen.tokens[0]) == 6 + run.parted - 1
    lengths = [{layer.shape[-2:] for layer in step.layers} for step in run.steps]
    assert lengths == [{(6, 6)}, {(1, 7)}, {(1, 8)}, {(1, 9)}, {(1, 10)}]
    for step in run.steps:
        for layer in step.layers:
            np.testing.assert_allclose(layer.weights[...].sum(-1), 1, atol=1e-6)
            assert layer.check().verified
    assert "stand apart" in repr(seen)


def test_beams_of_a_decoder_read_the_items_of_its_encoder():
    model, tokens = tiny("BartForConditionalGeneration"), padded("right")
    with torch.no_grad(), record(model) as seen:
        model.generate(**tokens, max_new_tokens=3, num_beams=2, do_sample=False)
    cross = seen.run.steps[1].layers[-1]
    assert (cross.kind, cross.shape) == ("cross 2", (6, 3, 1, 11))
    assert not cross.weights[2:4, ..., 7:].any()  # the second item has seven tokens
    assert cross.check().verified
    for beam in range(6):
        read = seen.item(beam).run.tokens["encoder 2"].texts(seen.reader)[0].tokens
        length = (11, 7, 4)[beam // 2]
        assert list(read) == [str(n) for n in tokens["input_ids"][beam // 2, :length].tolist()]


def test_encoder_and_decoder():
    model = tiny("BartForConditionalGeneration")
    output, seen = generated(model, new=6, input_ids=ids(1, 5))
    assert len(seen.runs) == 1
    rows = output.shape[1] - 1
    assert {(layer.kind, layer.shape[-2:]) for layer in seen.layers} == {
        ("encoder", (5, 5)),
        ("decoder", (rows, rows)),
        ("cross", (rows, 5)),
    }
    expected = eager(model, input_ids=ids(1, 5), decoder_input_ids=output[:, :-1])
    assert worst(seen, expected) < 5e-6
    assert seen.layer(0, "cross").query_labels == [str(n) for n in output[0, :-1].tolist()]


def test_biases_of_a_step_cannot_be_joined_and_are_told_so():
    model = tiny("T5ForConditionalGeneration")
    _, seen = generated(model, new=4, input_ids=ids(1, 5))
    lengths = [{layer.shape[-2:] for layer in step.layers} for step in seen.run.steps]
    assert lengths[0] == {(5, 5)}
    assert lengths[2] == {(1, 2), (1, 5)}
    for step in seen.run.steps:
        for layer in step.layers:
            assert layer.check().verified


@pytest.mark.parametrize("backend", ["quanto", "fp8"])
def test_a_quantised_cache_is_seen_as_the_model_reads_it(backend, monkeypatch):
    model, prompt = tiny("LlamaForCausalLM", hidden_size=96, head_dim=16), ids(1, 9)
    few_bits = {"nbits": 4, "q_group_size": 16, "residual_length": 4}
    options = {
        "max_new_tokens": 11,
        "do_sample": False,
        "cache_implementation": "quantized",
        "cache_config": {"backend": backend} | (few_bits if backend == "quanto" else {}),
    }

    def unpack(packed, bits):
        return torch.cat([packed >> shift & 2**bits - 1 for shift in range(0, 8, bits)])

    # Else quanto compiles something first.
    monkeypatch.setattr(get_extension("quanto_cpp"), "_lib", SimpleNamespace(unpack=unpack))
    with torch.no_grad():
        expected = model.generate(prompt, **options)
        with record(model) as seen:
            given = model.generate(prompt, **options)
    assert torch.equal(given, expected)
    run = seen.run
    assert (len(seen.runs), len(run.steps)) == (1, 11)
    # The prompt read its own keys; what comes later reads what is left of them.
    assert run.parted == 1
    assert seen.layers[0].shape == (1, 6, 9, 9)
    assert [step.layers[1].shape[-2:] for step in run.steps[1:]] == [(1, n) for n in range(10, 20)]
    exact = eager(model, input_ids=given[:, :-1])[None]
    apart = [
        np.abs(layer.weights[0, :, 0] - exact[n][0, :, 8 + at, : 9 + at]).max()
        for at, step in enumerate(run.steps[1:], start=1)
        for n, layer in enumerate(step.layers)
    ]
    assert max(apart) > 1e-3  # the weights are those of the quantised keys
    assert seen.check().verified
    assert "stand apart" in repr(seen)
    # Steps that read the same quantised keys share them.
    tracks = {id(track): track for step in run.apart.values() for track, _ in step.values()}
    kept = sum(track.kept().key.shape[-2] for track in tracks.values())
    assert kept <= 3 * (19 if backend == "fp8" else 13 + 17 + 19)
