"""What the figures show: each kind, drawn on a sheet."""

from collections.abc import Callable, Sequence

import numpy as np

from regard.core.arguments import Array
from regard.core.look import Look
from regard.recording.recording import By
from regard.views import patches
from regard.views.chosen import Link
from regard.views.labels import short
from regard.views.palette import ink, shade, tone
from regard.views.scene import NAN, Scene, Spot, percent, points
from regard.views.sheet import MARGIN, WIDTH, Sheet

CELLS = 256  # a larger matrix is drawn as the largest weight of each cell
LABELLED = 64  # tokens that still get a name each

WORD = 36  # letters of a word in a sentence, at the most
FAINT = 0.04  # shades below this only make a text restless


def _words(sheet: Sheet, shown: Scene, link: Link, by: By) -> None:
    """The finding, the text, and the list."""
    _finding(sheet, shown)
    if shown.grid:
        before, rows = patches.apart(shown.words, shown.grid)
        _chips(sheet, before)
        patches.on_sheet(sheet, rows, shown.picture)
    else:
        _chips(sheet, shown.words)
    if shown.rows:
        _list(sheet, shown)


def _finding(sheet: Sheet, shown: Scene) -> None:
    parts = [
        (
            f"“{short(text, WORD)}”" if word else text,
            {"weight": "bold", "color": sheet.inks.above} if word else {},
        )
        for text, word in shown.title
    ]
    sheet.paragraph(parts, 14)
    sheet.paragraph([(shown.finding, {"color": sheet.inks.quiet})], 8.5)
    sheet.y += 6


def _chips(sheet: Sheet, words: Sequence[Spot]) -> None:
    if not words:
        return
    size, high = 11.0, 19.0
    x, y = MARGIN, sheet.y
    for spot in words:
        label = short(spot.label, WORD)
        small = spot.kind in ("special", "gap")
        wide = sheet.width(label, size * (0.75 if small else 1)) + 7
        if x + wide > WIDTH - MARGIN and x > MARGIN:
            x, y = MARGIN, y + high + 5
        value = 0.0 if np.isnan(spot.shade) or abs(spot.shade) < FAINT else tone(spot.shade)
        colour = sheet.inks.quiet if small else sheet.inks.text
        if value:
            sheet.box(x, y, wide, high, shade(value, sheet.ground), rounded=3)
            colour = ink(value, sheet.ground)
        elif spot.kind == "pinned":
            sheet.box(
                x, y, wide, high, sheet.inks.ground, rounded=3,
                edgecolor=sheet.inks.text, linewidth=1.1,
            )  # fmt: skip
        sheet.text(x + 3.5, y + 13.4, label, size * (0.75 if small else 1), color=colour)
        x += wide + (4 if spot.spaced else 2)
    sheet.y = y + high + 12


def _list(sheet: Sheet, shown: Scene) -> None:
    sheet.paragraph([(shown.heading, {"weight": "bold"})], 8.5)
    sheet.y += 2
    names = [row.label or "" for row in shown.rows]
    left = MARGIN + min(120, max([sheet.width(name, 9) for name in names] + [0])) + 34
    if not shown.names[0]:
        left = MARGIN + 6
    numbers = (196.0, 158.0, 122.0, 86.0, 50.0)
    bar = WIDTH - MARGIN - numbers[0] - left - 10
    titles = ("weight", "others", "as far", "lift", "head")
    for title, right in zip(titles, (*numbers[1:], 0.0), strict=True):
        sheet.text(
            WIDTH - MARGIN - right - 4, sheet.y + 6, title, 7, color=sheet.inks.quiet, ha="right"
        )
    sheet.text(left + bar, sheet.y + 6, percent(shown.scale), 7, color=sheet.inks.quiet, ha="right")
    sheet.y += 11
    for row in shown.rows:
        if shown.names[0]:
            name = row.label if sheet.width(row.label, 9) < 118 else short(row.label, 18)
            sheet.text(MARGIN, sheet.y + 9, name, 9)
            sheet.text(left - 6, sheet.y + 9, row.place, 7, color=sheet.inks.quiet, ha="right")
        sheet.box(left, sheet.y + 3, bar, 7, shade(0.08, sheet.ground))
        sheet.box(left, sheet.y + 3, bar * min(row.weight / shown.scale, 1), 7, sheet.inks.above)
        if not np.isnan(row.reference):
            tick = left + bar * min(row.reference / shown.scale, 1)
            sheet.box(tick - 0.7, sheet.y + 1, 1.4, 11, sheet.inks.text)
        values = (
            percent(row.weight), percent(row.baseline), percent(row.by_distance), points(row.lift),
            str(row.head) if row.layer is None else f"{row.layer}.{row.head}",
        )  # fmt: skip
        for value, right in zip(values, (*numbers[1:], 0.0), strict=True):
            first = right == numbers[1]
            how = {"weight": "bold"} if first else {"color": sheet.inks.quiet}
            sheet.text(WIDTH - MARGIN - right - 4, sheet.y + 9, value, 8.5, ha="right", **how)
        sheet.y += 14
    if shown.more:
        sheet.text(MARGIN, sheet.y + 8, shown.more, 7.5, color=sheet.inks.quiet)
        sheet.y += 12


