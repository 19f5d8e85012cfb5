"""The links that answer a question about a recording, and the same as one JSON object."""

from math import isfinite
from typing import Any, Literal, NamedTuple

import numpy as np

from regard.core.arguments import Array
from regard.recording.links import best, first_of
from regard.recording.recording import By, Recording
from regard.recording.strongest import strongest
from regard.recording.words import Word
from regard.views.asked import word


class Answer(NamedTuple):
    """Links of one text, the best first, and the words that were asked about."""

    item: int
    source: Word | None  # the word that reads
    target: Word | None  # the word that is read
    links: Array  # rows of `regard.recording.links.LINK`


def answer(
    seen: Recording,
    source: Word | str | None = None,
    target: Word | str | None = None,
    *,
    by: By = "lift",
    each: Literal["word", "head"] = "word",
    layer: int | None = None,
    head: int | None = None,
    top: int = 100,
) -> Answer:
    """What a word reads, which words read it, how one reads the other, or what is strong.

    Args:
        seen: the recording.
        source: the word that reads.
        target: the word that is read.
        by: rank by "lift" or by the bare "weight".
        each: one line for each "word" or two words, its best head; or for each "head", its
            heaviest word. With both words it is always each head.
        layer: only this layer.
        head: only this head.
        top: without words, at least this many links.

    Raises:
        KeyError: no such word, or several.
        ValueError: no such layer or head, or the words are the same or of different texts.
    """
    reader, read = word("source", source, seen), word("target", target, seen)
    _expect(seen, layer, head)
    only: dict[str, Any] = {"by": by, "layer": layer, "head": head}
    if reader and read:
        links = _between(seen, reader, read, **only)
    elif reader:
        links = seen.reads(reader, each=each, **only)
    elif read:
        links = seen.read_by(read, each=each, **only)
    else:
        # Two words can have a link in every head; so many links are of `top` pairs at the least.
        heads = sum(len(x.heads) for x in seen.layers)
        links = first_of(seen.edges(top * heads, **only), ("item", "query", "key"))
        if len(links):
            links = links[links["item"] == links["item"][0]]
    asked = reader or read
    item = asked.item if asked else int(links["item"][0]) if len(links) else 0
    return Answer(item, reader, read, links)


def _between(
    seen: Recording, source: Word, target: Word, by: By, layer: int | None, head: int | None
) -> Array:
    """The link between two words in each head."""
    if source.item != target.item or set(source.positions) & set(target.positions):
        raise ValueError(f"{source.text!r} and {target.text!r}: two words of one text expected")
    one = seen.item(source.item)
    places = one.run.places[one.run.main]
    own = [tuple(np.searchsorted(places, w.positions).tolist()) for w in (source, target)]
    found = [
        strongest(shown, own[:1], own[1:], by, head=head)
        for shown in one.layers
        if shown.kind == one.run.main and layer in (None, shown.number)
    ]
    links = best(np.concatenate(found), by)
    links["item"], links["query"], links["key"] = (
        source.item, source.positions[0], target.positions[0],
    )  # fmt: skip
    return links


def _expect(seen: Recording, layer: int | None, head: int | None) -> None:
    own = [shown for shown in seen.layers if shown.kind == seen.run.main]
    for name, wanted, known in (
        ("layer", layer, {shown.number for shown in own}),
        ("head", head, {int(n) for x in own if layer in (None, x.number) for n in x.heads}),
    ):
        if wanted is not None and wanted not in known:
            raise ValueError(f"{name}: expected one of {sorted(known)}, received {wanted}")


def as_json(
    seen: Recording,
    source: Word | str | None = None,
    target: Word | str | None = None,
    *,
    top: int = 100,
) -> dict[str, Any]:
    """One object of plain values: for every head its heaviest word beside the one asked about.

    Heads are ranked by lift. What cannot be compared is None, as is the word of a head in which
    there is none. With both words, for every head the link between them; with neither, the `top`
    strongest links.
    """
    found = answer(seen, source, target, each="head", top=top)
    texts = {word.positions[0]: word.text for word in seen.words(found.item)}
    tokens = seen.tokens[found.item]
    said: dict[str, Any] = {"model": seen.model, "tokens": tokens}
    for name, asked in (("from", found.source), ("to", found.target)):
        if asked:
            positions = list(asked.positions)
            said[name] = {
                "word": asked.text,
                "positions": positions,
                "tokens": [tokens[p] for p in positions],
            }
            texts[asked.positions[0]] = asked.text
    if found.source or found.target:
        end, at = ("to", "key") if found.source else ("from", "query")
        said["heads"] = [
            {**_head(link), end: texts[int(link[at])], "position": int(link[at]), **_numbers(link)}
            for link in found.links
        ] + [
            {"layer": layer, "head": head, end: None, "position": None,
             "weight": None, "baseline": None, "by_distance": None}
            for layer, head in _silent(seen, found.links)
        ]  # fmt: skip
    else:
        said["links"] = [
            {
                **_head(link),
                "from": texts[int(link["query"])],
                "to": texts[int(link["key"])],
                "positions": [int(link["query"]), int(link["key"])],
                **_numbers(link),
            }
            for link in found.links[:top]
        ]
    check = seen.check()
    said["check"] = {"output": check.output, "relative": check.relative, "rows": check.rows}
    return said


def _head(link: Any) -> dict[str, int]:
    return {"layer": int(link["layer"]), "head": int(link["head"])}


def _numbers(link: Any) -> dict[str, float | None]:
    names = ("weight", "baseline", "by_distance")
    return {name: float(link[name]) if isfinite(link[name]) else None for name in names}


def _silent(seen: Recording, links: Array) -> list[tuple[int, int]]:
    """The heads that have no link: in the first word of a text that is read from left to right."""
    heard = {(int(link["layer"]), int(link["head"])) for link in links}
    every = [(x.number, int(h)) for x in seen.layers if x.kind == seen.run.main for h in x.heads]
    return [head for head in every if head not in heard]


def heads_as_json(seen: Recording) -> dict[str, Any]:
    """One object of plain values: what `Recording.heads` says of each head."""
    table = seen.heads()
    heads = [
        {
            name: None if isinstance(value, float) and not isfinite(value) else value
            for name, value in zip(table.dtype.names or (), row.item(), strict=True)
        }
        for row in np.asarray(table)
    ]
    check = seen.check()
    return {
        "model": seen.model,
        "tokens": seen.tokens[0] if len(seen.tokens) == 1 else seen.tokens,
        "heads": heads,
        "check": {"output": check.output, "relative": check.relative, "rows": check.rows},
    }
