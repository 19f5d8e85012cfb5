"""A recording as a file: the same numbers elsewhere, and a clear word where it is damaged."""

import json
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from embedded import recorded
from safetensors.numpy import save_file
from tiny import ids, padded, tiny

import regard
from regard.recording.capture import record
from regard.recording.file import load


def of(name, **inputs):
    model = tiny(name)
    with torch.no_grad(), record(model) as seen:
        if inputs.pop("generate", False):
            options = {"max_new_tokens": 4, "do_sample": False} | inputs.pop("options", {})
            model.generate(**inputs, **options)
        else:
            model(**inputs)
    return seen


PAIR = {"input_ids": ids(1, 5), "decoder_input_ids": ids(1, 3)}
CASES = {
    "batch": ("LlamaForCausalLM", padded("left")),
    "window": ("MistralForCausalLM", padded("left")),
    "sinks": ("GptOssForCausalLM", padded("left")),
    "cap": ("Gemma2ForCausalLM", padded("left")),
    "bias": ("T5ForConditionalGeneration", PAIR),
    "steps": ("LlamaForCausalLM", padded("left") | {"generate": True}),
    "beams": (
        "LlamaForCausalLM",
        {"input_ids": ids(1, 6), "generate": True, "options": {"num_beams": 3}},
    ),
    "cross": ("BartForConditionalGeneration", PAIR),
}


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "cat.regard"
    recorded().save(path)
    return path


@pytest.mark.parametrize("case", CASES)
def test_everything_comes_back(case, tmp_path):
    name, inputs = CASES[case]
    seen = of(name, **inputs)
    seen.save(tmp_path / "x.regard")
    again = load(tmp_path / "x.regard")
    assert repr(again) == repr(seen)
    assert again.check() == seen.check()
    assert again.tokens == seen.tokens
    assert again.unrecorded == seen.unrecorded
    for old, new in zip(seen.layers, again.layers, strict=True):
        for attribute in ("name", "number", "kind", "shape", "offset", "query_labels"):
            assert getattr(old, attribute) == getattr(new, attribute)
        for view in ("weights", "scores", "allowed", "baseline"):
            assert np.array_equal(
                getattr(old, view)[...], getattr(new, view)[...], equal_nan=view != "allowed"
            )
        assert np.array_equal(old.output, new.output)
    assert str(again.heads()) == str(seen.heads())
    assert str(again.edges()) == str(seen.edges())
    steps = zip(seen.run.steps, again.run.steps, strict=True)
    assert all(repr(old) == repr(new) for old, new in steps)


def test_words_come_back_without_the_tokenizer(saved):
    seen, again = recorded(), load(saved)
    assert again.model == seen.model
    assert again.words() == seen.words()
    assert str(again.reads("IT")) == str(seen.reads("it"))
    assert again["tired"].positions == (10,)


def test_an_item_of_a_batch_can_be_saved(tmp_path):
    seen = of("LlamaForCausalLM", **padded("left")).item(1)
    seen.save(tmp_path / "one.regard")
    again = load(tmp_path / "one.regard")
    assert str(again.edges()) == str(seen.edges())
    assert str(again.item(0).edges()) == str(seen.edges())
    assert again.layers[0].shape == (6, 7, 7)


def test_masks_that_layers_share_are_stored_once(tmp_path):
    model = tiny("LlamaForCausalLM")
    mask = torch.ones(1, 11, dtype=torch.long)
    mask[0, 3:6] = 0
    seen = of("LlamaForCausalLM", input_ids=ids(1, 11), attention_mask=mask)
    seen.save(tmp_path / "x.regard")
    layers = load(tmp_path / "x.regard").layers
    first = layers[0].kept.options
    for layer in layers:
        assert layer.kept.options["ranges"][0].ctypes.data == first["ranges"][0].ctypes.data
    assert len(layers) == len(model.model.layers)


def test_it_is_read_in_another_process_without_a_framework(saved):
    code = f"""
import sys
sys.modules.update(dict.fromkeys(["torch", "transformers", "tokenizers", "rich", "typer"]))
import regard
seen = regard.load({str(saved)!r})
link = next(x for x in seen.reads("it") if seen.tokens[0][x["key"]] == "cat")
print(repr(seen.layer(3).weights[0, 1, 8, 2]), link, seen.check())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    seen = recorded()
    link = next(x for x in seen.reads("it") if seen.tokens[0][x["key"]] == "cat")
    assert done.stdout.strip() == f"{seen.layer(3).weights[0, 1, 8, 2]!r} {link} {seen.check()}"


def test_only_the_pages_that_are_looked_at_are_read(tmp_path):
    """A row of one layer touches its own key and query, not the file."""
    model = tiny("LlamaForCausalLM", num_hidden_layers=29)
    with torch.no_grad(), record(model) as seen:
        model(torch.randint(5, 50, (1, 2048), generator=torch.manual_seed(2)))
    path = tmp_path / "long.regard"
    seen.save(path)
    code = f"""
