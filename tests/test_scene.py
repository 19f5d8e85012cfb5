"""What is shown: against eager attention, and against what words and texts may look like."""

import numpy as np
import pytest
import torch
from embedded import BANK, eager, recorded
from transformers import GPT2Config, GPT2LMHeadModel

from regard.recording.capture import record
from regard.recording.words import WordError
from regard.views import terminal
from regard.views.answer import answer, as_json
from regard.views.scene import HONEST, LEGEND, Row, percent, points, scene

NAN = float("nan")


@pytest.fixture(scope="module")
def seen():
    return recorded()


def others(weights):
    """Baseline and by_distance of all pairs, by the definition: (L, H, T, T) each."""
    size = weights.shape[-1]
    baseline = (weights.sum(2, keepdims=True) - weights) / (size - 1)
    by_distance = np.full_like(weights, np.nan)
    for q in range(size):
        for k in range(size):
            rows = [r for r in range(size) if r != q and 0 <= r + k - q < size]
            if rows:
                by_distance[:, :, q, k] = np.mean([weights[:, :, r, r + k - q] for r in rows], 0)
    return baseline, by_distance


def sentence(shown):
    return "".join(f"“{part}”" if word else part for part, word in shown.title)


def test_it_reads_what_eager_attention_says(seen):
    shown = scene(seen, "it", top=99)
    assert [row.label for row in shown.rows][:4] == ["tired", "was", "because", "cat"]
    lifts = [round(row.lift, 2) for row in shown.rows[:4]]
    assert lifts == [0.64, 0.53, 0.39, 0.31]
    weights = eager()
    baseline, by_distance = others(weights)
    lift = weights - np.maximum(baseline, by_distance)
    for row in shown.rows:
        at = row.layer, row.head, 8, int(row.place)
        assert row.weight == pytest.approx(weights[at], abs=2e-6)
        assert row.baseline == pytest.approx(baseline[at], abs=2e-6)
        assert row.by_distance == pytest.approx(by_distance[at], abs=2e-6)
        assert row.lift == pytest.approx(np.nanmax(lift[:, :, 8, int(row.place)]), abs=2e-6)
    assert {int(row.place) for row in shown.rows} == {1, 2, 3, 4, 5, 6, 7, 9, 10, 11}


def test_another_sentence():
    shown = scene(recorded(BANK), "bank")
    first, second = shown.rows[:2]
    assert (first.label, round(first.lift, 2), first.layer, first.head) == ("deposit", 0.58, 0, 4)
    assert (second.label, round(second.lift, 2)) == ("money", 0.21)


def test_the_sentence_says_the_first_row(seen):
    shown = scene(seen, "it")
    assert sentence(shown) == "“it” gives “tired” 77 %; the others give it 5 %."
    assert shown.finding == (
        "Layer 2 head 8. To whatever stands 2 tokens on, the others give 13 %."
    )
    assert shown.heading == "What “it” reads, beyond what the others give"
    assert shown.model == "all-MiniLM-L6-v2 · 6 layers × 12 heads · 13 tokens"
    assert shown.more == ""
    assert shown.check.verified
    assert shown.notes == ("Not ranked: [CLS], [SEP] (special tokens).", LEGEND, HONEST)


def test_words_are_shaded_by_their_rows(seen):
    shown = scene(seen, "it")
    lifts = {int(row.place): row.lift for row in shown.rows}
    assert [spot.label for spot in shown.words] == [
        "[CLS]", "the", "cat", "sat", "on", "the", "mat", "because", "it", "was", "tired", ".",
        "[SEP]",
    ]  # fmt: skip
    kinds = [spot.kind for spot in shown.words]
    assert kinds == ["special", *["word"] * 7, "pinned", *["word"] * 3, "special"]
    for spot in shown.words:
        if spot.kind == "word":
            assert spot.shade == lifts[spot.positions[0]]
        else:
            assert np.isnan(spot.shade)


