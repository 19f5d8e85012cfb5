"""Writing the calculation of one row out, with words and numbers, as on a blackboard."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from regard.core.arguments import Array

if TYPE_CHECKING:
    from regard.core.steps import Steps

MOST_KEYS = 12  # of more keys, only the heaviest are written out
MOST_NUMBERS = 6  # of a longer vector, only the first and the last
OVERFLOWS = 20  # from here on e^score is written with the largest score subtracted


def write(steps: "Steps", query: int = 0, head: int = 0, item: tuple[int, ...] = ()) -> str:
    """Write one row of `steps` out; what is left out is said and counted.

    >>> from regard.core.steps import steps
    >>> print(write(steps([[1, 0]], [[1, 0], [0, 1]], [[10], [20]])))
    Query 0 of 1, 2 keys
    <BLANKLINE>
    1. Scores: query · key
       key 0  [1, 0] · [1, 0] = 1
       key 1  [1, 0] · [0, 1] = 0
    <BLANKLINE>
    2. Scaled: ÷ √2 = 1.414
       key 0  1 ÷ 1.414 = 0.7071
       key 1  0 ÷ 1.414 = 0
    <BLANKLINE>
    3. Weights: softmax, e^score ÷ the sum of all
       key 0  e^0.7071 = 2.028 ÷ 3.028 = 0.6698
       key 1  e^0      = 1     ÷ 3.028 = 0.3302
       sum               3.028           1
    <BLANKLINE>
    4. Output: weight × value, added up
       key 0  0.6698 × [10] = [6.698]
       key 1  0.3302 × [20] = [6.605]
       sum                    [ 13.3]
    """
    *outer, queries, keys = steps.scores.shape
    title = f"Query {query} of {queries}, {keys} key{'s' * (keys != 1)}"
    where: tuple[int, ...] = ()
    if outer:  # the last of these axes are the heads, the others are batch axes
        where = (*(item or (0,) * (len(outer) - 1)), head)
        title += f", head {head} of {outer[-1]}"
        title += f", item {', '.join(map(str, where[:-1]))}" if len(outer) > 1 else ""
    if 0 in (queries, *outer):
        return f"{title}: nothing to calculate"
    title = steps.title or title

    weights = steps.weights[where][query]
    shown = np.arange(keys)
    if keys > MOST_KEYS:
        shown = np.sort(np.argsort(-np.nan_to_num(weights), kind="stable")[:MOST_KEYS])
        title += f"; the {MOST_KEYS} heaviest of {keys} keys are shown"
    said = [
        *_scores(steps, where, query, shown),
        _weights(steps, where, query, shown),
        *_output(steps, where, query, shown),
    ]
    numbered = (f"{number}. {text}" for number, text in enumerate(said, start=1))
    return "\n\n".join((title, *numbered))


def _scores(steps: "Steps", where: tuple[int, ...], query: int, shown: Array) -> list[str]:
    """Write how the scores are made: dot products, scale, soft cap, bias."""
    bare, scaled, capped, biased = (
        [_number(score) for score in array[where][query][shown]]
        for array in (steps.scores, steps.scaled, steps.capped, steps.biased)
    )
    names = [f"key {j}" for j in shown]
    width = steps.query.shape[-1]
    asks, keys = _vectors(steps.query[where][query][None])[0], _vectors(steps.key[where][shown])

    def table(title: str, *cells: Sequence[str]) -> str:
        return _table(title, [list(row) for row in zip(names, *cells, strict=True)])

    products = [f"{asks} · {key}" for key in keys]
    abridged = f", vectors of {width} numbers" if width > MOST_NUMBERS else ""
    said = [table(f"Scores: query · key{abridged}", products, [f"= {x}" for x in bare])]
    if steps.scale == 1 / math.sqrt(width) != 1:
        root = _number(math.sqrt(width))
        how = [f"{x} ÷ {root}" for x in bare]
        said.append(table(f"Scaled: ÷ √{width} = {root}", how, [f"= {x}" for x in scaled]))
    elif steps.scale != 1:
        factor = _number(steps.scale)
        how = [f"{x} × {factor}" for x in bare]
        said.append(table(f"Scaled: × {factor}", how, [f"= {x}" for x in scaled]))
    if steps.softcap is not None:
        cap = _number(steps.softcap)
        how = [f"{cap} × tanh({x} ÷ {cap})" for x in scaled]
        said.append(table("Capped softly", how, [f"= {x}" for x in capped]))
    if not np.array_equal(steps.biased, steps.capped, equal_nan=True):
        with np.errstate(invalid="ignore"):
            bias = (steps.biased[where][query] - steps.capped[where][query])[shown]
        how = [f"{x} + {_number(b)}" for x, b in zip(capped, bias, strict=True)]
        said.append(table("Biased", how, [f"= {x}" for x in biased]))
    return said


def _weights(steps: "Steps", where: tuple[int, ...], query: int, shown: Array) -> str:
    """Write the softmax out."""
    scores, allowed = steps.biased[where][query], steps.allowed[where][query]
    weights, taken = steps.weights[where][query], float(steps.sink[where][query])
    lse = float(steps.lse[where][query])
    if not allowed.any():
        return "Weights: this query may attend to no key, so all are 0"
    with np.errstate(all="ignore"):
        sink = lse + np.log(taken)  # what entered the softmax for it
        largest = float(max(scores[allowed].max(), sink))
        shift = largest if abs(largest) > OVERFLOWS else 0.0
        total, powers = _number(np.exp(lse - shift)), np.exp(scores - shift)

    def line(name: str, score: float, power: float, weight: float) -> list[str]:
        exponent, share = _number(score - shift), _number(weight)
        return [name, f"e^{exponent}", f"= {_number(power)}", f"÷ {total}", f"= {share}"]

    rows = [
        line(f"key {j}", scores[j], powers[j], weights[j])
        if allowed[j]
        else [f"key {j}", "masked", "", "", "  0"]
        for j in shown
    ]
    if left := len(weights) - len(shown):
        others = np.delete(np.where(allowed, powers, 0), shown).sum()
        rest = np.delete(weights, shown).sum()
        rows.append([f"… {left} more", "", f"  {_number(others)}", "", f"  {_number(rest)}"])
    if taken:
        rows.append(line("sink", sink, float(np.exp(sink - shift)), taken))
    rows.append(["sum", "", f"  {total}", "", f"  {_number(weights.sum() + taken)}"])
    power = f"e^(score {'-' if shift > 0 else '+'} {_number(abs(shift))})" if shift else "e^score"
    return _table(f"Weights: softmax, {power} ÷ the sum of all", rows)


def _output(steps: "Steps", where: tuple[int, ...], query: int, shown: Array) -> list[str]:
    """Write dropout, if there is any, and the weighted sum of the values."""
    weights, kept = steps.weights[where][query], steps.kept[where][query]
    allowed, output = steps.allowed[where][query], steps.output[where][query]
    said = []
    if (kept != 1).any():
        lines = zip(shown, weights[shown], kept[shown], strict=True)
        rows = [
            [f"key {j}", _number(w), f"× {_number(k)}", f"= {_number(w * k)}"] for j, w, k in lines
        ]
        said.append(_table("Dropout: × 0, or × what makes up for those dropped", rows))
    listed = shown[allowed[shown]]
    values, used = steps.value[where][listed], (weights * kept)[listed]
    with np.errstate(invalid="ignore"):
        terms = used[:, None] * values
        rest = output - terms.sum(axis=0)
    left = len(weights) - len(shown)
    sums = _vectors(np.concatenate([terms, rest[None], output[None]]))
    rows = [
        [f"key {j}", _number(w), f"× {value}", f"= {term}"]
        for j, w, value, term in zip(listed, used, _vectors(values), sums, strict=False)
    ]
    if left:
        rows.append([f"… {left} more", "", "", f"  {sums[-2]}"])
    rows.append(["sum", "", "", f"  {sums[-1]}"])
    return [*said, _table("Output: weight × value, added up", rows)]


def _table(title: str, rows: list[list[str]]) -> str:
    """Write rows below their title, cells in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "   " + "  ".join([row[0].ljust(widths[0]), _cells(row[1:], widths[1:])]).rstrip()
        for row in rows
    )
    return "\n".join([title, *lines])


def _cells(cells: list[str], widths: list[int]) -> str:
    return " ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))


def _vectors(rows: Array) -> list[str]:
    """Write vectors of one width below each other, long ones without their middle."""
    width = rows.shape[-1]
    columns = [[_number(x) for x in column] for column in rows.T]
    if width > MOST_NUMBERS:
        columns = [*columns[: MOST_NUMBERS - 2], ["…"] * len(rows), columns[-1]]
    widths = [max(map(len, column), default=0) for column in columns]
    return [
        f"[{', '.join(x.rjust(n) for x, n in zip(row, widths, strict=True))}]"
        for row in (zip(*columns, strict=True) if columns else [()] * len(rows))
    ]


def _number(x: float) -> str:
    return f"{x:.0f}" if 1e4 <= abs(x) < 1e7 else f"{x + 0.0:.4g}"  # + 0.0 makes -0 a 0
