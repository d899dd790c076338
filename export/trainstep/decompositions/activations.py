"""The gradients of ReLU, ReLU6 and SiLU, in fewer operations than PyTorch's own decompositions.

Those of ReLU and ReLU6 use the output, which the graph has anyway as the input of the next layer.
They multiply with a mask, which takes ONNX Runtime less than half as long as its selection (Where).
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["differentiate_hardtanh", "differentiate_silu", "differentiate_threshold"]


def differentiate_hardtanh(g: Tensor, x: Tensor, least: float, most: float) -> Tensor:
    """Return the gradient of x, as `aten.hardtanh_backward` does. ONNX Runtime computes the output
    once, since the forward pass contains it too.
    """
    y = x.clamp(least, most)
    return g * ((y > least) & (y < most)).to(g.dtype)


def differentiate_silu(g: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of x, as `aten.silu_backward` does: with s = sigmoid(x) and y = x s, the
    derivative is s + y (1 - s).
    """
    s = x.sigmoid()
    return g * (s + x * s * (1 - s))


def differentiate_threshold(g: Tensor, y: Tensor, threshold: float) -> Tensor:
    """Return the gradient of the input of ReLU, as `aten.threshold_backward` does."""
    return g * (y > threshold).to(g.dtype)