def _heads(sheet: Sheet, shown: Scene, link: Link, by: By) -> None:
    """What each head gives the link."""
    _finding(sheet, shown)
    if isinstance(link.seen, Look):
        layers, numbers = [link.look], [link.layer]
        names = [list(range(link.look.call.shape[-3]))]
    else:
        one = link.seen.item(0) if len(link.seen.texts) == 1 else link.seen
        own = [x for x in one.layers if x.kind == one.run.main]
        layers, numbers = list(own), [x.number for x in own]
        names = [x.heads.tolist() for x in own]
    wide = max(map(len, names))
    side = min(26.0, (WIDTH - 2 * MARGIN - 40) / wide)
    left = MARGIN + 40
    sheet.text(left - 8, sheet.y + 8, "head", 7, color=sheet.inks.quiet, ha="right")
    for n in range(wide):
        label = str(names[0][n]) if n < len(names[0]) else ""
        sheet.text(
            left + (n + 0.5) * side, sheet.y + 8, label, 7, color=sheet.inks.quiet, ha="center"
        )
    sheet.y += 13
    for look, number, heads in zip(layers, numbers, names, strict=True):
        sheet.text(
            left - 8,
            sheet.y + side / 2 + 3,
            "" if number is None else f"layer {number}",
            7,
            color=sheet.inks.quiet,
            ha="right",
        )
        values = _of_heads(link, look, by)
        for n, (head, value) in enumerate(zip(heads, values, strict=True)):
            x, here = left + n * side, (number, head) == (link.layer, link.head)
            clean = 0.0 if np.isnan(value) else float(value)
            sheet.box(
                x + 1, sheet.y + 1, side - 2, side - 2, shade(tone(clean), sheet.ground), rounded=2,
                edgecolor=sheet.inks.text if here else sheet.inks.quiet,
                linewidth=1.4 if here else 0.25,
            )  # fmt: skip
            if side > 17 and abs(clean) >= 0.1:
                sheet.text(
                    x + side / 2, sheet.y + side / 2 + 2.6, points(clean), 6.5, ha="center",
                    color=ink(tone(clean), sheet.ground),
                )  # fmt: skip
        sheet.y += side
    said = "the weight beyond what the others give" if by == "lift" else "the bare weight"
    sheet.y += 12
    sheet.text(left, sheet.y, f"Shade and numbers: {said}, in points of a hundred.", 7,
               color=sheet.inks.quiet)  # fmt: skip
    sheet.y += 4


def _of_heads(link: Link, look: Look, by: By) -> Array:
    """The link in every head of an attention, token by token: its first pieces."""
    row = link.query + getattr(link.look, "offset", 0) - getattr(look, "offset", 0)
    at = (*(0,) * len(look.call.batch), slice(None), row, link.key)
    at = at if not look.call.flat else (row, link.key)
    weight = np.atleast_1d(look.weights[at])
    if by == "weight":
        return weight
    found: Array = weight - np.maximum(
        np.atleast_1d(look.baseline[at]), np.atleast_1d(look.by_distance[at])
    )
    return found


