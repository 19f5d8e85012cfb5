"""Attention as a textbook writes it, in float64 and without haste. Read this file first.

Every query is compared with every key, which gives a score; softmax turns a query's scores into
weights that add up to 1; the output is the sum of the values, each times its weight:

    Attention(Q, K, V) = softmax(Q Kᵀ / √D) V     (Vaswani et al. 2017, "Attention Is All You Need")

Everything else in this project computes the same faster, and is judged by what this file says.
It shares no code with them but `check`, which refuses what makes no sense.
"""

import html
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from regard.core import blackboard
from regard.core.arguments import Array, plain
from regard.core.call import check
from regard.core.dropout import multipliers


def scores(query: ArrayLike, key: ArrayLike) -> Array:
    """Multiply queries (…, D) with keys (S, D) or (…, S, D): query · key for each pair.

    >>> print(scores([1, 0], [[1, 0], [0, 1], [1, 1]]))
    [1. 0. 1.]
    """
    query, key = _float64("query", query), _float64("key", key)
    return np.asarray(query @ (np.swapaxes(key, -1, -2) if key.ndim > 1 else key))[()]


def softmax(scores: ArrayLike) -> Array:
    """Turn scores (…, S) into weights: e^score, divided by the sum of them all.

    Subtracting the largest score first changes no weight, but keeps e^score from overflowing.

    >>> print(softmax([2.0, 1.0, 0.5]).round(2))
    [0.63 0.23 0.14]
    """
    scores = _float64("scores", scores)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def combine(weights: ArrayLike, values: ArrayLike) -> Array:
    """Add up values (S,) or (…, S, V), each times its weight (…, S).

    >>> print(combine([0.2, 0.5, 0.3], [10, 20, 30]))
    21.0
    """
    return np.asarray(_float64("weights", weights) @ _float64("values", values))[()]


@dataclass(frozen=True, eq=False, repr=False)
class Steps:
    """Every step of one attention call, made by `steps`; printing it writes one row out.

    Arrays are (B…, H, T, S) where nothing else is said, without H where the call had no heads.

    >>> calculation = steps([[1, 0]], [[1, 0], [0, 1]], [[10], [20]], scale=1)
    >>> print(calculation.scores, calculation.weights.round(2), calculation.output.round(2))
    [[1. 0.]] [[0.73 0.27]] [[12.69]]
    """

    query: Array  # (B…, H, T, D)
    key: Array  # (B…, H, S, D): for each query head the key head that it reads
    value: Array  # (B…, H, S, V)
    scores: Array  # query · key
    scaled: Array  # × scale
    capped: Array  # softcap · tanh(scaled / softcap)
    biased: Array  # + bias
    allowed: Array  # who may attend to whom
    weights: Array  # softmax over the allowed keys, 0 for the others
    sink: Array  # (B…, H, T): the weight that went to the sink
    lse: Array  # (B…, H, T): log of the sum that softmax divides by
    kept: Array  # what dropout multiplies weights by: 0, or 1 / (1 - p)
    output: Array  # (B…, H, T, V): all terms of a row added up
    scale: float
    softcap: float | None
    title: str | None = None  # what to call the row when it is written out

    @property
    def terms(self) -> Array:
        """Weight × value for each query and key, (B…, H, T, S, V)."""
        terms = (self.weights * self.kept)[..., None] * self.value[..., None, :, :]
        return np.where(self.allowed[..., None], terms, 0)

    def text(self, query: int = 0, head: int = 0, item: tuple[int, ...] = ()) -> str:
        """Write out the calculation of one row, as on a blackboard."""
        return blackboard.write(self, query, head, item)

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text())}</pre>"


