"""Tensors as the core reads them: NumPy arrays over the same memory, or an error that names them.

What PyTorch itself would only refuse late, or what its memory does not say (a tensor that is
negated lazily, a sparse one), is settled here.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard import _kernel
from regard.core.arguments import BFLOAT16, Array, plain

# Set by tests, which have no accelerator: treat every tensor as if it lay on one.
pretend_elsewhere = False


def on_cpu(tensor: Tensor) -> bool:
    """Whether the kernel can compute on this tensor's memory."""
    return tensor.is_cpu and not pretend_elsewhere


def dense(name: str, tensor: Tensor) -> Tensor:
    """Refuse a tensor whose memory is no plain array of its elements."""
    if tensor.is_nested:
        expected = "a plain tensor (torch.nested.to_padded_tensor, with key_lengths= or segments=)"
    elif tensor.layout is not torch.strided:
        expected = "a dense tensor (.to_dense())"
    elif tensor.is_quantized:
        expected = "a tensor of floats (.dequantize())"
    else:
        return tensor
    kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
    kind = f"a quantized tensor ({tensor.dtype})" if tensor.is_quantized else f"a {kind} one"
    raise TypeError(f"{name}: expected {expected}, received {kind}")


def tensor(name: str, given: Any, device: torch.device) -> Tensor:
    """Read an argument as a tensor: NumPy's arrays and lists too, without copying where it can."""
    if isinstance(given, Tensor):
        return dense(name, given)
    array = plain(name, given)
    if any(stride < 0 for stride in array.strides):
        array = array.copy()
    try:
        if array.dtype == BFLOAT16:
            return torch.as_tensor(array.view(np.int16)).view(torch.bfloat16).to(device)
        return torch.as_tensor(array).to(device)
    except TypeError as error:
        raise TypeError(f"{name}: expected a tensor, received {given!r}") from error


def array(tensor: Tensor) -> Array:
    """The tensor as an array over the same memory; from another device as a copy."""
    _kernel.join_team()
    if tensor.requires_grad or not tensor.is_cpu or tensor.is_neg():
        tensor = tensor.detach().cpu().resolve_neg()
    if tensor.dtype is torch.bfloat16:
        # NumPy does not know bfloat16; ml_dtypes gives it one of the same sixteen bits.
        found: Array = tensor.view(torch.int16).numpy().view(BFLOAT16)
        return found
    return tensor.numpy()


def stand_in(tensor: Tensor) -> Array:
    """An array of the tensor's shape and dtype that has no memory, to be checked in its place."""
    one = np.empty((), array(torch.empty((), dtype=tensor.dtype)).dtype)
    return np.broadcast_to(one, tensor.shape)


def wide(tensor: Tensor) -> torch.dtype:
    """What sums over a tensor are made in: float32, or float64 for float64."""
    return torch.float64 if tensor.dtype is torch.float64 else torch.float32
