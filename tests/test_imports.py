"""What `import regard` costs: NumPy, and nothing that a user did not ask for."""

import subprocess
import sys
import time

FRAMEWORKS = {"torch", "tensorflow", "jax", "keras", "onnx", "transformers", "tokenizers"}
# Installed with regard, but needed only once something is drawn, saved or typed.
LATER = {"rich", "typer", "click", "safetensors", "matplotlib", "starlette", "uvicorn"}


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_numpy_and_no_framework():
    loaded = set(fresh("import regard, sys; print(*sys.modules)").split())
    assert "numpy" in loaded
    assert loaded & (FRAMEWORKS | LATER) == set()


def test_import_needs_none_of_them():
    blocked = sorted(FRAMEWORKS | LATER)
    fresh(f"import sys; sys.modules.update(dict.fromkeys({blocked})); import regard")


def test_a_computed_call_loads_no_framework():
    loaded = fresh(
        "import regard, sys; x = [[1.0, 2.0]]; regard.attention(x, x, x); "
        "regard.look(x, x, x).weights[...]; print(*sys.modules)"
    )
    assert set(loaded.split()) & (FRAMEWORKS | LATER) == set()


def test_import_takes_little_more_than_numpy():
    def seconds(code: str) -> float:
        begin = time.perf_counter()
        fresh(code)
        return time.perf_counter() - begin

    # The best of several, because other work shares the machine.
    numpy = min(seconds("import numpy, ml_dtypes") for _ in range(3))
    regard = min(seconds("import regard") for _ in range(3))
    assert regard < numpy + 0.3


def test_dir_names_what_is_public():
    assert fresh("import regard; print(set(regard.__all__) <= set(dir(regard)))").strip() == "True"