def test_by_weight(seen):
    shown = scene(seen, "it", by="weight")
    first = shown.rows[0]
    assert (first.label, first.layer, first.head, round(first.weight, 3)) == ("because", 0, 2, 1.0)
    assert shown.heading == "What “it” reads, by weight alone"
    assert [row.weight for row in shown.rows] == sorted(
        (r.weight for r in shown.rows), reverse=True
    )


def test_who_reads_a_word(seen):
    shown = scene(seen, target="cat")
    assert [(row.label, row.place) for row in shown.rows[:2]] == [("the", "1"), ("it", "8")]
    assert shown.heading == "Which words read “cat”, beyond what the others give"
    assert [spot.kind for spot in shown.words][2] == "pinned"
    assert shown.words[8].shade == shown.rows[1].lift


def test_in_which_heads_one_reads_the_other(seen):
    shown = scene(seen, "it", "cat", top=72)
    assert shown.names == ("", "")
    assert (shown.rows[0].layer, shown.rows[0].head) == (3, 1)
    assert {(row.layer, row.head) for row in shown.rows} == set(np.ndindex(6, 12))
    weights = eager()
    for row in shown.rows:
        assert row.weight == pytest.approx(weights[row.layer, row.head, 8, 2], abs=2e-6)
    assert scene(seen, "it", "cat").more == "and 62 more heads"
    # The text is shaded by the head of the first line.
    alone = scene(seen, "it", layer=3, head=1)
    assert [s.shade for s in shown.words][1:8] == [s.shade for s in alone.words][1:8]
    assert min(s.shade for s in shown.words if s.kind == "word") < -0.1


def test_one_layer_and_one_head(seen):
    shown = scene(seen, "it", layer=5, head=11)
    assert {(row.layer, row.head) for row in shown.rows} == {(5, 11)}
    cat = next(row for row in shown.rows if row.label == "cat")
    assert (round(cat.weight, 2), round(cat.baseline, 2)) == (0.71, 0.64)
    assert "in layer 5 head 11" in shown.heading
    assert "in layer 5," in scene(seen, "it", layer=5).heading
    assert "in head 1," in scene(seen, "it", head=1).heading


def test_strongest_links_have_one_line_a_pair(seen):
    shown = scene(seen, top=25)
    assert len(shown.rows) == 25
    assert len({row.place for row in shown.rows}) == 25
    lifts = [row.lift for row in shown.rows]
    assert lifts == sorted(lifts, reverse=True)
    assert shown.heading == "The strongest links, beyond what the others give"
    weights = eager()
    baseline, by_distance = others(weights)
    lift = (weights - np.maximum(baseline, by_distance)).max((0, 1))
    lift[[0, 12], :] = lift[:, [0, 12]] = lift[range(13), range(13)] = -1
    assert lifts == pytest.approx(sorted(lift.ravel(), reverse=True)[:25], abs=2e-6)
    places = [tuple(map(int, row.place.split(" → "))) for row in shown.rows]
    assert lifts == pytest.approx([lift[place] for place in places], abs=2e-6)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"layer": 6}, r"layer: expected one of \[0, 1, 2, 3, 4, 5\], received 6"),
        ({"head": 12}, r"head: expected one of .*, received 12"),
        ({"target": "it"}, "two words"),
    ],
)
def test_refusals(seen, arguments, said):
    with pytest.raises(ValueError, match=said):
        scene(seen, "it", **arguments)


def test_a_word_that_is_not_there_and_one_that_occurs_twice(seen):
    with pytest.raises(WordError, match="no word of the text"):
        scene(seen, "dog")
    with pytest.raises(WordError) as raised:
        scene(seen, "the")
    assert [name for name, _ in raised.value.choices] == ["the:1", "the:2"]
    assert scene(seen, "the:2").rows[0].label == "mat"


