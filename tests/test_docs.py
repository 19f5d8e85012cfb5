"""The documentation is run: every example in README, docs and docstrings, and every link."""

import ast
import doctest
import importlib
import importlib.util
import pkgutil
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from embedded import BANK, CAT, eager, recorded

import regard

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROSE = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
prose = pytest.mark.parametrize("page", PROSE, ids=lambda page: page.name)


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The fenced blocks of one language: line number and text."""
    text = page.read_text()
    fenced = re.finditer(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, block.start()) + 2, block[1]) for block in fenced]


def failures(test: doctest.DocTest) -> str:
    """What went wrong in a doctest, in doctest's own words."""
    said: list[str] = []
    doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=said.append, clear_globs=False)
    return "".join(said)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder to work in, and a cache of the hub with the embedded model under its public name."""
    from huggingface_hub import constants

    from regard.recording.models import resolve

    files = Path(resolve().model.config.name_or_path)
    model = tmp_path / "models--sentence-transformers--all-MiniLM-L6-v2"
    for folder in ("refs", "snapshots"):
        (model / folder).mkdir(parents=True)
    (model / "refs" / "main").write_text("0" * 40)
    (model / "snapshots" / ("0" * 40)).symlink_to(files)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)  # examples may write files


@pytest.mark.usefixtures("hub")
@pages
def test_python_examples_print_what_the_page_says(page):
    names: dict[str, object] = {}  # a page is one session, read from top to bottom
    for line, text in blocks(page, "python"):
        assert text.startswith(">>> "), f"{page.name}:{line} can't be checked: it has no prompt"
        test = doctest.DocTestParser().get_doctest(text, names, page.name, str(page), line - 1)
        said = failures(test)
        names = test.globs
        assert not said, said


@pages
def test_commands_run(page):
    for line, text in blocks(page, "console"):
        for command in re.findall(r"^\$ (regard .*)$", text, re.MULTILINE):
            arguments = [sys.executable, "-m", "regard", *shlex.split(command)[1:]]
            done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, f"{page.name}:{line} {command}\n{done.stderr}"
            assert done.stdout.strip()


@prose
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def modules() -> list[str]:
    """Every module of the package but those that only start it, and the compiled one."""
    found = pkgutil.walk_packages(regard.__path__, "regard.")
    return [
        "regard",
        *(m.name for m in found if m.name not in {"regard.__main__", "regard._kernel"}),
    ]


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings_print_what_they_say(name):
    module = importlib.import_module(name)
    for test in doctest.DocTestFinder().find(module, name):
        said = failures(test)
        assert not said, said


def test_public_names_have_an_example():
    for name in regard.__all__:
        value = getattr(regard, name)
        members = vars(value).values() if isinstance(value, type) else []
        written = [one.__doc__ or "" for one in (value, *members)]
        assert any(">>> " in text for text in written), f"regard.{name} shows no example"


def test_what_must_never_happen_is_held_by_tests():
    table = (ROOT / "docs" / "design.md").read_text().split("## Never")[1]
    rows = [line for line in table.splitlines() if line.startswith("| ")][2:]
    assert len(rows) >= 8
    for row in rows:
        named = re.findall(r"`(tests/\w+\.py)::(\w+)`", row)
        assert named, f"no test holds: {row}"
        for file, function in named:
            path = ROOT / file
            assert path.exists(), f"{file} is named in docs/design.md and isn't there"
            defined = {
                n.name
                for n in ast.walk(ast.parse(path.read_text()))
                if isinstance(n, ast.FunctionDef)
            }
            assert function in defined, f"{file} has no {function}, which docs/design.md names"


def test_what_is_said_of_the_sentences_is_measured():
    weights, words = eager(CAT), recorded(CAT)
    it, cat, because = (words[word].positions[0] for word in ("it", "cat", "because"))
    others = [row for row in range(weights.shape[-1]) if row != it]
    measured = [
        weights[5, 11, it, cat],
        weights[5, 11, others, cat].mean(),
        weights[3, 1, it, cat],
        weights[3, 1, others, cat].mean(),
        weights[0, 2, it, because],
    ]
    soft = CAT.replace("tired", "soft")
    measured.append(eager(soft)[3, 1, it, cat])
    said = [f"{100 * share:.0f} %" for share in measured]
    design = (ROOT / "docs" / "design.md").read_text()
    readme = (ROOT / "README.md").read_text()
    assert [one for one in said if one not in design] == []
    assert [one for one in said[:4] if one not in readme] == []


def test_the_order_of_words_in_readme_is_measured():
    def read(text: str, word: str, most: int) -> list[str]:
        seen = recorded(text)
        return [seen.texts[0].tokens[row["key"]] for row in seen.reads(word)[:most]]

    assert read(CAT, "it", 4) == ["tired", "was", "because", "cat"]
    assert read(BANK, "bank", 2) == ["deposit", "money"]


def test_the_picture_shows_what_the_command_prints():
    spec = importlib.util.spec_from_file_location("picture", ROOT / "docs" / "picture.py")
    picture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(picture)
    assert picture.drawn() == picture.said(), "draw it again: python docs/picture.py"


def test_changelog_begins_with_this_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first is not None
    assert first[1] == version


def test_constraints_pin_every_dependency_exactly():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for extra in project["project"]["optional-dependencies"].values():
        named += extra
    wanted = {
        re.match(r"[\w.-]+", one)[0].lower().replace("_", "-")
        for one in named
        if "sys_platform !=" not in one
    }
    lines = [
        line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] != "#"
    ]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in lines}
    assert wanted - pinned - {"regard"} == set()
