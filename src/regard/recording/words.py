"""From a model's tokens to words as a person means them, and back.

How two tokens join is asked of the tokenizer itself: it decodes an ordinary token with the one in
question behind it. So word pieces (##ing), bytes (Ġthe) and sentence pieces (▁the) need no rules of
their own. A word ends where a space does, where letters meet punctuation, and, in scripts written
without spaces, with each token.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Scripts that are written without spaces: Thai to Khmer, kana, ideographs.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
)
_LOST = "\ufffd"  # what a tokenizer writes for part of a character


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a recorded text, all its pieces: what `seen["it"]` finds.

    Attributes:
        text: as it stands in the text.
        item: the item of the batch.
        positions: of its pieces among the tokens of the item.
        spaced: whether it is written apart from the word before.

    >>> Word("tired", item=0, positions=(10, 11)).positions
    (10, 11)
    """

    text: str
    item: int
    positions: tuple[int, ...]
    spaced: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """The tokens of one item.

    Attributes:
        tokens: as the tokenizer names them, such as "Ġcat".
        pieces: what they stand for, such as " cat"; a space in front begins a word.
        special: (n,), True for tokens that are no text: start, end, padding.
    """

    tokens: tuple[str, ...]
    pieces: tuple[str, ...]
    special: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.tokens)

    def part(self, positions: NDArray[np.intp]) -> "Text":
        """Some of the tokens."""
        tokens, pieces = ([given[i] for i in positions] for given in (self.tokens, self.pieces))
        return Text(tuple(tokens), tuple(pieces), self.special[positions])


