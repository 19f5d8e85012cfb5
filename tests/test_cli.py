"""The command, in this process where that is enough; whole processes where only they show it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from embedded import CAT, eager, loaded

from regard.cli.main import app


def regard(*arguments, **options):
    """Run the command in this process."""
    options.setdefault("env", {"COLUMNS": "80", "COLORFGBG": "", "NO_COLOR": None})
    runner = CliRunner(charset=options.pop("charset", "utf-8"))
    return runner.invoke(app, arguments, prog_name="regard", **options)


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
    for option in (
        "--from",
        "--to",
        "--by",
        "--layer",
        "--head",
        "--model",
        "--top",
        "--json",
        "--save",
    ):
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


# ------------------------------------------------------------------ with the embedded model


@pytest.fixture
def model_at_hand(monkeypatch):
    """Loading is what takes seconds: the command gets the model that the other tests have."""
    monkeypatch.setattr("regard.recording.models.resolve", loaded)


@pytest.mark.usefixtures("model_at_hand")
class TestLook:
    def test_from(self):
        done = regard(CAT, "--from", "it")
        assert done.exit_code == 0
        lines = done.stdout.splitlines()
        assert lines[1] == "  “it” gives “tired” 77 %; the others give it 5 %."
        begin = next(i for i, line in enumerate(lines) if line.startswith("  word"))
        words = [line.split()[0] for line in lines[begin + 1 : begin + 5]]
        assert words == ["tired", "was", "because", "cat"]
        assert "49 %    13 %    18 %   +31      3     1" in lines[begin + 4]
        assert "✓ matches the model to" in done.stdout
        assert "\x1b" not in done.stdout

    def test_options_may_come_first_and_look_is_the_same(self):
        expected = regard(CAT, "--from", "it").stdout
        assert regard("--from", "it", CAT).stdout == expected
        assert regard("look", CAT, "--from", "it").stdout == expected
        assert regard("look", "--from", "it", "--", CAT).stdout == expected

    def test_standard_input(self):
        done = regard("-", "--from", "it", input=CAT + "\n")
        assert done.stdout == regard(CAT, "--from", "it").stdout

    def test_look_reads_a_commands_name_as_text(self):
        done = regard("look", "open steps", "--from", "open")
        assert "“open” gives “steps”" in done.stdout

    def test_links_to_heads_weight_top(self):
        assert "The strongest links" in regard(CAT).stdout
        assert "Which words read “cat”" in regard(CAT, "--to", "cat").stdout
        assert (
            "Heads in which “it” reads “cat”" in regard(CAT, "--from", "it", "--to", "cat").stdout
        )
        assert "by weight alone" in regard(CAT, "--from", "it", "--by", "weight").stdout
        assert "and 8 more words" in regard(CAT, "--from", "it", "--top", "2").stdout
        assert (
            "in layer 3 head 1" in regard(CAT, "--from", "it", "--layer", "3", "--head", "1").stdout
        )

    def test_a_word_that_occurs_twice_prints_the_choices(self):
        done = regard("It was late when it rained.", "--from", "it")
        assert done.exit_code == 2
        assert "it:1  [it] was late" in done.stderr
        assert "it:2  it was late when [it] rained" in done.stderr
        assert done.stdout == ""
        assert regard("It was late when it rained.", "--from", "it:2").exit_code == 0

    def test_a_word_that_is_not_there(self):
        done = regard(CAT, "--from", "dog")
        assert done.exit_code == 2
        assert done.stderr.startswith("regard: 'dog' is no word of the text: the cat sat")

    def test_a_layer_that_is_not_there(self):
        done = regard(CAT, "--from", "it", "--layer", "6")
        assert done.exit_code == 2
        assert "layer: expected one of [0, 1, 2, 3, 4, 5], received 6" in done.stderr

    def test_a_text_that_is_too_long(self):
        done = regard("word " * 513, "--from", "word:1")
        assert done.exit_code == 2
        assert "the text has 515 tokens; all-MiniLM-L6-v2 reads at most 512" in done.stderr

    def test_a_text_just_short_enough(self):
        assert regard("tired " + "word " * 509, "--from", "tired").exit_code == 0

    def test_json(self):
        said = json.loads(regard(CAT, "--from", "it", "--json").stdout)
        assert said["model"] == "all-MiniLM-L6-v2"
        assert said["tokens"][8] == "it"
        assert len(said["heads"]) == 72
        # Not shortened by what belongs to the list: always all heads.
        short = regard(CAT, "--from", "it", "--json", "--top", "3", "--layer", "0")
        assert json.loads(short.stdout) == said
        weights = eager(CAT)
        for head in said["heads"]:
            exact = weights[head["layer"], head["head"], 8, head["position"]]
            assert head["weight"] == pytest.approx(exact, abs=2e-6)
        links = json.loads(regard(CAT, "--json").stdout)["links"]
        assert len(links) == 100

    def test_json_can_be_written_anywhere(self):
        done = regard("Das ist schön 注意.", "--json", charset="cp1252")
        assert "schön" in "".join(json.loads(done.stdout)["tokens"]) or done.stdout.isascii()

    @pytest.mark.parametrize(
        "text", ["[INST] it [/INST] [bold]", "a \x1b[31mred it", "it\tis 🎉 مرحبا"]
    )
    def test_hostile_text(self, text):
        done = regard(text, "--from", "it")
        assert done.exit_code == 0
        assert "\x1b" not in done.stdout
        assert "\t" not in done.stdout

    def test_one_word_alone(self):
        done = regard("it", "--from", "it")
        assert done.exit_code == 0
        assert "“it” has no other word to read." in done.stdout
        assert "There are no two words that can be linked." in regard("it").stdout

    def test_save_and_open(self, tmp_path):
        file = tmp_path / "cat.regard"
        done = regard(CAT, "--from", "it", "--save", str(file))
        assert done.exit_code == 0
        assert f"saved {file}" in done.stderr
        opened = regard("open", str(file), "--from", "it")
        assert opened.stdout == done.stdout
        as_json = regard("open", str(file), "--from", "it", "--json").stdout
        assert json.loads(as_json) == json.loads(regard(CAT, "--from", "it", "--json").stdout)

    def test_save_where_nothing_can_be_saved(self, tmp_path):
        for place in (tmp_path / "no" / "such" / "folder.regard", tmp_path):
            done = regard(CAT, "--save", str(place))
            assert done.exit_code == 2
            assert "cannot be written" in done.stderr

    def test_open_needs_no_pytorch_and_a_closed_pipe_is_quiet(self, tmp_path):
        file = str(tmp_path / "cat.regard")
        expected = regard(CAT, "--from", "it", "--save", file).stdout
        environment = without_pytorch(tmp_path)
        done = process("open", file, "--from", "it", COLUMNS="80", **environment)
        out, err = done.communicate(timeout=60)
        assert err == b""
        assert out.decode() == expected

        reading, writing = os.pipe()
        os.close(reading)
        done = process("open", file, "--from", "it", stdout=writing)
        os.close(writing)
        _, err = done.communicate(timeout=60)
        assert err == b""

    def test_heads(self):
        done = regard("heads", CAT)
        assert done.exit_code == 0
        assert "Layer 0 head 2 is the most selective: 2.46." in done.stdout
        assert "and 52 more heads" in done.stdout
        every = regard("heads", CAT, "--top", "72", env={"COLUMNS": "120"}).stdout
        rows = [line.split() for line in every.splitlines() if re.match(r"  +\d+ +\d+ ", line)]
        assert len(rows) == 72
        measured = {(int(row[0]), int(row[1])): row for row in rows}
        # The table alone tells apart the head that looks at the noun whoever asks.
        assert "0.07" in measured[5, 11]
        assert float(measured[3, 1][3]) == pytest.approx(0.5, abs=0.02)

    def test_heads_sorted_and_as_json(self):
        sorted_ = regard("heads", CAT, "--sort", "previous", "--layer", "1", "--top", "3")
        assert "gives the most to the token before" in sorted_.stdout
        assert "and 9 more heads" in sorted_.stdout
        said = json.loads(regard("heads", CAT, "--json").stdout)
        assert len(said["heads"]) == 72
        assert {"layer", "head", "selectivity", "entropy", "previous"} <= set(said["heads"][0])
        refused = regard("heads", CAT, "--sort", "beauty")
        assert refused.exit_code == 2
        assert "sort: expected one of selectivity, entropy" in refused.stderr
        assert regard("heads", CAT, "--layer", "9").exit_code == 2


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("John went to the bank to deposit money.", "bank"),
        ("He sat on the bank of the river.", "bank"),
        ("Prices fell sharply after seven quiet years.", "fell"),
    ],
)
@pytest.mark.usefixtures("model_at_hand")
def test_another_sentence(text, word):
    """What is said comes from computing, for any sentence: it is what eager attention gives."""
    weights = eager(text)
    said = json.loads(regard(text, "--from", word, "--json").stdout)
    (row,) = said["from"]["positions"]
    ordinary = [n for n in range(1, len(said["tokens"]) - 1) if n != row]
    others = np.delete(weights, row, axis=2)
    for head in said["heads"]:
        at = weights[head["layer"], head["head"], row]
        assert head["position"] == ordinary[int(at[ordinary].argmax())]
        assert head["weight"] == pytest.approx(at[head["position"]], abs=2e-6)
        beside = others[head["layer"], head["head"], :, head["position"]].mean()
        assert head["baseline"] == pytest.approx(beside, abs=2e-6)


# ------------------------------------------------------------------ whole processes


def test_the_whole_command_in_a_pipe():
    done = process(CAT, "--from", "it", COLUMNS="80")
    out, err = done.communicate(timeout=120)
    assert done.returncode == 0
    assert err == b""
    assert "“it” gives “tired” 77 %; the others give it 5 %." in out.decode()
    assert b"\x1b" not in out


def test_a_closed_pipe_is_quiet():
    reading, writing = os.pipe()
    os.close(reading)
    done = process("steps", stdout=writing)
    os.close(writing)
    _, err = done.communicate(timeout=60)
    assert err == b""


def test_interrupted():
    done = process(CAT, "--from", "it")
    maps = Path(f"/proc/{done.pid}/maps")
    for _ in range(300):  # until PyTorch is being imported
        time.sleep(0.1)
        if maps.exists() and "libtorch" in maps.read_text():
            break
    done.send_signal(signal.SIGINT)
    out, err = done.communicate(timeout=60)
    assert done.returncode == 130
    assert b"Traceback" not in err
    assert out == b""


def without_pytorch(folder):
    """An environment in which neither PyTorch nor transformers can be imported."""
    (folder / "sitecustomize.py").write_text(
        "import sys\nsys.modules['torch'] = sys.modules['transformers'] = None\n"
    )
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def test_without_pytorch(tmp_path):
    done = process(CAT, "--from", "it", **without_pytorch(tmp_path))
    out, err = done.communicate(timeout=60)
    assert done.returncode == 2
    assert out == b""
    assert err.decode() == "regard: needs PyTorch: pip install 'regard[models]'\n"


def test_what_a_quick_command_does_not_import():
    code = (
        "import sys; from regard.cli.main import main\n"
        "try: main(['steps'])\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "torch" not in done.stderr.split()
    assert "transformers" not in done.stderr.split()
