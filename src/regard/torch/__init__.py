"""PyTorch's door: exact attention and its weights for tensors, with gradients, on any device.

`regard.attention` and `regard.look` come here by themselves when they are given tensors;
`scaled_dot_product_attention` has the signature, the rules and the answers of PyTorch's own.
"""

from regard.torch.attention import attention, look, merge
from regard.torch.sdpa import scaled_dot_product_attention

__all__ = ["attention", "look", "merge", "scaled_dot_product_attention"]
