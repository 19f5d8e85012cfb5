"""Hugging Face's door: after `import regard.transformers`, `attn_implementation="regard"` works.

Every model that uses the attention interface of transformers takes it, in inference and training:
`AutoModel.from_pretrained(name, attn_implementation="regard")`, or on a loaded model
`model.set_attn_implementation("regard")`. A model that does not use it refuses, with a clear error.
"""

from regard.transformers.attention import Weights, attention_forward
from regard.transformers.mask import LazyMask, attention_mask
from regard.transformers.switch import register, switched

__all__ = ["LazyMask", "Weights", "attention_forward", "attention_mask", "switched"]

register()
