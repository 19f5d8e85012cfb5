"""TensorFlow's door: exact attention and its weights for tensors, eager and in graphs.

`regard.attention`, `regard.look` and `regard.merge` come here by themselves when they are given
tensors; `dot_product_attention` is the same by name, and also takes tensors as Keras lays them out.
"""

from regard.tensorflow.door import attention, dot_product_attention, look, merge

__all__ = ["attention", "dot_product_attention", "look", "merge"]
