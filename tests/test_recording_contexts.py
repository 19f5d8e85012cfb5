"""Recording in threads, under autocast, in training, in compiled functions."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from test_modules import NanoGPT, encoder, made, vectors
from test_modules import ids as tokens_of
from tiny import ids, tiny

from regard.recording.capture import record


def test_each_thread_records_its_own_calls():
    model, ready = tiny("LlamaForCausalLM"), threading.Barrier(3)

    def run(length):
        with torch.no_grad(), record(model) as seen:
            ready.wait(60)
            for _ in range(3):
                model(ids(1, length))
        return seen

    with ThreadPoolExecutor(3) as pool:
        for length, seen in zip((5, 7, 11), pool.map(run, (5, 7, 11)), strict=True):
            assert len(seen.runs) == 3
            for one in seen.runs:
                assert [x.shape for x in one.layers] == [(1, 6, length, length)] * 3
            assert seen.unrecorded == {}
            assert seen.check().verified


def test_a_generation_in_another_thread_is_recorded():
    """As a streamer makes people do it."""
    model = tiny("LlamaForCausalLM")
    with torch.no_grad(), record(model) as seen:
        options = {"max_new_tokens": 4, "do_sample": False}
        worker = threading.Thread(target=model.generate, args=(ids(1, 5),), kwargs=options)
        worker.start()
        worker.join()
    assert seen.layers[2].shape == (1, 6, 8, 8)
    assert seen.check().verified


def test_a_call_of_another_thread_in_between_is_named_and_does_no_harm():
    model, within = tiny("LlamaForCausalLM"), []

    def other(module, args):
        if not within:
            within.append(True)
            worker = threading.Thread(target=model, args=(ids(1, 4),))
            worker.start()
            worker.join()

    handle = model.model.layers[1].register_forward_pre_hook(other)
    try:
        with pytest.warns(UserWarning, match="a call in another thread"), torch.no_grad():  # noqa: SIM117
            with record(model) as seen:
                model(ids(1, 7))
    finally:
        handle.remove()
    assert [layer.shape for layer in seen.layers] == [(1, 6, 7, 7)] * 3
    assert seen.check().verified


@pytest.mark.parametrize("engine", ["model", "regard"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_under_autocast(engine, implementation):
    model = copy.deepcopy(tiny("LlamaForCausalLM", sharp=2.0))
    model.set_attn_implementation(implementation)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        plain = model(ids(1, 11)).logits
        with record(model, engine=engine) as seen:
            given = model(ids(1, 11)).logits
    assert str(seen.layers[0].kept.query.dtype) == "bfloat16"
    assert seen.check().verified
    if engine == "model":
        assert torch.equal(given, plain)
    else:
        assert (given - plain).abs().max() < 0.05 * plain.abs().max()


def test_modules_under_autocast():
    for model, given in ((made(NanoGPT), tokens_of()), (encoder(), vectors())):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            plain = model(given)
            with record(model) as seen:
                assert torch.equal(model(given), plain)
        assert len(seen.layers) == 3
        assert seen.check().verified


def test_dropped_weights_are_named():
    models = [(copy.deepcopy(tiny("GPT2LMHeadModel")), ids(1, 5)), (encoder(), vectors())]
    for model, given in models:
        model.train()
        with (
            pytest.warns(UserWarning, match=r"drops weights.*model\.eval\(\)"),
            record(model) as seen,
        ):
            model(given)
        assert "not verified: differs by" in str(seen.check())
        np.testing.assert_allclose(seen.layers[0].weights[...].sum(-1), 1, atol=1e-6)
    with pytest.raises(ValueError, match="no dropout"), torch.no_grad():  # noqa: SIM117
        with record(models[0][0], engine="regard"):
            models[0][0](ids(1, 5))


def test_recomputation_in_training_is_not_recorded_twice():
    model = copy.deepcopy(tiny("LlamaForCausalLM")).train()
    model.gradient_checkpointing_enable()
    with record(model) as seen:
        model(ids(2, 7)).logits.sum().backward()
    assert [layer.shape for layer in seen.layers] == [(2, 6, 7, 7)] * 3
    assert len(seen.runs) == 1


@pytest.mark.parametrize("transform", ["vmap", "meta", "script"])
def test_what_holds_no_numbers_is_said(transform):
    model, given, call = made(NanoGPT), tokens_of(), None
    if transform == "meta":
        model, given = model.to("meta"), given.to("meta")
    elif transform == "vmap":
        call, given = torch.func.vmap(model), given[:, None]
    else:
        model = torch.jit.trace(model, given)
    reason = "TorchScript" if transform == "script" else "hold no numbers.*vmap.*meta"
    with pytest.raises(RuntimeError, match=reason), torch.no_grad(), record(model):
        (call or model)(given)


def test_what_a_compiled_function_hides_is_said():
    model = copy.deepcopy(tiny("LlamaForCausalLM"))
    compiled = torch.compile(lambda given: model(given).logits, backend="eager")
    with torch.no_grad():
        compiled(ids(1, 7))
        with pytest.raises(RuntimeError, match="A compiled function"), record(model):
            compiled(ids(1, 7))


def test_a_layer_that_is_called_twice_is_seen_twice():
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.block = made(NanoGPT).h[0]

        def forward(self, x):
            return self.block(self.block(x))

    model = Twice().eval()
    with torch.no_grad(), record(model) as seen:
        model(vectors())
    assert [(layer.name, layer.number) for layer in seen.layers] == [
        ("block.attn", 0),
        ("block.attn", 1),
    ]
    assert seen.layer(1) is seen.layers[1]
    assert not np.array_equal(seen.layers[0].weights[...], seen.layers[1].weights[...])
    assert seen.check().verified
