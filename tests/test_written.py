"""What the command writes beside what it prints: a page, figures; and what it refuses."""

import pytest
from click.testing import CliRunner
from embedded import CAT

from regard.cli.main import app


def command(*arguments):
    return CliRunner().invoke(app, [*arguments])


def test_a_page_and_figures(tmp_path):
    files = {ending: tmp_path / f"it.{ending}" for ending in ("html", "png", "svg", "pdf")}
    options = [x for ending, path in files.items() for x in (f"--{ending}", str(path))]
    done = command(CAT, "--from", "it", *options, "--save", str(tmp_path / "it.regard"))
    assert done.exit_code == 0, done.output
    begins = {"html": b"<!doctype html>", "png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    for ending, path in files.items():
        assert path.read_bytes().startswith(begins[ending])
        assert f"wrote {path}" in done.output
    again = tmp_path / "again.html"
    done = command("open", str(tmp_path / "it.regard"), "--from", "it", "--html", str(again))
    assert done.exit_code == 0, done.output
    assert again.stat().st_size == pytest.approx(files["html"].stat().st_size, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--html", "/no/where/x.html"], "--html: /no/where/x.html cannot be written"),
        (["--png", "x.jpg"], "--png: x.jpg does not end in .png"),
        (["--pdf", "/"], "cannot be written"),
    ],
)
def test_what_cannot_be_written_is_refused_before_any_work(arguments, message):
    done = command(CAT, *arguments)
    assert done.exit_code == 2
    assert message in done.output
