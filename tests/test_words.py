"""Words: many tokenizers, one way to find what a person means."""

import numpy as np
import pytest
from embedded import loaded
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from regard.recording.words import Reader, Text, Word, WordError, context, find, plain, words

CORPUS = [
    "The cat sat on the mat because it was tired. Unbelievable café, naïve déjà vu!",
    "It isn't New York; 3.14 is pi, and 注意機構 means attention mechanism.",
    "def main():\n    return it['key']  # the key\n",
]


def trained(model, split, joined, trainer):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.decoder = split, joined
    tokenizer.train_from_iterator(CORPUS * 2, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")


def byte_level(size=330):
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["</s>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return trained(models.BPE(), split, decoders.ByteLevel(), trainer)


def sentence_piece():
    trainer = trainers.BpeTrainer(vocab_size=150, special_tokens=["</s>", "<unk>"])
    model = models.BPE(unk_token="<unk>")
    return trained(model, pre_tokenizers.Metaspace(), decoders.Metaspace(), trainer)


def read(tokenizer, text):
    tokens = tokenizer(text)["input_ids"]
    return Reader(tokenizer).text(tokens, len(tokens))


@pytest.mark.parametrize(
    "tokenizer", [byte_level(), byte_level(500), sentence_piece()], ids=["bytes", "more", "pieces"]
)
@pytest.mark.parametrize("text", CORPUS)
def test_pieces_put_together_are_the_text(tokenizer, text):
    found = read(tokenizer, text)
    assert "".join(found.pieces).split() == text.split()
    every = words(found)
    assert "".join("".join(word.text for word in every).split()) == "".join(text.split())
    assert [p for word in every for p in word.positions] == list(range(len(found)))
    reader = Reader(tokenizer)
    for word in (
        "cat",
        "tired",
        "café",
        "isn't",
        "New York",
        "3.14",
        "mechanism",
        "return",
        "key:1",
    ):
        if word.removesuffix(":1") in text:
            assert word.removesuffix(":1") in find(word, [found], reader.normal).text


def test_word_pieces_of_the_embedded_model():
    _, tokenizer, _ = loaded()
    found = read(tokenizer, "The unbelievability of it isn't 3.14!")
    assert found.special.tolist() == [True] + [False] * (len(found) - 2) + [True]
    every = words(found)
    assert [word.text for word in every] == [
        "the", "unbelievability", "of", "it", "isn", "'", "t", "3", ".", "14", "!",
    ]  # fmt: skip
    assert len(every[1].positions) > 1


def test_a_masked_or_unknown_word_is_a_word():
    _, tokenizer, _ = loaded()
    found = read(tokenizer, "The [MASK] sat on 🦜.")
    assert [word.text for word in words(found)] == [
        "the", "[MASK]", "sat", "on", "[UNK]", ".",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "text", "positions"),
    [
        ("it", "it was tired", (1,)),
        ("IT", "it was tired", (1,)),
        ("Café", "a cafe in rome", (2,)),
        ("don't", "i don't know", (2, 3, 4)),
        ("New York", "in New York today", (2, 3)),
        ("it:2", "it is it", (3,)),
        (" it ", "it was", (1,)),
        ("3.14", "pi is 3.14", (3, 4, 5)),
    ],
)
def test_matching_as_a_person_means_it(wanted, text, positions):
    _, tokenizer, _ = loaded()
    found = find(wanted, [read(tokenizer, text)], Reader(tokenizer).normal)
    assert found.positions == positions


def test_what_is_written_exactly_goes_before_other_cases():
    text = plain(["It", "is", "it"])
    assert find("it", [text]).positions == (2,)
    assert find("It", [text]).positions == (0,)
    with pytest.raises(WordError):
        find("IT", [text])


def test_a_word_with_a_colon_is_not_a_number():
    text = plain(["it", "a:1", "it"])
    assert find("a:1", [text]).positions == (1,)
    assert find("it:2", [text]).positions == (2,)


def test_several_are_listed_in_context():
    text = plain(["now", "it", "was", "said", "that", "it", "is", "what", "it", "is"])
    with pytest.raises(KeyError) as error:
        find("it", [text])
    assert error.value.choices == [
        ("it:1", "now [it] was said that it …"),
        ("it:2", "… it was said that [it] is what it is"),
        ("it:3", "… that it is what [it] is"),
    ]
    assert str(error.value).splitlines() == [
        "'it' occurs 3 times, say which:",
        "  it:1  now [it] was said that it …",
        "  it:2  … it was said that [it] is what it is",
        "  it:3  … that it is what [it] is",
    ]
    with pytest.raises(KeyError, match="'it' occurs 3 times:"):
        find("it:4", [text])
    assert find("it:3", [text]).positions == (8,)


def test_what_is_not_there():
    text = plain(["un", "##like", "that"])
    with pytest.raises(KeyError) as error:
        find("dog", [text])
    assert str(error.value) == "'dog' is no word of the text: unlike that"
    for nothing in ("", " ", ":1"):
        with pytest.raises(KeyError):
            find(nothing, [text])


def test_over_several_items():
    texts = [plain(["a", "cat"]), plain(["the", "cat", "sat"])]
    assert find("cat:2", texts) == Word("cat", 1, (1,))
    assert find("sat", texts) == Word("sat", 1, (2,))


def test_special_tokens_are_no_words():
    special = np.array([True, False, False, True])
    text = plain(["[CLS]", "un", "##like", "[SEP]"], special)
    assert [(word.text, word.positions) for word in words(text)] == [("unlike", (1, 2))]
    with pytest.raises(KeyError):
        find("[CLS]", [text])


def test_markers_are_read_only_where_they_are_markers():
    assert plain(["Hello", "Ġworld", "Ċ", "Ġ"]).pieces == ("Hello", " world", "\n", " ")
    assert plain(["▁the", "▁cat", "s"]).pieces == (" the", " cat", "s")
    assert plain(["run", "##ning", "##"]).pieces == (" run", "ning", " ##")
    assert plain(["a", "Ġ", "b"]).pieces == (" a", " Ġ", " b")


def test_tokens_of_nothing_but_spaces_are_words_as_they_are():
    tokens = ["a", "", " ", "\t", " b", "end"]
    found = words(plain(tokens))
    assert [word.text for word in found] == [*tokens[:4], "b", "end"]
    assert [word.positions for word in found] == [(n,) for n in range(6)]
    assert find("", [plain(tokens)]).positions == (1,)


def test_cut_characters_are_whole_again():
    tokenizer = byte_level(258)  # no merges: each byte is a token
    found = read(tokenizer, "é 注意 it")
    assert [word.text for word in words(found)] == ["é", "注", "意", "it"]
    assert [len(word.positions) for word in words(found)] == [2, 4, 3, 3]


def test_context_of_what_stands_at_the_ends():
    text = plain(["a", "b", "c"])
    assert [context(word, text) for word in words(text)] == ["[a] b c", "a [b] c", "a b [c]"]


def test_without_a_tokenizer_ids_are_numbered():
    assert Reader().text([7, 3], 2).tokens == ("7", "3")
    assert Reader().text(None, 2).tokens == ("0", "1")
    assert isinstance(Reader().text(None, 0), Text)
