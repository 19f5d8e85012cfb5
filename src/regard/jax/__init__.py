"""JAX's door: exact attention and its weights for JAX's arrays, under its transformations.

`regard.attention`, `regard.look` and `regard.merge` come here by themselves when they are given
JAX's arrays; `dot_product_attention` has the signature and the answers of `jax.nn`'s.
"""

from regard.jax.door import attention, look, merge
from regard.jax.nn import dot_product_attention

__all__ = ["attention", "dot_product_attention", "look", "merge"]
