"""What `import regard` costs: NumPy, and nothing that a user did not ask for."""

from fresh import fresh

FRAMEWORKS = {"torch", "tensorflow", "jax", "keras", "onnx", "transformers", "tokenizers"}
# Installed with regard, but needed only once something is drawn, saved or typed.
LATER = {"rich", "click", "safetensors", "matplotlib", "starlette", "uvicorn"}


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


def test_import_loads_little_beside_numpy():
    # What an import costs is what it loads; seconds belong to a bench.
    code = "import sys, numpy, ml_dtypes; before = set(sys.modules); import regard; "
    loaded = fresh(code + "print(*set(sys.modules) - before)").split()
    others = [name for name in loaded if name.split(".")[0] not in {"regard", "numpy"}]
    assert len(others) < 40, others


def test_what_records_and_asks_is_loaded_when_it_is_named():
    kept = "[name for name in ('regard.recording', 'regard.asking') if name in sys.modules]"
    code = f"import sys, regard; regard.attention; print({kept}); regard.load; print({kept}); "
    assert fresh(code + f"regard.ask; print({kept})").splitlines() == [
        "[]",
        "['regard.recording']",
        "['regard.recording', 'regard.asking']",
    ]


def test_a_name_that_is_not_there():
    assert "has no attribute 'recrod'" in fresh(
        "import regard\ntry: regard.recrod\nexcept AttributeError as error: print(error)"
    )


def test_dir_names_what_is_public():
    assert fresh("import regard; print(set(regard.__all__) <= set(dir(regard)))").strip() == "True"
