"""What must never happen at run time: unpickling, or a network access that nobody asked for."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))

# Runs the command in a process that writes down what the interpreter itself reports it to do.
WATCHED = """
import sys
seen = []
events = ("pickle.find_class", "socket.connect", "socket.getaddrinfo", "socket.gethostbyname")
sys.addaudithook(lambda event, _: seen.append(event) if event in events else None)
from regard.cli.main import main
try:
    main({arguments!r})
except SystemExit as stop:
    assert not stop.code, stop.code
print("seen:", sorted(set(seen)), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory) -> str:
    """What a run of the command on the embedded model did, in an empty home."""
    arguments = ["The dog barked at the postman", "--from", "barked"]
    done = subprocess.run(
        [sys.executable, "-c", WATCHED.format(arguments=arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"HOME": str(tmp_path_factory.mktemp("home"))},
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()[-1]


def test_no_network(watched):
    assert "socket" not in watched


def test_no_pickle(watched):
    assert "pickle" not in watched


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_source_can_unpickle(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "").split(".")[0]}
        else:
            names = set()
        assert not names & {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
        if isinstance(node, ast.Call):
            call = ast.unparse(node)
            assert "allow_pickle=True" not in call
            assert not call.startswith("torch.load(")