def _matrix(sheet: Sheet, shown: Scene, link: Link, by: By) -> None:
    """All weights of one head; what may not be attended is hatched."""
    sheet.paragraph([(f"{link.name.capitalize()}: rows read, columns are read.", {})], 11)
    rows, keys = link.look.call.shape[-2:]
    labelled = max(rows, keys) <= LABELLED
    if labelled:
        values = np.where(link.matrix(link.look.allowed), link.matrix(link.look.weights), NAN)
    else:
        cells = min(rows, CELLS), min(keys, CELLS)
        pooled = link.look.map(*cells, how="max")
        values = pooled[
            (*(0,) * len(link.look.call.batch), *(() if link.look.call.flat else (link.at,)))
        ]
    beside, above = 28.0, 16.0
    if labelled:
        beside, above = (
            8 + max(sheet.width(f"{n} {short(t, 14)}", 7) for n, t in enumerate(names))
            for names in (link.rows, link.keys)
        )
    side = min((WIDTH - 2 * MARGIN - beside) / values.shape[1], 24)
    left, top = MARGIN + beside, sheet.y + above
    _paint(sheet, values, left, top, side)
    if labelled:
        size = min(7.5, side * 0.8)
        for n, name in enumerate(link.rows):
            own = n == link.query
            sheet.text(
                left - 4, top + (n + 0.5) * side + size * 0.35, f"{short(name, 14)} {n}", size,
                ha="right", color=sheet.inks.text if own else sheet.inks.quiet,
            )  # fmt: skip
        for n, name in enumerate(link.keys):
            own = n == link.key
            sheet.text(
                left + (n + 0.5) * side, top - 4, f"{n} {short(name, 14)}", size, rotation=90,
                ha="center", va="bottom", color=sheet.inks.text if own else sheet.inks.quiet,
            )  # fmt: skip
        sheet.box(
            left + link.key * side, top + link.query * side, side, side, "none",
            edgecolor=sheet.inks.text, linewidth=1.3,
        )  # fmt: skip
    else:
        _ticks(sheet, rows, keys, left, top, side * values.shape[1], side * values.shape[0])
    sheet.y = top + side * values.shape[0] + 12
    said = "" if labelled else "Each cell shows the largest weight in it. "
    said += "Dark 0, blue 100 %" if sheet.ground == "dark" else "White 0, blue 100 %"
    said += "; hatched: may not attend." if np.isnan(values).any() else "."
    sheet.text(left, sheet.y, said, 7, color=sheet.inks.quiet)
    sheet.y += 4


def _paint(sheet: Sheet, values: Array, left: float, top: float, side: float) -> None:
    down, across = values.shape
    barred = np.isnan(values)
    if barred.any():
        sheet.box(
            left, top, across * side, down * side, shade(0.03, sheet.ground), hatch="/////",
            edgecolor=sheet.inks.quiet, linewidth=0, alpha=0.5,
        )  # fmt: skip
    steps = [shade(tone(n / 100), sheet.ground) for n in range(101)]
    if down * across > 5000:
        colours = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in steps], np.uint8)
        at = np.round(100 * np.nan_to_num(values)).astype(int).clip(0, 100)
        image = np.dstack([colours[at], np.where(barred, 0, 255).astype(np.uint8)])
        extent = (left, left + across * side, top + down * side, top)
        sheet.axes.imshow(image, extent=extent, interpolation="nearest", aspect="auto")
        sheet.axes.set_xlim(0, WIDTH)
        return
    for i, j in np.argwhere(~barred):
        colour = steps[round(100 * min(max(float(values[i, j]), 0), 1))]
        sheet.box(
            left + j * side, top + i * side, side, side, colour,
            edgecolor=sheet.inks.ground, linewidth=0.4,
        )  # fmt: skip