def test_a_word_of_several_pieces_is_one():
    seen = recorded("The embeddings were unbelievably good.")
    shown = scene(seen, "embeddings")
    assert len(seen["embeddings"].positions) > 1
    spot = next(spot for spot in shown.words if spot.label == "embeddings")
    assert spot.positions == seen["embeddings"].positions
    assert "unbelievably" in [row.label for row in shown.rows]
    own = list(seen["unbelievably"].positions)
    row = next(row for row in shown.rows if row.label == "unbelievably")
    weights = eager("The embeddings were unbelievably good.")[row.layer, row.head]
    expected = weights[list(spot.positions)][:, own].sum(1).mean()
    assert row.weight == pytest.approx(expected, abs=2e-6)


# ------------------------------------------------------------------ JSON


def test_json_of_a_word(seen):
    said = as_json(seen, "it")
    assert list(said) == ["model", "tokens", "from", "heads", "check"]
    assert said["tokens"][8] == "it"
    assert said["from"] == {"word": "it", "positions": [8], "tokens": ["it"]}
    assert list(said["heads"][0]) == [
        "layer", "head", "to", "position", "weight", "baseline", "by_distance",
    ]  # fmt: skip
    weights = eager()
    baseline, by_distance = others(weights)
    assert {(h["layer"], h["head"]) for h in said["heads"]} == set(np.ndindex(6, 12))
    lifts = []
    for head in said["heads"]:
        layer, number, key = head["layer"], head["head"], head["position"]
        given = weights[layer, number, 8].copy()
        given[[0, 8, 12]] = -1
        assert key == given.argmax()
        assert head["to"] == said["tokens"][key]
        assert head["weight"] == pytest.approx(given[key], abs=2e-6)
        assert head["baseline"] == pytest.approx(baseline[layer, number, 8, key], abs=2e-6)
        assert head["by_distance"] == pytest.approx(by_distance[layer, number, 8, key], abs=2e-6)
        lifts.append(head["weight"] - max(head["baseline"], head["by_distance"]))
    assert lifts == sorted(lifts, reverse=True)
    main_noun = next(h for h in said["heads"] if (h["layer"], h["head"]) == (5, 11))
    assert (main_noun["to"], round(main_noun["weight"], 2)) == ("cat", 0.71)
    assert round(main_noun["baseline"], 2) == 0.64
    assert set(said["check"]) == {"output", "relative", "rows"}
    assert said["check"]["relative"] < 1e-5


def test_json_of_links_and_of_two_words(seen):
    links = as_json(seen, top=7)["links"]
    assert len(links) == 7
    assert list(links[0]) == [
        "layer", "head", "from", "to", "positions", "weight", "baseline", "by_distance",
    ]  # fmt: skip
    assert (links[0]["from"], links[0]["to"], links[0]["positions"]) == ("the", "mat", [5, 6])
    both = as_json(seen, "it", "cat")
    assert len(both["heads"]) == 72
    assert {head["to"] for head in both["heads"]} == {"cat"}
    assert both["to"] == {"word": "cat", "positions": [2], "tokens": ["cat"]}
    to = as_json(seen, target="cat")
    assert len(to["heads"]) == 72
    assert "from" in to["heads"][0]


# ------------------------------------------------------------------ decoders, batches, long texts


class Letters:
    """A tokenizer of letters, enough for what a recording asks of one."""

    all_special_ids = (0,)

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [ord(letter) - 96 for letter in text]}

    def convert_ids_to_tokens(self, ids):
        return ["<pad>" if i == 0 else chr(96 + i) for i in ids]

    def decode(self, ids, **options):
        return " ".join(chr(96 + i) for i in ids)


def gpt2():
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=29, n_positions=700, n_embd=10, n_layer=2, n_head=5, attn_implementation="sdpa"
    )
    return GPT2LMHeadModel(config).eval()


def run(ids, **inputs):
    model = gpt2()
    with torch.no_grad(), record(model, tokenizer=Letters()) as seen:
        model(torch.tensor(ids), **inputs)
    return seen


