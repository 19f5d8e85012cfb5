"""One HTML file that shows a recording or a call: it opens from disk and asks no network.

The file holds the page's own text, which `document.py` puts together, and what `carried.py` puts
into it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from regard.core.indexing import size_in_words
from regard.core.look import Look
from regard.core.tiles import part
from regard.recording.compare import Compared
from regard.recording.layer import stacks
from regard.recording.recording import Recording
from regard.recording.words import Text, Word
from regard.views.asked import position, whole, word
from regard.views.carried import PAIRS, Shown, Source, carry, described_alone, some_heads
from regard.views.compared import alone, difference
from regard.views.document import MEASURED, document
from regard.views.labels import visible
from regard.views.looking import filled
from regard.views.opening import opening
from regard.views.patches import as_address, expect_grid, picture
from regard.views.scene import HONEST, described

BUDGET = 24_000_000  # bytes
MOVED = {"moved": "half the sum of the differences of a row's weights, in the two recordings"}


def to_html(
    seen: Recording | Look,
    path: str | PathLike[str] | None = None,
    source: Word | str | int | None = None,
    target: Word | str | int | None = None,
    *,
    item: int = 0,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    budget: int = BUDGET,
    image: Any = None,
) -> str | Path:
    """Write a page about one text, or one batch item of a look.

    Args:
        seen: a recording or a look.
        path: the file to write; without it the page is returned as text.
        source: the word that reads (of a look: a position); the page opens with it.
        target: the word that is read.
        item: which text; of a look, which batch item.
        layers: carry only these layers, by the model's numbers.
        heads: carry only these heads of each layer.
        budget: bytes that the page may take. What is too large is carried as float16, and then
            with fewer heads; the page says so.
        image: what an image model saw, drawn pale and grey beneath its patches: (height, width, 3),
            bytes or floats from 0 to 1, or an image of Pillow; cropped as the model saw it.

    Returns:
        The path, or the page.

    Raises:
        KeyError: no such word, or several.
        ValueError: no such layer or head; not even one head fits into the budget; an image without
            a grid of patches.

    >>> seen.to_html("cat.html", "it")  # doctest: +SKIP
    """
    shown = "" if image is None else as_address(picture(image))
    ends: list[Any] = [source, target]
    if isinstance(seen, Look):
        filled(seen)
        item = position("item", item, int(np.prod(seen.call.shape[:-3])))
        ends = [
            given if given is None else position(name, given, size)
            for name, given, size in zip(
                ("source", "target"), ends, seen.call.shape[-2:], strict=True
            )
        ]
        carried = _of_look(seen, item)
    else:
        ends = [
            word(name, given, seen) for name, given in zip(("source", "target"), ends, strict=True)
        ]
        item = next((word.item for word in ends if isinstance(word, Word)), item)
        carried = _of_recording(seen, item)
    if shown:
        expect_grid(carried.grids)
    carried = replace(_only(carried, layers, heads), picture=shown)
    places = _places(seen, item, ends)
    start, best = opening(carried, *places)
    return _written(_page(carried, budget, best, lambda header: {"open": start}), path)


def compared_to_html(
    compared: Compared,
    path: str | PathLike[str] | None = None,
    *,
    budget: int = BUDGET,
    top: int = 40,
) -> str | Path:
    """Write a page about two recordings: each link in both, and what changed most.

    Args:
        compared: what `regard.recording.compare.compare` gives.
        path: the file to write; without it the page is returned as text.
        budget: bytes that the page may take.
        top: so many changed links are listed.
    """
    source = _of_both(compared)
    links = compared.links[:top]
    best = [(int(link["layer"]), int(link["head"])) for link in compared.links]
    moved = {(int(h["layer"]), int(h["head"])): float(h["moved"]) for h in compared.heads}
    firsts = [{w[side].positions[0]: w[side] for w in compared.words} for side in (0, 1)]
    start: dict[str, Any] = {"kind": "before"}
    if len(links):
        start |= {name: int(links[0][name]) for name in ("layer", "head")}
        start |= {
            end: list(firsts[0][int(links[0][name])].positions)
            for end, name in (("from", "query"), ("to", "key"))
        }
    more = {
        "open": start,
        "compare": {
            "difference": difference(compared),
            "pairs": [[list(old.positions), list(new.positions)] for old, new in compared.words],
            "links": [
                {
                    "layer": int(link["layer"]),
                    "head": int(link["head"]),
                    "from": list(firsts[0][int(link["query"])].positions),
                    "to": list(firsts[0][int(link["key"])].positions),
                    "weights": [float(link["weight"]), float(link["weight2"])],
                }
                for link in links
            ],
        },
    }

    def measures(header: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            row | {"moved": round(moved.get((int(row["layer"]), int(row["head"])), 0.0), 6)}
            for row in header["measures"]
        ]

    page = _page(
        source, budget, best, lambda header: more | {"measures": measures(header)}, MEASURED | MOVED
    )
    return _written(page, path)


def _page(
    source: Source,
    budget: int,
    best: Sequence[tuple[int, int]],
    more: Callable[[dict[str, Any]], dict[str, Any]],
    measured: dict[str, str] = MEASURED,
) -> bytes:
    """The page in so many bytes. `more` is what a header says beside what is carried."""
    budget = whole("budget", budget, 1)
    own = len(document(described_alone(source), (), measured)) + 1500 * len(source.layers)
    room = int(0.98 * (budget - own))
    while room > 0:
        header, arrays = carry(source, room, best)
        page = document(header | more(header), arrays.lines, measured).encode("utf-8")
        if len(page) <= budget:
            return page
        room -= len(page) - budget
    needed = size_in_words(own)
    raise ValueError(
        f"budget: the page takes {needed} without any numbers, more than {size_in_words(budget)}"
    )


def _written(page: bytes, path: str | PathLike[str] | None) -> str | Path:
    if path is None:
        return page.decode("utf-8")
    written = Path(path)
    written.write_bytes(page)
    return written


# ------------------------------------------------------------------------------ what is carried


def _of_both(compared: Compared) -> Source:
    """Two recordings as two kinds of attention, `before` and `after`."""
    sides = [_of_recording(one, 0) for one in (compared.before, compared.after)]
    layers: list[Shown] = []
    texts, never, grids = {}, {}, {}
    for name, source, one in zip(("before", "after"), sides, compared[:2], strict=True):
        main = one.run.main
        if main in source.grids:
            grids[name] = source.grids[main]
        texts[name], never[name] = source.texts[main], source.never[main]
        layers += [
            replace(shown, kind=name, rows=name, keys=name)
            for shown in source.layers
            if shown.kind == main
        ]
    checks = [source.check for source in sides]
    worst = max(checks, key=lambda check: check.relative / check.bound)
    models = " · ".join(dict.fromkeys(source.described for source in sides))
    notes = list(dict.fromkeys(note for source in sides for note in source.notes))
    notes[:0] = alone(compared)
    return Source(
        sides[0].model, models, worst, layers, texts, never, sides[0].measures, notes, grids
    )


def _of_recording(seen: Recording, item: int) -> Source:
    one = seen.item(item)
    run = one.run
    texts = {kind: tokens.texts(one.reader)[0] for kind, tokens in run.tokens.items()}
    never = {kind: text.special.copy() for kind, text in texts.items()}
    never[run.main] = one.special()
    layers = []
    for look in one.layers:
        rows, keys = stacks(look.kind)
        layers.append(
            Shown(
                look, look.name, look.number, look.kind, look.heads, rows, keys, look.offset,
                distances=not look.kept.crosses,
            )
        )  # fmt: skip
    # The attentions of the stack that the words are of come first.
    layers.sort(key=lambda shown: shown.kind != run.main)
    notes = [f"Not recorded: {visible(n)} ({why})." for n, why in seen.unrecorded.items()]
    if len(seen.texts) > 1:
        notes.append(f"This is text {item}; {len(seen.texts) - 1} more are not on this page.")
    if seen.run.stopped:
        notes.append(seen.run.stopped)
    if never[run.main].sum() > texts[run.main].special.sum():
        notes.append("The first token stands where other texts have a start token: not ranked.")
    notes.append(HONEST)
    few = sum(int(np.prod(look.shape)) for look in one.layers) <= 2 * PAIRS
    main = np.repeat([x.kind == run.main for x in one.layers], [len(x.heads) for x in one.layers])
    measures = np.asarray(one.heads())[main] if few else None
    grids = {kind: tokens.grid for kind, tokens in run.tokens.items() if tokens.grid}
    return Source(
        seen.model, described(seen), seen.check(), layers, texts, never, measures, notes, grids
    )


def _of_look(look: Look, item: int) -> Source:
    *batch, heads, rows, keys = look.call.shape
    at = np.unravel_index(item, batch) if batch else ()
    one = _single(look, tuple(int(i) for i in at))
    names = [
        list(labels or [str(n) for n in range(size)])
        for labels, size in ((look.query_labels, rows), (look.key_labels, keys))
    ]
    together = names[0] == names[1] or look.query_labels is None
    together = together and rows == keys
    texts = {"keys": _labelled(names[1])} | ({} if together else {"queries": _labelled(names[0])})
    shown = Shown(
        one, "attention", 0, "call", np.arange(heads), "keys" if together else "queries", "keys"
    )
    size = (
        f"{heads} head{'s' * (heads != 1)} · {rows} quer{'y' if rows == 1 else 'ies'} × "
        f"{keys} key{'s' * (keys != 1)}"
    )
    notes = [HONEST]
    if int(np.prod(batch)) > 1:
        notes.insert(0, f"This is batch item {item} of {int(np.prod(batch))}.")
    return Source("one attention call", f"one attention call · {size}", look.check(), [shown],
                  texts, notes=notes)  # fmt: skip


def _labelled(names: list[str]) -> Text:
    return Text(tuple(names), tuple(f" {name}" for name in names), np.zeros(len(names), bool))


def _single(look: Look, item: tuple[int, ...]) -> Look:
    """One batch item of a look, without batch axes."""
    call = look.call
    one = part(call, look._lse, item)
    offset = np.broadcast_to(np.asarray(call.query_offset), call.batch)[item]
    alone = call._replace(
        query=one.query, key=one.key, value=one.value, shape=call.shape[-3:], rule=one.rule,
        query_offset=int(offset), flat=False,
    )  # fmt: skip
    real = None if look.real_rows is None else look.real_rows[item]
    return Look(alone, np.empty(0, call.dtype), one.lse, real_rows=real)


def _only(source: Source, layers: Sequence[int] | None, heads: Sequence[int] | None) -> Source:
    """The layers and heads that were asked for; the page says that others are not on it."""
    for name, given in (("layers", layers), ("heads", heads)):
        if isinstance(given, int):
            raise TypeError(f"{name}: expected a list of numbers, such as [{given}]")
    kept = [x for x in source.layers if layers is None or x.number in set(layers)]
    if heads is not None:
        kept = [few for x in kept for few in some_heads(x, set(heads) & set(x.heads.tolist()))]
    if not kept:
        known = sorted({x.number for x in source.layers})
        raise ValueError(
            f"layers, heads: nothing is left with layers={layers}, heads={heads}; "
            f"there are layers {known}"
        )
    before, now = (sum(len(x.heads) for x in some) for some in (source.layers, kept))
    notes = source.notes
    if now < before:
        notes = [
            f"Not on this page: {before - now} of {before} heads, left out on request.",
            *notes,
        ]
    return replace(source, layers=kept, notes=notes)


def _places(seen: Recording | Look, item: int, ends: Sequence[Any]) -> list[list[int] | None]:
    """Words as positions among the tokens that are shown, which have no padding."""
    found: list[list[int] | None] = []
    for end in ends:
        if end is None:
            found.append(None)
        elif isinstance(seen, Look):
            found.append([int(end)])
        else:
            run = seen.item(item).run
            found.append(np.searchsorted(run.places[run.main], end.positions).tolist())
    return found
