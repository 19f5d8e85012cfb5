"""The terminal's drawing: compared as strings at a fixed width, colour and encoding."""

import io
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from regard.core.proof import Check
from regard.views import terminal
from regard.views.labels import visible
from regard.views.palette import INKS, contrast, from_lab, ink, shade, to_lab
from regard.views.pen import ground
from regard.views.scene import Row, Scene, Spot

NAN = float("nan")

ROWS = (
    Row("tired", "5", 0.75, 0.05, 0.125, 2, 8),
    Row("cat", "1", 0.5, 0.13, 0.18, 3, 1),
    Row("a", "2", 0.04, 0.1, 0.02, 0, 11),
    Row("sat", "3", 0.002, NAN, NAN, 0, 0),
)
SCENE = Scene(
    model="a model · 6 layers × 12 heads · 7 tokens",
    title=(
        ("it", True),
        (" gives ", False),
        ("tired", True),
        (" 75 %; the others give it 5 %.", False),
    ),
    finding="Layer 2 head 8. To whatever stands 1 token on, the others give 13 %.",
    words=(
        Spot("[CLS]", (0,), kind="special"),
        Spot("cat", (1,), shade=0.32),
        Spot("a", (2,), shade=-0.06),
        Spot("sat", (3,)),
        Spot("it", (4,), kind="pinned"),
        Spot("tired", (5,), shade=0.625),
        Spot(".", (6,), spaced=False, shade=0.0),
    ),
    heading="What “it” reads, beyond what the others give",
    names=("word", "at"),
    rows=ROWS,
    more="",
    scale=1.0,
    check=Check(2e-6, 2.8e-7, 1e-7, of="the model"),
    notes=("A note.",),
)