def _ticks(
    sheet: Sheet, rows: int, keys: int, left: float, top: float, wide: float, tall: float
) -> None:
    steps = (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
    for count, length, down in ((keys, wide, False), (rows, tall, True)):
        step = next((s for s in steps if s * length / count >= 40), steps[-1])
        for n in range(0, count, step):
            at = n * length / count
            x, y, ha = (left - 4, top + at + 6, "right") if down else (left + at, top - 4, "left")
            sheet.text(x, y, str(n), 6.5, color=sheet.inks.quiet, ha=ha)


def _lines(sheet: Sheet, shown: Scene, link: Link, by: By) -> None:
    """Tokens twice, and a curve for each weight; those of the pinned word stand out."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    sheet.paragraph([(f"{link.name.capitalize()}: left reads, right is read.", {})], 11)
    if max(len(link.rows), len(link.keys)) > 2 * LABELLED:
        raise ValueError(
            f"kind: 'lines' draws up to {2 * LABELLED} tokens, the text has {len(link.keys)}; "
            "'matrix' draws them all"
        )
    weights = link.matrix(link.look.weights)
    names = [f"{short(name, 22)}  {n}" for side in (link.rows, link.keys)
             for n, name in enumerate(side)]  # fmt: skip
    beside = 8 + max(sheet.width(name, 8.5, "bold") for name in names)
    left, right, line = MARGIN + beside, WIDTH - MARGIN - beside, 13.0
    top = sheet.y
    for names, x, ha, own in (
        (link.rows, left, "right", link.query),
        (link.keys, right, "left", link.key),
    ):
        for n, name in enumerate(names):
            beyond = x - 6 if ha == "right" else x + 6
            text = f"{n}  {short(name, 22)}" if ha == "right" else f"{short(name, 22)}  {n}"
            sheet.text(
                beyond, top + (n + 0.5) * line + 3, text, 8.5, ha=ha,
                weight="bold" if n == own else "normal",
            )  # fmt: skip
    middle = (left + right) / 2
    for i, j in np.argwhere(weights > 0.01):
        a, b = top + (i + 0.5) * line, top + (j + 0.5) * line
        curve = Path(
            [(left, a), (middle, a), (middle, b), (right, b)],
            [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4],
        )
        own, weight = i == link.query, float(weights[i, j])
        sheet.axes.add_patch(
            PathPatch(
                curve, facecolor="none", edgecolor=sheet.inks.above if own else sheet.inks.quiet,
                linewidth=0.5 + 2.2 * weight,
                alpha=min(1.0, (0.15 + weight) * (1 if own else 0.55)),
            )
        )  # fmt: skip
    sheet.y = top + max(len(link.rows), len(link.keys)) * line + 10
    sheet.text(MARGIN, sheet.y, "Weights below 1 % are not drawn.", 7, color=sheet.inks.quiet)
    sheet.y += 4


def _calculation(sheet: Sheet, shown: Scene, link: Link, by: By) -> None:
    """Query · key, product by product, down to the share of the output."""
    item = (0,) * len(link.look.call.batch)
    steps = link.look.steps(link.query, link.at, item)
    call = link.look.call
    group = link.at // (call.shape[-3] // call.key.shape[-3])
    query, key = (
        np.asarray(array[(*item, n, at)], np.float64)
        for array, n, at in ((call.query, link.at, link.query), (call.key, group, link.key))
    )
    reader, read = (
        f"“{short(name, WORD)}”" for name in (link.rows[link.query], link.keys[link.key])
    )
    sheet.paragraph([(f"{reader} → {read}, {link.name}", {"weight": "bold"})], 12)
    sheet.y += 2
    strips = (
        (short(f"query {reader}", 20), query),
        (short(f"key {read}", 20), key),
        ("product", query * key),
    )
    left = MARGIN + 10 + max(sheet.width(name, 8) for name, _ in strips)
    for name, values in strips:
        side = (WIDTH - MARGIN - left) / len(values)
        most = np.abs(values).max() or 1.0
        sheet.text(MARGIN, sheet.y + 11, name, 8, color=sheet.inks.quiet)
        for n, value in enumerate(values):
            sheet.box(
                left + n * side, sheet.y, side - 0.5, 15, shade(float(value / most), sheet.ground)
            )
        sheet.y += 17
    at = link.key
    score, scaled, weight = (float(x[0, at]) for x in (steps.scores, steps.scaled, steps.weights))
    scale = (
        f"÷ √{len(query)}"
        if abs(call.rule.scale * len(query) ** 0.5 - 1) < 1e-6
        else f"× {call.rule.scale:.3g}"
    )
    cards = [("query · key", f"{score:.3f}"), (scale, f"{scaled:.3f}")]
    if call.rule.softcap:
        cards.append((f"cap {call.rule.softcap:g}", f"{float(steps.capped[0, at]):.3f}"))
    if call.rule.bias is not None:
        cards.append(("+ bias", f"{float(steps.biased[0, at]):.3f}"))
    norm = float(np.linalg.norm(steps.terms[0, at]))
    whole = float(np.linalg.norm(steps.output[0]))
    cards += [
        ("softmax", f"{100 * weight:.2f} %"),
        ("× value", f"‖·‖ {norm:.3f}"),
        ("output, all keys", f"‖·‖ {whole:.3f}"),
    ]
    wide = (WIDTH - 2 * MARGIN + 6) / len(cards)
    sheet.y += 6
    for n, (name, value) in enumerate(cards):
        x = MARGIN + n * wide
        sheet.box(
            x,
            sheet.y,
            wide - 6,
            34,
            sheet.inks.ground,
            rounded=3,
            edgecolor=sheet.inks.quiet,
            linewidth=0.4,
        )
        sheet.text(x + 6, sheet.y + 12, name, 7, color=sheet.inks.quiet)
        sheet.text(x + 6, sheet.y + 26, value, 10, weight="bold")
    sheet.y += 42


DRAWINGS: dict[str, Callable[[Sheet, Scene, Link, By], None]] = {
    "words": _words,
    "matrix": _matrix,
    "heads": _heads,
    "lines": _lines,
    "calculation": _calculation,
}