import resource, sys
import regard
from regard.recording.file import load
load({str(tmp_path / "small.regard")!r}).layers[0].weights[0, 0, 3]
pages = resource.getpagesize()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * pages
before = resident()
seen = load({str(path)!r})
row = seen.layers[7].weights[0, 2, 1234]
print(resident() - before)
"""
    of("LlamaForCausalLM", input_ids=ids(1, 5)).save(tmp_path / "small.regard")
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("machine: no /proc")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    size = path.stat().st_size
    assert size > 20e6
    assert int(done.stdout) < size / 4


def test_writing_over_a_file_that_is_open(saved):
    again = load(saved)
    before = again.layers[0].weights[...]
    of("LlamaForCausalLM", input_ids=ids(1, 5)).save(saved)
    assert np.array_equal(again.layers[0].weights[...], before)
    assert load(saved).model == "LlamaForCausalLM"
    assert os.listdir(saved.parent) == [saved.name]  # no draft is left


# ------------------------------------------------------------------ files that are not right


def test_files_that_are_no_recording(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.regard")
    with pytest.raises(ValueError, match="this is a folder"):
        load(tmp_path)
    for name, content in {"empty": b"", "short": b"abc", "text": b"Once upon a time" * 99}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}: is damaged, or no recording"):
            load(tmp_path / name)
    save_file({"x": np.zeros(3)}, tmp_path / "foreign")
    with pytest.raises(ValueError, match="is a safetensors file, but no recording"):
        load(tmp_path / "foreign")


def test_a_later_version_is_told_so(saved):
    raw = saved.read_bytes()
    saved.write_bytes(raw.replace(b'"version":"1"', b'"version":"7"'))
    with pytest.raises(ValueError, match=r"has format version '7'.*a later regard wrote it"):
        load(saved)


def test_truncated_anywhere(saved):
    raw = saved.read_bytes()
    for length in [*range(0, 64, 7), *range(64, len(raw), len(raw) // 97)]:
        saved.write_bytes(raw[:length])
        with pytest.raises(ValueError, match="is damaged"):
            load(saved)


def rewritten(path, change):
    """The file with another description of the recording, as a correct safetensors file."""
    raw = path.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:begin])
    said = json.loads(header["__metadata__"]["recording"])
    change(said, header)
    header["__metadata__"]["recording"] = json.dumps(said)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[begin:])


def damage(path):
    """Set something deep in the description; returns the change."""

    def change(said, header):
        *steps, last, value = path
        here = said
        for step in steps:
            here = here[step]
        here[last] = value

    return change


@pytest.mark.parametrize(
    "wrong",
    [
        ("layers", []),
        ("layers", 0, "arrays", "query", "0.none"),
        ("layers", 0, "arrays", "query", "0.lse"),
        ("layers", 0, "arrays", "lse", "0.key"),
        ("layers", 0, "heads", [0]),
        ("layers", 0, "heads", [-1] * 12),
        ("layers", 0, "kind", "other"),
        ("layers", 0, "number", 1.5),
        ("layers", 0, "number", True),
        ("layers", 0, "difference", None),
        ("layers", 0, "cuts", [[0, 99, 13]]),
        ("layers", 0, "cuts", [[0, 13, 99]]),
        ("layers", 0, "cuts", [[5, 13, 13]]),
        ("layers", 0, "cuts", []),
        ("layers", 0, "options", {"scale": "large"}),
        ("layers", 0, "options", {"scale": float("nan")}),
        ("layers", 0, "options", {"unknown": 1}),
        ("layers", 0, "options", {"query_offset": 2}),
        ("layers", 0, "options", {"query_offset": [0]}),
        ("layers", 0, "options", {"ranges": ["0.query", "0.key"]}),
        ("layers", 0, "options", {"mask": "0.query"}),
        ("layers", 0, "call", -1),
        ("tokens", {}),
        ("tokens", {"other": []}),
        ("tokens", "encoder", []),
        ("tokens", "encoder", 0, "tokens", ["a"]),
        ("tokens", "encoder", 0, "special", [99]),
        ("tokens", "encoder", 0, "special", [-1]),
        ("tokens", "encoder", 0, "padding", ["a"]),
        ("forwards", [[5]]),
        ("forwards", [[9] * 6]),
        ("forwards", [[-2] * 6]),
        ("apart", [{}]),
        ("unrecorded", []),
        ("parted", "no"),
    ],
    ids=lambda wrong: "-".join(map(str, wrong)),
)
def test_a_description_that_cannot_be_right(saved, wrong):
    rewritten(saved, damage(wrong))
    with pytest.raises(ValueError, match="is damaged"):
        load(saved)


def test_mutations_never_crash(saved):
    """A few hundred; an answer or a ValueError, whatever is changed."""
    raw = saved.read_bytes()
    rng = np.random.default_rng(0)
    head = 8 + int.from_bytes(raw[:8], "little")
    for n in range(300):
        bad = bytearray(raw)
        for _ in range(rng.integers(1, 4)):
            at = rng.integers(0, head if n % 4 else len(raw))
            bad[at] = rng.integers(0, 256)
        saved.write_bytes(bad)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numbers may have become huge
            try:
                seen = load(saved)
                _ = seen.layers[0].weights[0, 0], seen.tokens, seen.words()
            except (ValueError, IndexError):
                continue


def test_booleans_are_made_booleans(tmp_path):
    mask = torch.ones(1, 11, dtype=torch.long)
    mask[0, 3:6] = 0
    seen = of("LlamaForCausalLM", input_ids=ids(1, 11), attention_mask=mask)
    path = tmp_path / "x.regard"
    seen.save(path)
    raw = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:begin])
    first, past = header["0.mask"]["data_offsets"]
    raw[begin + first : begin + past] = bytes(2 * b for b in raw[begin + first : begin + past])
    path.write_bytes(raw)
    assert np.array_equal(load(path).layers[0].allowed[...], seen.layers[0].allowed[...])


def test_the_public_name():
    assert regard.load is load