def test_a_decoder_shows_nothing_that_a_word_cannot_see():
    seen = run([[1, 2, 3, 4, 5, 6, 7]])
    shown = scene(seen, "d")
    # Its first token takes what others put on a start token; later words cannot be seen.
    assert {row.label for row in shown.rows} <= {"b", "c"}
    assert any("a (it stands where" in note for note in shown.notes)
    later = [spot for spot in shown.words if spot.positions[0] > 3]
    assert all(np.isnan(spot.shade) for spot in later)


def test_a_first_word_has_nothing_to_read():
    seen = run([[1, 2, 3, 4, 5, 6, 7]])
    shown = scene(seen, "b")
    assert sentence(shown) == "“b” has no other word to read."
    assert shown.rows == ()
    assert "has no other word to read" in terminal.to_terminal(shown)
    assert sentence(scene(seen, "b", "d")) == "“b” cannot see “d” in any head."
    assert sentence(scene(seen, target="g")) == "No other word can read “g”."
    assert [head["to"] for head in as_json(seen, "b", "d")["heads"]] == [None] * 10
    heads = as_json(seen, "b")["heads"]
    assert len(heads) == 10
    assert all(head["to"] is None and head["weight"] is None for head in heads)


def test_what_nothing_can_be_compared_with_is_named_and_not_ranked():
    seen = run([[1, 2, 3]])
    shown = scene(seen, "c")  # no other row reaches back to b in a text of three
    by_weight = scene(seen, "c", by="weight")
    assert [row.label for row in by_weight.rows] == ["b"]
    if not shown.rows:
        assert any(note.startswith("Not ranked: b") for note in shown.notes)


def test_padding_is_not_shown():
    ids = [[0, 0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11, 12]]
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])
    seen = run(ids, attention_mask=mask)
    shown = scene(seen, "e")
    assert [spot.label for spot in shown.words] == ["a", "b", "c", "d", "e"]
    assert [spot.positions for spot in shown.words] == [(0,), (1,), (2,), (3,), (4,)]
    assert all(int(row.place) < 4 for row in shown.rows)
    alone = scene(run([[1, 2, 3, 4, 5]], position_ids=torch.arange(5)[None]), "e")
    assert {row.label for row in alone.rows} == {row.label for row in shown.rows}
    with pytest.raises(ValueError, match="two words of one text"):
        scene(seen, "e", "g")


def test_a_long_text_is_shown_around_what_is_listed():
    ids = [[1 + i % 20 for i in range(613)] + [25]]
    shown = scene(run(ids), "y", top=3)
    gaps = [spot.label for spot in shown.words if spot.kind == "gap"]
    assert gaps
    kept = sum(spot.kind != "gap" for spot in shown.words)
    assert kept + sum(int(gap.split()[1]) for gap in gaps) == 614
    assert kept < 100
    assert {int(row.place) for row in shown.rows} <= {p for s in shown.words for p in s.positions}
    assert shown.more.startswith("and 6")


def test_answer_without_words_is_of_one_text():
    seen = run([[1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14]])
    found = answer(seen)
    assert set(found.links["item"].tolist()) == {found.item}
    labels = {spot.label for spot in scene(seen).words}
    assert labels in (set("abcdefg"), set("hijklmn"))


# ------------------------------------------------------------------ numbers as people read them


def test_row():
    row = Row("cat", "2", 0.5, 0.13, 0.18, 3, 1)
    assert (row.reference, row.lift) == (0.18, 0.32)
    assert np.isnan(Row("cat", "2", 0.5, 0.13, NAN, 3, 1).lift)


def test_percent_and_points():
    given = [0.0, 0.004, 0.005, 0.4915, 0.999, 1.0, NAN]
    assert [percent(w) for w in given] == ["0 %", "<1 %", "<1 %", "49 %", "100 %", "100 %", "–"]
    assert [points(w) for w in (0.64, -0.13, 0.004, -0.004, NAN)] == ["+64", "−13", "0", "0", "–"]
