"""A recording as a file: the same numbers elsewhere, and a clear word where it is damaged."""

import json
import os
import subprocess
import sys
import tracemalloc
import warnings
from time import perf_counter

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
sys.modules.update(dict.fromkeys(["torch", "transformers", "tokenizers", "rich", "click"]))
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


def mutated(raw, rng):
    """The file with a few bytes changed, mostly of its description; some are cut, some grow."""
    head = 8 + int.from_bytes(raw[:8], "little")
    bad = bytearray(raw)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(0, head if rng.integers(0, 4) else len(raw)))
        kind = rng.integers(0, 8)
        if kind == 0:
            del bad[at : at + int(rng.integers(1, 99))]
        elif kind == 1:
            bad[at:at] = bad[at : at + int(rng.integers(1, 99))]
        elif kind == 2:  # another digit, so that the description stays readable
            digits = [n for n in range(at, min(at + 99, len(bad))) if 48 <= bad[n] < 58]
            for n in digits[:1]:
                bad[n] = 48 + int(rng.integers(0, 10))
        elif at < len(bad):
            bad[at] = rng.integers(0, 256)
    return bad


def read_mutations(path, raw, count):
    """Read so many; returns how many were refused, the most memory taken, and the longest time."""
    rng, refused, longest, most = np.random.default_rng(0), 0, 0.0, 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numbers may have become huge
        tracemalloc.start()
        for _ in range(count):
            path.write_bytes(mutated(raw, rng))
            begin = perf_counter()
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            try:
                seen = load(path)
                _ = seen.layers[0].weights[0, 0], seen.tokens, seen.words(), seen.check()
            except (ValueError, IndexError):
                refused += 1
            most = max(most, tracemalloc.get_traced_memory()[1] - before)
            longest = max(longest, perf_counter() - begin)
        tracemalloc.stop()
    return refused, most, longest


def test_mutations_never_crash(saved):
    """A few hundred: an answer or a ValueError, whatever is changed, in little memory."""
    raw = saved.read_bytes()
    refused, most, longest = read_mutations(saved, raw, 200)
    assert 0 < refused < 200
    assert most < 4 * len(raw)
    assert longest < 20


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", ["embedded", "steps", "bias", "cross"])
def test_ten_thousand_mutations(case, tmp_path):
    path = tmp_path / "x.regard"
    (recorded() if case == "embedded" else of(CASES[case][0], **CASES[case][1])).save(path)
    raw = path.read_bytes()
    refused, most, longest = read_mutations(path, raw, 2500)
    print(f"{case}: {refused} of 2500 refused, at most {most / len(raw):.2f} × the file's "
          f"{len(raw) / 1e3:.0f} kB, {longest:.2f} s")  # fmt: skip
    assert most < 4 * len(raw)
    assert longest < 20


LARGE = """
import sys, time
import numpy as np
from regard.recording.file import load
load(sys.argv[1]).layers[0].weights[0, 0, 1]  # all that is loaded on first use

def resident():
    lines = open("/proc/self/status").readlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmRSS")).split()[1])

before, begin = resident(), time.perf_counter()
seen = load(sys.argv[2])
opened = time.perf_counter() - begin
touched = resident() - before
begin = time.perf_counter()
row = seen.layers[5].weights[0, 1, -2]
print(opened, touched, time.perf_counter() - begin, resident() - before - touched, row.sum())
"""


@pytest.mark.long
def test_two_gigabytes_open_at_once_and_a_row_touches_its_own_pages(tmp_path):
    if not os.path.exists("/proc/self/status"):
        pytest.skip("machine: no /proc")
    layers, heads, size, width = 11, 2, 131_072, 64
    arrays = dict.fromkeys(("query", "key", "value"), (1, heads, size, width))
    shapes = {"lse": (1, heads, size)} | arrays
    header, place, described = {}, 0, []
    for n in range(layers):
        for name, shape in shapes.items():
            past = place + 4 * int(np.prod(shape))
            header[f"{n}.{name}"] = {"dtype": "F32", "shape": shape, "data_offsets": [place, past]}
            place = past
        described.append({
            "name": f"layers.{n}", "number": n, "kind": "decoder", "heads": [0, 1],
            "difference": 0.0, "largest": 1.0, "arrays": {name: f"{n}.{name}" for name in shapes},
            "options": {"causal": True}, "call": 0, "cuts": [[0, size, size]],
        })  # fmt: skip
    words = [f"w{n}" for n in range(size)]
    text = {"tokens": words, "pieces": [f" {w}" for w in words], "special": [], "padding": []}
    said = {
        "model": "large", "unrecorded": {}, "stopped": "", "parted": 0, "layers": described,
        "apart": [], "forwards": [[0] * layers], "tokens": {"decoder": [text]},
    }  # fmt: skip
    metadata = {"format": "regard recording", "version": "1", "recording": json.dumps(said)}
    raw = json.dumps(header | {"__metadata__": metadata}).encode()
    raw += b" " * (-len(raw) % 8)
    path, small = tmp_path / "large.regard", tmp_path / "small.regard"
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + place)  # holes, which take no room on the disk
    assert path.stat().st_size > 2e9
    of("LlamaForCausalLM", input_ids=ids(1, 5)).save(small)
    code = [sys.executable, "-c", LARGE, str(small), str(path)]
    done = subprocess.run(code, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    opened, touched, seconds, more, total = map(float, done.stdout.split())
    print(f"{path.stat().st_size / 1e9:.1f} GB open in {opened:.2f} s, {touched / 1e6:.0f} MB; "
          f"a row in {seconds * 1e3:.0f} ms, {more / 1e6:.0f} MB more")  # fmt: skip
    assert opened < 1
    assert touched < 150e6  # the names of 131,072 tokens, as the file has them
    assert more < 3 * size * width * 4  # one head's keys, and what is computed of them
    assert total == pytest.approx(size - 1)  # all is 0, the lse too: each key that it sees has 1


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