class WordError(KeyError):
    """No such word, or several; `choices` are (name, context) of each that could be meant."""

    def __init__(self, message: str, choices: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.message, self.choices = message, list(choices)

    def __str__(self) -> str:
        return "\n".join([self.message, *(f"  {name}  {text}" for name, text in self.choices)])


class Reader:
    """Turns ids into texts with a model's tokenizer; each id is decoded once."""

    def __init__(self, tokenizer: Any = None) -> None:
        self.tokenizer = tokenizer
        self._pieces: dict[int, str] = {}
        self._anchor: tuple[int, str] | None = None

    def text(self, ids: Sequence[int] | None, length: int) -> Text:
        """The text of these ids; numbered tokens where ids or tokenizer are missing."""
        if ids is None or self.tokenizer is None:
            return plain([str(n) for n in (range(length) if ids is None else ids)])
        unknown = np.asarray(ids) < 0  # what was in a cache before recording began
        known: list[int] = np.where(unknown, 0, ids).tolist()
        names = [str(name) for name in self.tokenizer.convert_ids_to_tokens(known)]
        names = ["…" if gap else name for name, gap in zip(names, unknown, strict=True)]
        special = np.isin(known, self._special()) | unknown
        pieces = [
            name if no_text else self._piece(i)
            for i, name, no_text in zip(known, names, special, strict=True)
        ]
        return Text(tuple(names), _whole(pieces, known, special, self._decode), special)

    def normal(self, text: str) -> str:
        """The text as the tokenizer's model knows it: without capitals or accents, say."""
        normalizer = getattr(getattr(self.tokenizer, "backend_tokenizer", None), "normalizer", None)
        if normalizer is not None:
            return str(normalizer.normalize_str(text))
        letters = unicodedata.normalize("NFD", text)
        return "".join(c for c in letters if not unicodedata.combining(c))

    def _special(self) -> list[int]:
        """Ids that are no text. What stands for a word, unknown or masked, is text."""
        known = self.tokenizer
        names = ("bos", "eos", "cls", "sep", "pad")
        ends = {getattr(known, f"{name}_token_id", None) for name in names}
        stand_ins = {getattr(known, f"{name}_token_id", None) for name in ("unk", "mask")}
        return [i for i in known.all_special_ids if i not in stand_ins - ends]

    def _decode(self, ids: Iterable[int]) -> str:
        return str(self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def _piece(self, token: int) -> str:
        if self._anchor is None:
            ordinary = self.tokenizer("a", add_special_tokens=False)["input_ids"][-1:]
            self._anchor = (ordinary[0], self._decode(ordinary)) if ordinary else (token, "")
        if token not in self._pieces:
            anchor, alone = self._anchor
            both = self._decode([anchor, token])
            joins = both.startswith(alone)
            self._pieces[token] = both[len(alone) :] if joins else self._decode([token])
        return self._pieces[token]


def plain(tokens: Sequence[str], special: NDArray[np.bool_] | None = None) -> Text:
    """Tokens without a tokenizer: words each, unless they carry the marks that tokenizers set.

    >>> plain(["play", "##ing"]).pieces, plain(["Hello", "Ġworld"]).pieces, plain(["a", "Ġ"]).pieces
    ((' play', 'ing'), ('Hello', ' world'), (' a', ' Ġ'))
    """
    tokens = tuple(str(token) for token in tokens)
    pieces = [f" {token}" for token in tokens]
    for mark in "Ġ▁":
        if any(len(token) > 1 and token.startswith(mark) for token in tokens):
            pieces = [token.replace(mark, " ").replace("Ċ", "\n") for token in tokens]
            break
    else:
        if any(len(token) > 2 and token.startswith("##") for token in tokens):
            pieces = [t[2:] if t.startswith("##") and len(t) > 2 else f" {t}" for t in tokens]
    return Text(tokens, tuple(pieces), np.zeros(len(tokens), bool) if special is None else special)


def patches(size: int, rows: int, columns: int) -> Text:
    """The patches of an image by row and column; what stands before them is special.

    >>> patches(5, 2, 2).tokens
    ('[CLS]', '0,0', '0,1', '1,0', '1,1')
    """
    before = size - rows * columns
    special = [f"[+{n}]" if n else "[CLS]" for n in range(before)]
    named = [f"{row},{column}" for row in range(rows) for column in range(columns)]
    return plain([*special, *named], np.arange(size) < before)


def _whole(
    pieces: list[str], ids: list[int], special: NDArray[np.bool_], decode: Any
) -> tuple[str, ...]:
    """Put characters that are cut into several tokens together, in the first of them."""
    begin = 0
    while begin < len(pieces):
        end = begin + 1
        if _LOST in pieces[begin] and not special[begin]:
            for past in range(begin + 2, min(begin + 8, len(pieces) + 1)):
                if special[past - 1]:
                    break
                if _LOST not in (joined := decode(ids[begin:past])):
                    lead = " " if pieces[begin].startswith(" ") and joined[:1] != " " else ""
                    pieces[begin:past] = [lead + joined] + [""] * (past - begin - 1)
                    end = past
                    break
        begin = end
    return tuple(pieces)


def words(text: Text, item: int = 0) -> list[Word]:
    """The words of a text, without special tokens.

    >>> [w.text for w in words(plain(["un", "##like", "##ly", "!"]))]
    ['unlikely', '!']
    """
    found: list[list[int]] = []
    before: str | None = None  # what the word before ends with; None: nothing joins it
    for position, piece in enumerate(text.pieces):
        if text.special[position]:
            before = None
            continue
        if before is not None and (not piece or _joins(before, piece)):
            found[-1].append(position)
            before += piece
        else:
            found.append([position])
            before = piece
    return [_word(text, item, positions) for positions in found]


def _word(text: Text, item: int, positions: Sequence[int]) -> Word:
    whole, first = "".join(text.pieces[p] for p in positions), text.tokens[positions[0]]
    if len(positions) == 1 and whole == f" {first}" and not first.strip():
        return Word(first, item, tuple(positions))  # one of the spaces is ours
    return Word(whole.strip() or whole, item, tuple(positions), whole[:1].isspace())


def _joins(before: str, piece: str) -> bool:
    """Whether a piece goes on with the word before it."""
    last, first = before[-1:], piece[:1]
    if before == " ":  # a space that is a token of its own belongs to the word behind it
        return not first.isspace()
    if last.isspace() or first.isspace():
        return False
    if _UNSPACED.match(first) or _UNSPACED.match(last):
        return False
    if _LOST in (first, last) or last == first:  # a cut character; dots, dashes
        return True
    return _letter(last) and _letter(first)


def _letter(character: str) -> bool:
    # Marks and joiners belong to the letter before them.
    return character.isalnum() or character == "_" or unicodedata.category(character)[0] in "MC"


def find(wanted: str, texts: Sequence[Text], normal: Any = str) -> Word:
    """The word that a person means; "it:2" is the second "it" of all items.

    As it is written first, then whatever the case, then as the tokenizer's model knows it, then
    without the punctuation around it. What is no word alone may be several that stand side by
    side: "New York", "don't".

    Raises:
        WordError: there is none, or there are several and no number says which.
    """
    name, _, number = wanted.rpartition(":")
    matches = _matches(wanted, texts, normal)
    if not matches and name and number.isdecimal():
        matches = _matches(name, texts, normal)
        if matches and not 1 <= int(number) <= len(matches):
            raise WordError(
                f"{name!r} occurs {len(matches)} times:", _choices(name, matches, texts)
            )
        matches = matches[int(number) - 1 :][:1]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise WordError(
            f"{wanted!r} occurs {len(matches)} times, say which:", _choices(wanted, matches, texts)
        )
    if len(texts) == 1 and len(every := words(texts[0])) <= 40:
        raise WordError(f"{wanted!r} is no word of the text: {' '.join(w.text for w in every)}")
    raise WordError(f"{wanted!r} is no word of the text")


def _matches(wanted: str, texts: Sequence[Text], normal: Any) -> list[Word]:
    every = [words(text, item) for item, text in enumerate(texts)]
    for form in (str, str.casefold, lambda text: normal(text).casefold(), _bare):
        goal = "".join(form(wanted).split())
        if not goal:
            return [w for item in every for w in item if w.text == wanted]
        found = [w for item in every for w in item if form(w.text) == goal]
        if found := found or [
            w for i, item in enumerate(every) for w in _phrases(goal, item, texts[i], form)
        ]:
            return found
    return []


def _bare(text: str) -> str:
    """Without the punctuation at its ends, which some tokenizers leave on their words."""
    inside = [i for i, character in enumerate(text) if character.isalnum()]
    return text[inside[0] : inside[-1] + 1].casefold() if inside else text


def _phrases(goal: str, every: list[Word], text: Text, form: Any) -> list[Word]:
    """Words side by side that together read as the goal, spaces aside."""
    forms = [form(word.text) for word in every]
    found = []
    for begin in range(len(every)):
        rest, end = goal, begin
        while rest and end < len(every) and rest.startswith(forms[end]) and forms[end]:
            rest, end = rest[len(forms[end]) :], end + 1
        if not rest and end > begin + 1:
            positions = tuple(p for word in every[begin:end] for p in word.positions)
            found.append(_word(text, every[begin].item, positions))
    return found


def _choices(name: str, matches: list[Word], texts: Sequence[Text]) -> list[tuple[str, str]]:
    return [(f"{name}:{n}", context(word, texts[word.item])) for n, word in enumerate(matches, 1)]


def context(word: Word, text: Text, around: int = 4) -> str:
    """The word in brackets, between some of its neighbours."""
    every = words(text, word.item)
    inside = [n for n, other in enumerate(every) if set(other.positions) & set(word.positions)]
    first, last = inside[0], inside[-1]
    shown = every[max(0, first - around) : last + around + 1]
    parts: list[str] = []
    for other in shown:
        lead = " " if other.spaced and parts else ""
        begins, ends = other is every[first], other is every[last]
        parts.append(f"{lead}{'[' if begins else ''}{other.text}{']' if ends else ''}")
    before = "… " if first > around else ""
    after = " …" if last + around + 1 < len(every) else ""
    return f"{before}{''.join(parts)}{after}"
