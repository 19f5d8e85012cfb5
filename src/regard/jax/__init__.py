"""JAX's door: exact attention and its weights for JAX's arrays, under its transformations.

`regard.attention`, `regard.look` and `regard.merge` come here by themselves when they are given
JAX's arrays; `dot_product_attention` has the signature and the answers of `jax.nn`'s, and within
`portable` functions are made of JAX's own operations.
"""

from regard.jax.door import attention, look, merge
from regard.jax.nn import dot_product_attention
from regard.jax.op import portable

__all__ = ["attention", "dot_product_attention", "look", "merge", "portable"]
