"""Every kind of model that is recorded: same answers, eager's weights, and faults are found out."""

import warnings
from functools import cache

import numpy as np
import pytest
import torch
from tiny_models import KINDS, sharpen
from transformers import AttentionInterface
from transformers.utils import logging

import regard.transformers  # noqa: F401
from regard.recording import watcher
from regard.recording.capture import record
from regard.recording.rules import translate
from regard.recording.watcher import Watcher

logging.set_verbosity_error()
kinds = pytest.mark.parametrize("kind", KINDS)


@torch.no_grad()
def recorded(model, inputs):
    """The recording, and the model's answer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # layers without attention are named; others test that
        with record(model) as seen:
            answer = model(**inputs)[0]
    return seen, answer


@cache
def sharp(kind):
    """A model of this kind whose rows attend to few keys, and inputs: a padded batch of two."""
    torch.manual_seed(0)
    model, inputs = KINDS[kind]()
    model.eval()
    seen, _ = recorded(model, inputs)
    keys = min(layer.shape[-1] for layer in seen.layers)
    sharpen(model, lambda: entropy(recorded(model, inputs)[0]), keys)
    return model, inputs


def entropy(seen) -> float:
    """The median row's, of rows that are no padding."""
    found = []
    for layer in seen.layers:
        rows = layer.entropy().swapaxes(0, 1)
        found.append(rows[:, layer.real_rows] if layer.real_rows is not None else rows)
    return float(np.median(np.concatenate([rows.reshape(-1) for rows in found])))


class Replayed:
    """Lets eager attention run on the hidden states that another run had, and keeps its weights."""

    def __init__(self, model, names):
        self.modules = {name: model.get_submodule(name) for name in names}
        self.names = {id(module): name for name, module in self.modules.items()}
        self.hidden, self.weights = {}, {}

    def note(self, module, args, kwargs):
        self.hidden[id(module)] = args, kwargs

    def replace(self, module, args, kwargs):
        before, named = self.hidden[id(module)]

        def states(now, then):
            return (
                then if torch.is_tensor(now) and now.is_floating_point() and now.ndim == 3 else now
            )

        args = tuple(states(now, then) for now, then in zip(args, before, strict=True))
        return args, {name: states(now, named.get(name)) for name, now in kwargs.items()}

    def watched(self, default):
        """The eager function of a model, whose weights are kept."""

        def attention(module, *args, **kwargs):
            result = default(module, *args, **kwargs)
            self.weights[self.names[id(module)]] = result[1].float().numpy()
            return result

        return attention

    def hooked(self, hook):
        return [m.register_forward_pre_hook(hook, with_kwargs=True) for m in self.modules.values()]


def eager_on_the_same_states(model, inputs, names, monkeypatch):
    """The weights of eager attention, each layer on what it is given where nothing is eager."""
    replayed = Replayed(model, names)
    before = model.config._attn_implementation
    handles = replayed.hooked(replayed.note)
    with torch.no_grad():
        model(**inputs)
        for handle in handles:
            handle.remove()
        handles = replayed.hooked(replayed.replace)
        model.set_attn_implementation("eager")
        fetch = "get_interface", lambda self, name, default: replayed.watched(default)
        monkeypatch.setattr(AttentionInterface, *fetch)
        model(**inputs)
    monkeypatch.undo()
    model.set_attn_implementation(before)
    for handle in handles:
        handle.remove()
    return replayed.weights


@kinds
@pytest.mark.parametrize("implementation", ["sdpa", "eager", "regard"])
def test_weights_are_those_of_eager(kind, implementation, monkeypatch):
    model, inputs = sharp(kind)
    if implementation == "sdpa" and not model._supports_sdpa:
        assert model.config._attn_implementation == "eager"  # it has no other
    else:
        model.set_attn_implementation(implementation)
    with torch.no_grad():
        plain = model(**inputs)[0]
    seen, given = recorded(model, inputs)
    with torch.no_grad():
        after = model(**inputs)[0]
    assert torch.equal(given, plain)
    assert torch.equal(after, plain)
    names = [layer.name for layer in seen.layers]
    expected = eager_on_the_same_states(model, inputs, names, monkeypatch)
    assert len(expected) == len(names)
    for layer in seen.layers:
        apart = np.abs(layer.weights[...] - expected[layer.name]).max(axis=(1, 3))
        real = np.ones(apart.shape, bool) if layer.real_rows is None else layer.real_rows
        assert apart[real].max() < 1e-5, layer.name
    assert all("reached no attention" in why for why in seen.unrecorded.values())
    check = seen.check()
    assert check.verified
    # Our own attention is proved by the same kernel: there is nothing apart.
    assert check.relative == 0 if implementation == "regard" else 0 < check.relative < 3e-6


# ------------------------------------------------------------------ faults that must be found out


def shifted(options):
    """Every row sees a key less, or another one."""
    if "ranges" in options:
        first, past = options["ranges"]
        return options | {"ranges": (np.minimum(first + (past - first > 1), past), past)}
    if "causal" in options:
        return options | {"query_offset": options["query_offset"] - 1}
    return options | {"mask": np.roll(options["mask"], 1, -1)} if "mask" in options else options


def without(name):
    def change(options):
        if name == "scale" and options.get("scale"):
            return options | {"scale": 1.5 * options["scale"]}
        return {n: v for n, v in options.items() if n != name}

    return change


FAULTS = {"shifted": shifted} | {n: without(n) for n in ("bias", "softcap", "sinks", "scale")}


@kinds
def test_a_wrong_recording_is_found_out(kind, monkeypatch):
    model, inputs = sharp(kind)
    for fault, change in FAULTS.items():
        changed = []

        def wrong(*call, change=change, changed=changed):
            right = translate(*call)
            found = change(right)
            changed.append(repr(found) != repr(right))
            return found

        monkeypatch.setattr(watcher, "translate", wrong)
        seen, _ = recorded(model, inputs)
        if any(changed):
            assert not seen.check().verified, fault
            assert "not verified: differs by" in str(seen.check())
    monkeypatch.setattr(watcher, "translate", translate)

    attention = Watcher.attention

    def swapped(self, module, operands, *rest):
        query, key, value = operands
        return attention(self, module, (query, key.flip(1), value.flip(1)), *rest)

    monkeypatch.setattr(Watcher, "attention", swapped)
    assert not recorded(model, inputs)[0].check().verified
