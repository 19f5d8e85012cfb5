"""What a sentence's match with the question rests on, word by word, and where the model reads."""

from dataclasses import replace
from typing import Any

import numpy as np

from regard.asking.answer import Part
from regard.asking.encoder import Encoder
from regard.core.arguments import Array
from regard.core.proof import Check


def parts(encoder: Encoder, text: str, query: Array) -> tuple[Part, ...]:
    """What each word adds to the cosine of a sentence and a question, exactly.

    A sentence's vector is the mean of its tokens' last hidden states, brought to length 1; so its
    product with the question's is a sum over tokens.
    """
    read = encoder.tokenizer.encode(text)
    hidden = encoder.model.hidden([read.ids]).astype(np.float64)
    adds = hidden @ query.astype(np.float64) / np.linalg.norm(hidden.sum(0))
    even = float(adds.mean())
    found = []
    for at in _words(read):
        first, past = read.offsets[at[0]][0], read.offsets[at[-1]][1]
        spaced = first == 0 or text[first - 1].isspace()
        found.append(Part(text[first:past], float(adds[at].sum()), even * len(at), spaced))
    return tuple(found)


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
