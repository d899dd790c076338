"""The cross-entropy of each row, with at most two tensors of the size of the logits at once: they
take more memory than everything else where a network tells many classes apart at many places, as in
text.

With logits z [M, C], p = softmax(z), and the class y of a row:

    loss = max z - z_y - log(max p)         log(sum exp(z - max z)) = -log(max p)
    dz = g (p - 1 at y)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["CrossEntropy"]


class CrossEntropy(torch.autograd.Function):
    """(logits [M, C], classes [M] of int64) -> losses [M]."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, y: Tensor) -> Tensor:
        p, at = z.softmax(1), y[:, None]
        ctx.save_for_backward(p, at)
        return z.amax(1) - z.gather(1, at).squeeze(1) - p.amax(1).log()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (g,), (p, at) = grads, ctx.saved_tensors
        ones = torch.ones_like(at, dtype=p.dtype)
        return p.scatter_add(1, at, -ones) * g[:, None], None
