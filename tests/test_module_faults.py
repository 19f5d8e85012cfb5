"""Modules written by hand and PyTorch's own: rows choose, and a wrong recording is found out."""

from functools import cache

import numpy as np
import pytest
import torch
from test_kinds import entropy, shifted, without
from test_modules import (
    TOKENS,
    WIDTH,
    NanoGPT,
    Vision,
    attended,
    encoder,
    ids,
    made,
    padding,
    vectors,
)
from tiny_models import sharpen
from torch import nn

from regard.recording import modules
from regard.recording.capture import record
from regard.recording.watcher import Watcher

CAUSAL = nn.Transformer.generate_square_subsequent_mask(TOKENS)
BIAS = torch.randn(TOKENS, TOKENS, generator=torch.manual_seed(5))
MADE = {
    "hand-written decoder": lambda: (made(NanoGPT), (ids(),), {}),
    "vision block": lambda: (made(Vision), (vectors(),), {}),
    "encoder": lambda: (encoder(), (vectors(),), {"src_key_padding_mask": padding()}),
    "encoder, norm first": lambda: (encoder(norm_first=True), (vectors(),), {"mask": CAUSAL}),
    "attention": lambda: (
        attended(),
        (vectors(), vectors(), vectors()),
        {"attn_mask": BIAS, "need_weights": False},
    ),
}
kinds = pytest.mark.parametrize("kind", MADE)


def recorded(model, args, options):
    with torch.no_grad(), record(model) as seen:
        model(*args, **options)
    return seen


@cache
def sharp(kind):
    """A module whose rows attend to few keys, and what to call it with."""
    torch.manual_seed(0)
    model, args, options = MADE[kind]()
    sharpen(model, lambda: entropy(recorded(model, args, options)), TOKENS)
    return model, args, options


def scaled(options):
    return options | {"scale": 1.5 * options.get("scale", (WIDTH // 2) ** -0.5)}


FAULTS = {"shifted": shifted, "bias dropped": without("bias"), "scaled": scaled}
FOUND = {
    "hand-written decoder": {"shifted", "scaled"},
    "vision block": {"scaled"},
    "encoder": {"shifted", "scaled"},
    "encoder, norm first": {"shifted", "scaled"},
    "attention": {"bias dropped", "scaled"},
}


@kinds
def test_rows_attend_to_few_keys(kind):
    seen = recorded(*sharp(kind))
    assert entropy(seen) < 0.5 * np.log(TOKENS)
    assert seen.check().verified


@kinds
def test_a_wrong_recording_is_found_out(kind, monkeypatch):
    model, args, options = sharp(kind)
    translate = modules.translate_plain
    found = set()
    for fault, change in FAULTS.items():
        changed = []

        def wrong(*call, change=change, changed=changed):
            right = translate(*call)
            changed.append(repr(change(right)) != repr(right))
            return change(right)

        monkeypatch.setattr(modules, "translate_plain", wrong)
        check = recorded(model, args, options).check()
        if any(changed):
            assert not check.verified, fault
            assert "not verified: differs by" in str(check)
            found.add(fault)
    monkeypatch.setattr(modules, "translate_plain", translate)
    assert found == FOUND[kind]

    kept = Watcher.kept

    def swapped(self, module, name, operands, *rest):
        query, key, value = operands
        return kept(self, module, name, (query, key.flip(1), value.flip(1)), *rest)

    monkeypatch.setattr(Watcher, "kept", swapped)
    assert not recorded(model, args, options).check().verified