def steps(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    query_offset: ArrayLike | None = None,
    key_lengths: ArrayLike | None = None,
    segments: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
    ranges: tuple[ArrayLike, ArrayLike] | None = None,
    softcap: float | None = None,
    sinks: ArrayLike | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    seed: int | None = None,
    precision: str = "highest",
) -> Steps:
    """Compute attention step by step, in float64, and keep every step.

    The arguments are those of `regard.attention`; here they may also be lists, integers and any
    mixture of dtypes. Memory and time are those of the textbook: T × S for every head.

    >>> calculation = steps([[1, 0]], [[1, 0], [0, 1], [1, 1]], [[10, 0], [0, 20], [30, 30]])
    >>> print(calculation.scores, calculation.weights.round(2), calculation.output.round(2))
    [[1. 0. 1.]] [[0.4 0.2 0.4]] [[16.04 15.99]]
    """
    given = locals()
    for name in ("query", "key", "value", "bias", "sinks"):
        given[name] = None if given[name] is None else _float64(name, given[name])
    check(**given)
    q, k, v = given["query"], given["key"], given["value"]
    if flat := q.ndim == 2:
        q, k, v = q[None], k[None], v[None]
    group = q.shape[-3] // max(k.shape[-3], 1)  # so many query heads share a key head
    k, v = np.repeat(k, group, axis=-3), np.repeat(v, group, axis=-3)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    softcap = None if softcap is None else float(softcap)
    added = np.float64(0) if bias is None else given["bias"]
    sink = np.float64(-np.inf) if sinks is None else given["sinks"][:, None]  # (H, 1)

    with np.errstate(all="ignore"):
        bare = scores(q, k)
        scaled = bare * scale
        capped = scaled if softcap is None else softcap * np.tanh(scaled / softcap)
        biased = capped + added
        allowed = _may_attend(
            bare.shape, mask, causal, window, query_offset, key_lengths, segments, ranges
        )
        allowed &= added != -np.inf
        # The sink is one more score in each row, and gives no value.
        row_sink = np.broadcast_to(sink, bare.shape[:-1])[..., None]
        entering = np.concatenate([np.where(allowed, biased, -np.inf), row_sink], axis=-1)
        shares = softmax(entering)
        weights = np.where(allowed, shares[..., :-1], 0)
        taken = np.where(row_sink == -np.inf, 0, shares[..., -1:])[..., 0]
        largest = entering.max(axis=-1)
        lse = largest + np.log(np.exp(entering - largest[..., None]).sum(axis=-1))
        lse = np.where(largest == -np.inf, -np.inf, lse)
        kept = multipliers(bare.shape, float(dropout), seed)
        output = np.empty((*bare.shape[:-1], v.shape[-1]))
        for column in range(v.shape[-1]):
            terms = weights * kept * v[..., None, :, column]
            output[..., column] = np.where(allowed, terms, 0).sum(axis=-1)

    pairs = bare.shape[:-2]
    q, k, v = (np.broadcast_to(array, pairs + array.shape[-2:]) for array in (q, k, v))
    found: dict[str, Any] = {"query": q, "key": k, "value": v, "scores": bare, "scaled": scaled}
    found |= {"capped": capped, "biased": biased, "allowed": allowed, "weights": weights}
    found |= {"sink": taken, "lse": lse, "kept": kept, "output": output}
    if flat:
        found = {name: array[0] for name, array in found.items()}
    return Steps(**found, scale=scale, softcap=softcap)


def _may_attend(
    shape: tuple[int, ...],
    mask: Any,
    causal: bool,
    window: Any,
    query_offset: Any,
    key_lengths: Any,
    segments: Any,
    ranges: Any,
) -> Array:
    """Say for each pair (B…, H, T, S) whether the query may attend to the key."""
    keys = np.arange(shape[-1])
    # The place of each query among the keys, (B…, T): in Python's integers, which know no limit.
    offset = np.asarray(0 if query_offset is None else query_offset, dtype=object)
    places = offset[..., None] + np.arange(shape[-2])

    def rows(numbers: Any) -> Array:  # (B…, T) beside (B…, H, T, S)
        return np.atleast_1d(numbers)[..., None, :, None]

    allowed = np.ones(shape, dtype=bool)
    if mask is not None:
        allowed &= np.asarray(mask)
    if causal:
        allowed &= keys <= rows(places)
    before, after = (None, None) if window is None else window
    if before is not None:
        allowed &= keys >= rows(places - before)
    if after is not None:
        allowed &= keys <= rows(places + after)
    if key_lengths is not None:
        allowed &= keys < np.asarray(key_lengths)[..., None, None, None]
    if ranges is not None:
        allowed &= (keys >= rows(ranges[0])) & (keys < rows(ranges[1]))
    if segments is not None:
        paired = isinstance(segments, tuple) and np.ndim(segments[0])
        of_queries, of_keys = segments if paired else (segments, segments)
        allowed &= rows(of_queries) == np.atleast_1d(of_keys)[..., None, None, :]
    return allowed


def _float64(name: str, given: Any) -> Array:
    array = plain(name, given)
    # Complex numbers, text and objects stay as they are, for `check` to refuse.
    return array.astype(np.float64) if array.dtype.kind in "biufV" else array
