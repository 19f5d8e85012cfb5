"""The ladder of imports: from a file's own rung or below, and a framework only at its door."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "regard"

RUNGS = [
    {"_kernel"},
    {"core"},
    {"torch", "tensorflow", "jax", "onnx"},
    {"keras", "transformers"},
    {"recording"},
    {"views"},
    {"asking"},
    {"cli"},
    {"__main__"},
]
# `regard/__init__.py` only gathers the public names, so it stands above all.
TOP = len(RUNGS)

# The two calls that go up: lazily, from these files and functions alone.
DRAWING = re.compile(r"show|to_html|to_terminal|to_figure|_repr_html_|_repr_mimebundle_")
UPWARD = {
    "core/attention.py": (
        {"torch", "tensorflow", "jax", "onnx"},
        re.compile(".+"),
    ),  # by array type
    "core/shown.py": ({"views"}, DRAWING),
}

# What may be loaded when a file is imported, beside the standard library and `regard` itself.
BASE = {"numpy", "ml_dtypes"}
LOADED = {
    "torch": BASE | {"torch"},
    "tensorflow": BASE | {"tensorflow"},
    "jax": BASE | {"jax"},
    "onnx": BASE | {"onnx"},
    "keras": BASE | {"keras"},
    "transformers": BASE | {"torch", "transformers"},
    "recording": BASE | {"safetensors"},
    "recording/modules.py": BASE | {"torch"},  # loaded where a model of PyTorch is at hand
    **{
        f"recording/keras_{name}.py": BASE | {"keras"}  # likewise
        for name in ("frame", "layers", "masks", "predict")
    },
    "views": BASE | {"rich"},
    "asking": BASE | {"rich"},
    "cli": BASE | {"rich", "click"},
}

FILES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))


def part(module: str) -> str:
    """`regard.core.call` belongs to `core`, `regard` itself to `__init__`."""
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 else "__init__"


def rung(name: str) -> int:
    return next((i for i, names in enumerate(RUNGS) if name in names), TOP)


def imports(file: str, text: str) -> Iterator[tuple[str, int, str]]:
    """Each module that a file imports: its full name, the line, and the function it waits in."""
    package = ["regard", *Path(file).parent.parts]

    def visit(node: ast.AST, lazy: str) -> Iterator[tuple[str, int, str]]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, lazy
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from regard import torch` and `from . import call` name modules, not only contents.
            packages = {"regard", *(f"regard.{name}" for rung in RUNGS for name in rung)}
            for alias in node.names:
                deeper = f"{module}.{alias.name}"
                yield (deeper if module in packages else module), node.lineno, lazy
        elif isinstance(node, ast.Call) and "import" in ast.unparse(node.func):
            # importlib.import_module(f"regard.{name}"): the part before a computed piece counts.
            name = ast.unparse(node.args[0]).strip("f'\"") if node.args else ""
            yield (name or "?"), node.lineno, lazy
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lazy = node.name
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            lazy = "TYPE_CHECKING"
        for child in ast.iter_child_nodes(node):
            yield from visit(child, lazy)

    yield from visit(ast.parse(text), "")


def faults(file: str, text: str) -> list[str]:
    """Every import of a file that the ladder does not allow, in words."""
    own = part("regard." + file.removesuffix(".py").replace("/", "."))
    targets, functions = UPWARD.get(file, (set(), re.compile("")))
    found = []
    for module, line, lazy in imports(file, text):
        where = f"src/regard/{file}:{line} imports {module}"
        if module == "regard" or module.startswith("regard."):
            target = part(module)
            if target not in set().union(*RUNGS):
                # A name of regard/__init__.py, or a computed one: only the named calls may do this.
                if not (lazy and "{" in target and targets):
                    found.append(f"{where}: not a module of a rung")
            elif rung(target) > rung(own):
                if not (lazy and target in targets and functions.fullmatch(lazy)):
                    found.append(f"{where}: {target} stands above {own}")
            elif rung(target) == rung(own) and target != own:
                found.append(f"{where}: sideways between {own} and {target}")
        elif not lazy:
            outside = module.split(".")[0]
            if outside not in sys.stdlib_module_names | LOADED.get(file, LOADED.get(own, BASE)):
                found.append(f"{where} when it is itself imported")
    return found


@pytest.mark.parametrize("file", FILES)
def test_a_file_imports_from_its_own_rung_or_below(file):
    assert faults(file, (SOURCE / file).read_text()) == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("core/call.py", "import regard.views.scene"),
        ("core/call.py", "from ..recording import file"),
        ("core/call.py", "from regard import torch"),
        ("core/call.py", "def f():\n    from regard.views import terminal"),
        ("core/call.py", "import importlib\nimportlib.import_module('regard.torch')"),
        ("core/attention.py", "import regard.torch"),
        ("core/shown.py", "from ..views import terminal"),
        ("torch.py", "from . import jax"),
        ("torch.py", "import jax"),
        ("core/steps.py", "import torch"),
        ("recording/capture.py", "class A:\n    import torch"),
        ("recording/capture.py", "try:\n    import torch\nexcept ImportError:\n    pass"),
        ("views/scene.py", "from ..cli.main import main"),
        ("core/look.py", "from regard import attention"),
        ("core/look.py", "def show(self):\n    from ..views import terminal"),
        ("core/shown.py", "def other(self):\n    import_module('regard.views')"),
    ],
)
def test_the_ladder_sees_a_wrong_import(file, text):
    assert faults(file, text) != []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("core/look.py", "from .call import Call"),
        ("core/shown.py", "def show(self):\n    import_module('regard.views')"),
        ("core/attention.py", "def f():\n    from importlib import import_module"),
        ("core/attention.py", "def f(n):\n    return import_module(f'regard.{n}')"),
        ("core/attention.py", "def f(n):\n    from regard import torch"),
        ("keras.py", "from .tensorflow import attention\nimport keras"),
        ("recording/models.py", "def f():\n    import torch"),
        ("views/terminal.py", "from rich.console import Console"),
        ("core/call.py", "from regard._kernel import forward"),
        ("core/call.py", "from .. import _kernel"),
    ],
)
def test_the_ladder_allows_a_right_import(file, text):
    assert faults(file, text) == []
