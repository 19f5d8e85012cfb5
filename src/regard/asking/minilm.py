"""The embedded model, all-MiniLM-L6-v2, in NumPy: it answers before PyTorch would be imported.

A question to a kept index takes some milliseconds of computing; importing PyTorch and transformers
takes seconds. Attention is regard's own. Sentences stand one behind the other in a single sequence
and attend within their own segment, so that nothing is computed for padding. The judge of this file
is transformers' BertModel (in the tests).
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from regard.core.arguments import Array
from regard.core.attention import attention

_CHUNK = 8192  # elements that stay in a core's own cache while GELU is computed
# 1 - erf(a) = (c0 t + c1 t² + … + c4 t⁵) exp(-a²) with t = 1 / (1 + p a), within 1.5·10⁻⁷:
# Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26. Here of a = |x| / √2, halved.
_P = np.float32(0.3275911 * 0.5**0.5)
_C = np.array([0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429], np.float32) / 2


class MiniLM:
    """A BERT encoder (Devlin et al. 2019), its weights read from a folder of Hugging Face's."""

    def __init__(self, folder: Path) -> None:
        from regard.recording.file import mapped

        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.heads, self.layers = config["num_attention_heads"], config["num_hidden_layers"]
        self.width, self.epsilon = config["hidden_size"], np.float32(config["layer_norm_eps"])
        self.weights = mapped(folder / "model.safetensors")[0]
        for n in range(self.layers):  # one product instead of three
            own = f"encoder.layer.{n}.attention.self"
            for kind in ("weight", "bias"):
                parts = [self.weights.pop(f"{own}.{x}.{kind}") for x in ("query", "key", "value")]
                self.weights[f"{own}.{kind}"] = np.concatenate(parts)

    def hidden(self, sentences: Sequence[Sequence[int]]) -> Array:
        """The last hidden states (n, D) of the tokens of sentences, one behind the other."""
        lengths = [len(tokens) for tokens in sentences]
        segments = np.repeat(np.arange(len(lengths)), lengths)[None]
        x = self.weights["embeddings.word_embeddings.weight"][np.concatenate(sentences)]
        place = np.concatenate([np.arange(length) for length in lengths])
        x = x + self.weights["embeddings.position_embeddings.weight"][place]
        x += self.weights["embeddings.token_type_embeddings.weight"][0]
        x = self._normalised(x, "embeddings.LayerNorm")
        for n in range(self.layers):
            layer = f"encoder.layer.{n}"
            split = self._linear(x, f"{layer}.attention.self").reshape(len(x), 3, self.heads, -1)
            query, key, value = split.transpose(1, 2, 0, 3)[:, None]
            mixed: Array = attention(query, key, value, segments=segments)
            x += self._linear(
                mixed[0].swapaxes(0, 1).reshape(x.shape), f"{layer}.attention.output.dense"
            )
            x = self._normalised(x, f"{layer}.attention.output.LayerNorm")
            inner = gelu(self._linear(x, f"{layer}.intermediate.dense"))
            x += self._linear(inner, f"{layer}.output.dense")
            x = self._normalised(x, f"{layer}.output.LayerNorm")
        return x

    def _linear(self, x: Array, name: str) -> Array:
        y: Array = x @ self.weights[f"{name}.weight"].T
        y += self.weights[f"{name}.bias"]
        return y

    def _normalised(self, x: Array, name: str) -> Array:
        x -= x.mean(-1, keepdims=True)
        x /= np.sqrt(np.einsum("nd,nd->n", x, x)[:, None] / np.float32(self.width) + self.epsilon)
        x *= self.weights[f"{name}.weight"]
        x += self.weights[f"{name}.bias"]
        return x


def gelu(x: Array) -> Array:
    """GELU, x · Φ(x), in place: (x + |x|) / 2 - |x| (1 - erf(|x| / √2)) / 2.

    >>> gelu(np.array([-1, 0, 2], np.float32)).round(4)
    array([-0.1587,  0.    ,  1.9545], dtype=float32)
    """
    flat, spare = x.reshape(-1), np.empty((3, _CHUNK), np.float32)
    for first in range(0, len(flat), _CHUNK):
        own = flat[first : first + _CHUNK]
        size, t, tail = spare[:, : len(own)]
        np.abs(own, out=size)
        np.multiply(size, _P, out=t)
        t += 1
        np.reciprocal(t, out=t)
        np.multiply(t, _C[4], out=tail)
        for c in _C[3::-1]:
            tail += c
            tail *= t
        tail *= size
        np.square(own, out=t)
        t *= np.float32(-0.5)
        np.exp(t, out=t)
        tail *= t
        own += size
        own *= np.float32(0.5)
        own -= tail
    return x