AT_80 = """
  “it” gives “tired” 75 %; the others give it 5 %.
  Layer 2 head 8. To whatever stands 1 token on, the others give 13 %.

  [CLS] cat a  sat it tired.
        +32 −6     ^^ +62  0

  What “it” reads, beyond what the others give
  word   at                   100 %  weight  others  as far  lift  layer  head
  tired   5  ━━╋━━━━━━━━━━━━━╾─────    75 %     5 %    12 %   +62      2     8
  cat     1  ━━━╋━━━━━━━───────────    50 %    13 %    18 %   +32      3     1
  a       2  ━─╂───────────────────     4 %    10 %     2 %    −6      0    11
  sat     3  ──────────────────────    <1 %       –       –     –      0     0

  A note.

  ✓ matches the model to 3·10⁻⁷
  a model · 6 layers × 12 heads · 7 tokens
"""


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORFGBG", "COLORTERM", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def printed(scene=SCENE, width=80, encoding="utf-8", **options):
    """What a console of this kind receives, as bytes decoded again."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors="strict", write_through=True)
    console = Console(file=file, width=width, highlight=False, legacy_windows=False, **options)
    terminal.show(scene, console)
    return raw.getvalue().decode(encoding)


def test_without_colours():
    assert terminal.to_terminal(SCENE, 80).rstrip("\n") == AT_80.rstrip("\n")


def test_a_pipe_gets_the_same_and_no_escape():
    text = printed()
    assert text.rstrip("\n") == AT_80.rstrip("\n")
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [36, 40, 59, 80, 97, 120, 200])
@pytest.mark.parametrize("colours", ["none", "truecolor"])
def test_no_line_is_wider_than_the_screen(width, colours):
    lines = plain(terminal.to_terminal(SCENE, width, colours)).splitlines()
    assert max(map(cell_len, lines)) <= width
    # What is never left out: the word and its place, weight, what the others give, layer and head.
    assert any(re.search(r"cat +1 .* 50 % +13 % .* 3 +1$", line) for line in lines)


@pytest.mark.parametrize(
    ("width", "kept"),
    [(80, ["lift", "as far", "━"]), (62, ["as far", "━"]), (50, ["━"]), (40, [])],
)
def test_what_a_narrow_screen_leaves_out(width, kept):
    text = terminal.to_terminal(SCENE, width)
    assert [part for part in ("lift", "as far", "━") if part in text] == kept


def test_windows_1252():
    text = printed(encoding="cp1252")
    assert "“it” gives “tired” 75 %" in text
    assert "tired   5  ##|##############.....    75 %" in text
    assert "+ matches the model to 3·10^-7" in text
    assert "a       2  #.|....." in text
    assert "  -6 " in text


def test_ascii():
    text = printed(encoding="ascii")
    assert '"it" gives "tired" 75 %' in text
    assert "matches the model to 3*10^-7" in text


def test_a_console_without_some_letters_shows_their_numbers():
    scene = replace(SCENE, rows=(replace(ROWS[0], label="注意"), *ROWS[1:]))
    lines = printed(scene, encoding="cp1252").splitlines()
    (at,) = [i for i, line in enumerate(lines) if "<6CE8><610F>" in line]
    assert len({len(line) for line in lines[at : at + 4]}) == 1


@pytest.mark.parametrize("colours", ["truecolor", "256"])
def test_shades(colours):
    text = terminal.to_terminal(SCENE, 80, colours)
    assert "+32 −6" not in text  # no figures under the words where colours can be seen
    tired = style_of(text, " tired", line=4)
    cat = style_of(text, " cat ", line=4)
    assert "48;" in tired
    assert "48;" in cat
    assert tired != cat
    assert "48;" not in style_of(text, " a ", line=4)  # too faint to see
    assert "7" in style_of(text, " it ", line=4).split(";")  # the word itself stands out


def test_sixteen_colours_put_figures_under_the_words():
    assert "+32 −6" in plain(terminal.to_terminal(SCENE, 80, "standard"))


def test_no_color(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    text = printed(force_terminal=True, color_system="truecolor")
    assert "+32 −6" in plain(text)
    assert not re.search(r"\x1b\[[\d;]*(3|4)8;", text)


@pytest.mark.parametrize(
    ("said", "expected"),
    [("15;0", "dark"), ("0;15", "light"), ("0;default;15", "light"), ("7;8", "dark"),
     ("0;7", "light"), ("", "unknown"), ("default;default", "unknown")],
)  # fmt: skip
def test_light_or_dark(said, expected):
    assert ground({"COLORFGBG": said}) == expected
    assert ground({}) == "unknown"


def test_one_colour_above_and_another_below_what_the_others_give():
    text = terminal.to_terminal(SCENE, 80, "truecolor")
    above, below = (";".join(str(int(c[i : i + 2], 16)) for i in (1, 3, 5)) for c in
                    (INKS["unknown"].above, INKS["unknown"].below))  # fmt: skip
    lines = text.splitlines()
    assert [above in line for line in lines[8:12]] == [True, True, False, False]
    assert [below in line for line in lines[8:12]] == [False, False, True, False]


def test_long_text_wraps_and_keeps_figures_under_their_words():
    words = tuple(Spot(f"word{i}", (i,), shade=i / 100) for i in range(60))
    lines = terminal.to_terminal(replace(SCENE, words=words), 67).splitlines()[4:]
    for above, below in zip(lines[0:12:2], lines[1:12:2], strict=True):
        for match in re.finditer(r"word(\d+)", above):
            assert below[match.start() :].split()[0] in (f"+{match[1]}", "0")


def test_a_long_word_is_cut_where_everybody_sees_it():
    label = "x" * 10_000
    scene = replace(SCENE, words=(Spot(label, (0,), shade=0.5),),
                    rows=(replace(ROWS[0], label=label),), title=((label, True),))  # fmt: skip
    for width in (40, 80):
        lines = terminal.to_terminal(scene, width).splitlines()
        assert max(map(cell_len, lines)) <= width
        assert sum("xxx…" in line for line in lines) == 3


def test_not_verified_is_said():
    scene = replace(SCENE, check=Check(0.2, 0.5, 0.0))
    assert "✗ not verified: differs by 0.5" in terminal.to_terminal(scene, 80)
    assert "✓" not in terminal.to_terminal(scene, 80)


HOSTILE = {
    "[INST]": "[INST]",
    "[/INST]": "[/INST]",
    "[bold]": "[bold]",
    "[SEP]": "[SEP]",
    "\x1b[31mred": "␛[31mred",
    "\x1b]8;;http://x\x07y": "␛]8;;http://x␇y",
    "\x9b31m": "⟨009B⟩31m",
    "wo\u2060rd": "wo⟨2060⟩rd",
    "a\u200d": "a⟨200D⟩",
    "": "(empty)",
    " ": "␣",
    "\t": "⇥",
    "\n": "↵",
    "\r\n": "␍↵",
    "\x00": "␀",
    "\x7f": "␡",
    "\u2028": "⟨2028⟩",
    "\u202eabc": "⟨202E⟩abc",
    "\u00a0": "⟨00A0⟩",
    "\ufeffx": "⟨FEFF⟩x",
    "\udc80": "⟨DC80⟩",
    "\u0301x": "◌\u0301x",
    ":smile:": ":smile:",
    "<script>": "<script>",
    "New York": "New York",
    " the": "␣the",
    "שלום": "שלום",
    "注意": "注意",
    "मन": "मन",
    "e\u0301": "e\u0301",
    "👩\u200d🚀": "👩\u200d🚀",
    "می\u200cخواهم": "می\u200cخواهم",
}


@pytest.mark.parametrize(("text", "shown"), HOSTILE.items())
def test_nothing_is_invisible_and_nothing_is_obeyed(text, shown):
    assert visible(text) == shown
    # Once safe, always safe: showing what is shown changes nothing.
    assert visible(shown) == shown


def test_marks_tell_tokens_apart():
    assert len(set(map(visible, HOSTILE))) == len(HOSTILE)


@pytest.mark.parametrize("colours", ["none", "truecolor"])
def test_hostile_tokens_keep_the_columns(colours):
    rows = tuple(replace(ROWS[0], label=visible(text)) for text in HOSTILE)
    words = tuple(Spot(visible(text), (i,)) for i, text in enumerate(HOSTILE))
    scene = replace(SCENE, rows=rows, words=words, title=((visible("\x1b[31m[bold]"), True),))
    text = terminal.to_terminal(scene, 80, colours)
    assert "␛[31m[bold]" in text
    if colours == "none":
        assert "\x1b" not in text
    lines = plain(text).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("  word"))
    table = lines[first : first + len(rows) + 1]
    assert {cell_len(line) for line in table} == {78}
    assert all(line.isprintable() or any(c in line for c in "\u200c\u200d") for line in lines)


@pytest.mark.parametrize("ground", ["light", "dark", "unknown"])
def test_shades_can_be_read_and_are_even(ground):
    inks = INKS[ground]
    for value in range(-100, 101, 5):
        assert contrast(shade(value / 100, ground), ink(value / 100, ground)) >= 4.5
    steps = [to_lab(shade(value / 10, ground)) for value in range(1, 11)]
    apart = [float(np.linalg.norm(b - a)) for a, b in pairwise(steps)]
    assert max(apart) < 1.25 * min(apart)  # eight bits a channel leave some unevenness
    above, below = to_lab(inks.above), to_lab(inks.below)
    assert abs(above[0] - below[0]) < 0.02  # blue is as strong as orange
    assert from_lab(above) == inks.above
    assert shade(1.0, ground) == inks.above
    assert shade(-1.0, ground) == inks.below
    if ground != "unknown":
        for colour in inks[1:7]:
            assert contrast(colour, inks.ground) >= 4.5


def test_inks_of_an_unknown_ground_can_be_read_on_both():
    for colour in INKS["unknown"][2:7]:
        assert min(contrast(colour, "#ffffff"), contrast(colour, "#1e1e1e")) >= 3.4


def plain(text):
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def style_of(text, word, line):
    """The style codes in force where a word is printed."""
    before = text.splitlines()[line].partition(word)[0]
    return re.findall(r"\x1b\[([\d;]*)m", before)[-1]
