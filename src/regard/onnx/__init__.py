"""ONNX's door: its Attention operator, computed by the kernel, for the reference evaluator."""

from regard.onnx.attention import Attention

__all__ = ["Attention"]
