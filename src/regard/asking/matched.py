"""What a sentence's match with the question rests on, word by word, and where the model reads."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from regard.asking.answer import Part
from regard.asking.encoder import Encoder
from regard.core.arguments import Array
from regard.core.proof import Check


def parts(encoder: Encoder, texts: Sequence[str], query: Array) -> Iterator[tuple[Part, ...]]:
    """What each word of some sentences adds to their cosine with a question, exactly.

    A sentence's vector is the mean of its tokens' last hidden states, brought to length 1; so its
    product with the question's is a sum over tokens.
    """
    reads = encoder.tokenizer.encode_batch(list(texts))
    states = encoder.hidden([read.ids for read in reads])
    for text, read, hidden in zip(texts, reads, states, strict=True):
        rows = hidden.astype(np.float64)
        adds = rows @ query.astype(np.float64) / np.linalg.norm(rows.sum(0))
        yield tuple(_part(text, read, at, adds) for at in _words(read))


def _part(text: str, read: Any, at: list[int], adds: Array) -> Part:
    first, past = read.offsets[at[0]][0], read.offsets[at[-1]][1]
    spaced = first == 0 or text[first - 1].isspace()
    share, fraction = float(adds[at].sum()), len(at) / len(adds)
    return Part(text[first:past], share, float(adds.sum()) * fraction, fraction, spaced)


def recorded(
    encoder: Encoder, model: Any, text: str, query: Array, found: tuple[Part, ...]
) -> tuple[tuple[Part, ...], Check]:
    """The words with what they get in the last layer of the model, which PyTorch runs, recorded."""
    import torch

    from regard.recording.capture import record

    read = encoder.tokenizer.encode(text)
    last = model.config.num_hidden_layers - 1
    with torch.inference_mode(), record(model, layers=[last]) as seen:
        hidden = model(input_ids=torch.tensor([read.ids])).last_hidden_state[0].double().numpy()
    toward = np.maximum(hidden @ query.astype(np.float64), 0)
    layer, rows = seen.layer(last), len(toward)
    even = np.full(rows, 1 / rows)
    toward = toward / toward.sum() if toward.any() else even
    shape = (1, layer.shape[1], rows)
    reads, others = (layer.carry(np.broadcast_to(x, shape))[0].mean(0) for x in (toward, even))
    words = zip(found, _words(read), strict=True)
    return tuple(
        replace(word, read=float(reads[at].sum()), others=float(others[at].sum()))
        for word, at in words
    ), seen.check()


def _words(read: Any) -> list[list[int]]:
    """The tokens of each word; special ones are of none."""
    found: dict[int, list[int]] = {}
    for position, word in enumerate(read.word_ids):
        if word is not None:
            found.setdefault(word, []).append(position)
    return list(found.values())
