"""One row of one attention call as a scene: what a query reads, each key in its best head."""

from typing import Any

import numpy as np

from regard.core.look import Look
from regard.recording.recording import By
from regard.views.asked import one_of, position, whole
from regard.views.labels import short, visible
from regard.views.scene import HONEST, LEGEND, LONGEST, NAN, Row, Scene, Spot, percent, scale_of


def look_scene(
    look: Look,
    query: int | None = None,
    *,
    item: int | tuple[int, ...] = 0,
    head: int | None = None,
    by: By = "lift",
    top: int = 10,
) -> Scene:
    """Decide what is shown of a look: one query, the last unless it is said which.

    Args:
        look: what `regard.look` gives.
        query: a position.
        item: the batch item, where there are several.
        head: only this head.
        by: rank by "lift", the weight beyond what other rows give, or by the bare "weight".
        top: how many lines at the most.

    Raises:
        IndexError: no such position, head or item.
        ValueError: no heads, queries or keys.
    """
    filled(look)
    one_of("by", by, ("lift", "weight"))
    top = whole("top", top)
    *batch, heads_in_all, queries, keys = look.call.shape
    row = position("query", -1 if query is None else query, queries)
    head = None if head is None else position("head", head, heads_in_all)
    if isinstance(item, int):
        item = (item,) if len(batch) == 1 else (0,) * len(batch)
    heads: tuple[Any, ...] = ()
    if not look.call.flat:
        heads = (slice(None),) if head is None else (slice(head, head + 1),)
    weight, baseline, by_distance, allowed = (
        np.atleast_2d(view[(*item, *heads, row)])
        for view in (look.weights, look.baseline, look.by_distance, look.allowed)
    )
    value = weight - np.maximum(baseline, by_distance) if by == "lift" else weight
    value = np.where(allowed & ~np.isnan(value), value, -np.inf)
    best = value.argmax(axis=0)
    most = value[best, np.arange(keys)]
    order = [int(k) for k in np.argsort(-most, kind="stable") if np.isfinite(most[k])]
    names = [visible(name) for name in look.key_labels or map("key {}".format, range(keys))]
    rows = tuple(
        Row(
            label=names[k],
            place=str(k),
            weight=float(weight[best[k], k]),
            baseline=float(baseline[best[k], k]),
            by_distance=float(by_distance[best[k], k]),
            layer=getattr(look, "number", None),
            head=int(best[k]) + (head or 0),
        )
        for k in order[:top]
    )
    asked = short(visible(look.query_labels[row]), LONGEST) if look.query_labels else f"query {row}"
    left = len(order) - len(rows)
    size = " × ".join(map(str, look.shape))
    return Scene(
        model=f"attention of shape {size} ({', '.join(look.axes)})",
        title=_title(asked, rows),
        finding=f"Head {rows[0].head}." if rows and not look.call.flat else "",
        words=tuple(
            Spot(name, (k,), shade=float(most[k]) if np.isfinite(most[k]) else NAN)
            for k, name in enumerate(names)
        )
        if look.key_labels
        else (),
        heading=f"What “{asked}” reads, "
        + ("beyond what the others give" if by == "lift" else "by weight alone"),
        names=("key", "at"),
        rows=rows,
        more=f"and {left} more key{'s' * (left > 1)}" if left else "",
        scale=scale_of(rows),
        check=look.check(),
        notes=(LEGEND, HONEST),
    )


def filled(look: Look) -> None:
    """Refuse a call in which there is nothing to show."""
    if 0 in look.call.shape:
        raise ValueError(
            f"nothing to show: the call has shape {look.shape} ({', '.join(look.axes)})"
        )


def _title(asked: str, rows: tuple[Row, ...]) -> tuple[tuple[str, bool], ...]:
    if not rows:
        return ((asked, True), (" has nothing to read that could be compared.", False))
    first = rows[0]
    said = f" {percent(first.weight)}; the others give it {percent(first.baseline)}."
    return ((asked, True), (" gives ", False), (first.label, True), (said, False))
