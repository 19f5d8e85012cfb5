"""The one link that a figure is about: which head, which row, which key."""

from typing import Any

import numpy as np

from regard.core.arguments import Array
from regard.core.look import Look
from regard.recording.recording import Recording
from regard.views.answer import answer
from regard.views.labels import visible
from regard.views.scene import Scene


class Link:
    """The link that is drawn: one head of one attention, without batch axis."""

    def __init__(
        self,
        seen: Recording | Look,
        shown: Scene,
        source: Any,
        target: Any,
        layer: int | None,
        head: int | None,
    ) -> None:
        self.seen, self.source, self.target = seen, source, target
        first = shown.rows[0] if shown.rows else None
        self.layer = layer if layer is not None else first.layer if first else 0
        self.head = head if head is not None else first.head if first else 0
        if isinstance(seen, Look):
            self.look, self.at = seen, self.head
            rows, keys = seen.call.shape[-2:]
            given = zip((seen.query_labels, seen.key_labels), (rows, keys), strict=True)
            self.rows, self.keys = (
                [visible(x) for x in labels or map(str, range(size))] for labels, size in given
            )
            self.query = range(rows)[-1 if source is None else int(source)]
            self.key = int(first.place) if first and target is None else int(target or 0)
            return
        found = answer(seen, source, target, layer=layer, head=head, top=1)
        one = seen.item(found.item)
        places = one.run.places[one.run.main]
        self.look = next(x for x in one.layers if x.number == self.layer and x.kind == one.run.main)
        self.at = int(np.flatnonzero(np.asarray(getattr(self.look, "heads", [0])) == self.head)[0])
        text = one.texts[0]
        names = [
            visible(token if special or not piece else piece.removeprefix(" "))
            for token, piece, special in zip(text.tokens, text.pieces, text.special, strict=True)
        ]
        offset = getattr(self.look, "offset", 0)
        self.rows, self.keys = names[offset:][: self.look.shape[-2]], names
        link = found.links[0] if len(found.links) else {"query": 0, "key": 0}
        self.query = int(np.searchsorted(places, link["query"])) - offset
        self.key = int(np.searchsorted(places, link["key"]))

    @property
    def name(self) -> str:
        """In which head."""
        return (f"layer {self.layer} " if self.layer is not None else "") + f"head {self.head}"

    def matrix(self, view: Any) -> Array:
        """(T, S) of this head."""
        index = () if self.look.call.flat else (self.at,)
        batch = (0,) * len(self.look.call.batch)
        found: Array = view[(*batch, *index)]
        return found
