"""The command, in this process where that is enough; whole processes where only they show it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from regard.cli.main import app

CAT = "The cat sat on the mat because it was tired."
BANK = "John went to the bank to deposit money."
SOURCE = Path(__file__).parent.parent / "src"


def regard(*arguments, **options):
    """Run the command in this process."""
    options.setdefault("env", {"COLUMNS": "80", "COLORFGBG": "", "NO_COLOR": None})
    return CliRunner().invoke(app, arguments, prog_name="regard", **options)


def process(*arguments, stdout=subprocess.PIPE, **environment):
    """Run the command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "regard", *arguments],
        stdout=stdout, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONUTF8": "1", **environment},
    )  # fmt: skip


# ------------------------------------------------------------------ steps, help, errors


def test_steps_without_numbers():
    done = regard("steps")
    assert done.exit_code == 0
    assert "0.4223" in done.stdout
    assert "[16.89, 15.78]" in done.stdout


def test_steps_of_the_same_numbers_typed():
    numbers = ("--query", "1 0", "--keys", "1,0; 0,1; 1 1", "--values", "10 0; 0 20; 30 30")
    assert regard("steps", *numbers, "--scale", "1").stdout == regard("steps").stdout
    scaled = regard("steps", *numbers).stdout
    assert "√2" in scaled
    assert "[16.89, 15.78]" not in scaled


def test_steps_shows_each_query():
    done = regard("steps", "--query", "1 0; -1 0", "--keys", "1 0; 0 1", "--values", "1; 2")
    assert done.stdout.count("Output: ") == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--query", "1 0"], "give --keys and --values too"),
        (["--query", "1 x", "--keys", "1 0", "--values", "1"], "--query: could not convert"),
        (["--query", "1 0", "--keys", "1 0; 1", "--values", "1; 2"], "--keys: rows of one length"),
        (["--query", "1 0", "--keys", ";", "--values", "1; 2"], "--keys: rows of one length"),
        (["--query", "1 0", "--keys", "1 0 0", "--values", "1"], "(1, 2)"),
    ],
)
def test_steps_refuses(arguments, said):
    done = regard("steps", *arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert "Traceback" not in done.output


def test_help_teaches():
    for arguments in ([], ["--help"], ["-h"]):
        done = regard(*arguments)
        assert done.exit_code == 0
        assert 'regard "The cat sat on the mat because it was tired." --from it' in done.stdout
    for name in ("look", "open", "heads", "steps"):
        assert name in done.stdout
        assert regard(name, "--help").exit_code == 0
    for option in ("--from", "--to", "--by", "--layer", "--head", "--model", "--top", "--json", "--save"):
        assert option in regard("look", "--help").stdout


def test_version():
    assert regard("--version").stdout.startswith("regard")


def test_a_mistyped_option_is_said():
    done = regard(CAT, "--form", "it")
    assert done.exit_code == 2
    assert "--form" in done.stderr


@pytest.mark.parametrize("text", ["", "  \n ", "-"])
def test_no_text(text):
    done = regard(text, "--from", "it", input="")
    assert done.exit_code == 2
    assert "the text is empty" in done.stderr


def test_a_command_name_is_the_command_and_look_always_reads_text():
    assert "Query 0" in regard("steps").stdout
    assert regard("open").exit_code == 2  # the command, which misses its file


def test_a_file_that_is_not_there(tmp_path):
    done = regard("open", str(tmp_path / "no.regard"))
    assert done.exit_code == 2
    assert "no.regard" in done.stderr


def test_a_foreign_file(tmp_path):
    file = tmp_path / "x.regard"
    file.write_bytes(b"no recording at all")
    done = regard("open", str(file))
    assert done.exit_code == 2
    assert done.stderr.startswith("regard: ")


def test_a_model_that_is_not_there(tmp_path):
    done = regard(CAT, "--model", str(tmp_path / "nothing"))
    assert done.exit_code == 2
    assert "nothing" in done.stderr
