"""The gradients of average pooling and max pooling.

With windows of k x k at a stride s, input x and the gradient g of the output:

    average:  dx = transposed convolution of g with a k x k kernel of 1 / k^2, per channel
    maximum:  dx[place] = sum over windows of g[window] where `place` is the window's first maximum

Runtimes differ in how they count the index of a maximum, so the gradient looks for it again: a
window's places in order, each where it equals the maximum and no earlier one did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

__all__ = ["differentiate_average_pool", "differentiate_max_pool"]


def differentiate_average_pool(g: Tensor, x: Tensor, kernel: Sequence[int], *rest: Any) -> Any:
    """Return the gradient of x, as `aten.avg_pool2d_backward` does; NotImplemented if the windows
    differ in size.
    """
    stride, padding, ceil, count_padding, divisor = rest
    (height, width), (up, left) = kernel, padding
    tall, wide = stride or kernel
    if x.dim() != 4 or ceil or (max(padding) and not count_padding):
        return NotImplemented
    n, channels, *sides = x.shape
    beyond = [
        size - ((out - 1) * s - 2 * p + k)
        for size, out, s, p, k in zip(
            sides, g.shape[2:], (tall, wide), padding, kernel, strict=True
        )
    ]
    share = torch.full((1, 1, height, width), 1 / (divisor or height * width), dtype=x.dtype)
    one = g.reshape(n * channels, 1, *g.shape[2:])
    return F.conv_transpose2d(one, share, None, (tall, wide), (up, left), beyond).reshape(x.shape)


def differentiate_max_pool(g: Tensor, x: Tensor, kernel: Sequence[int], *rest: Any) -> Any:
    """Return the gradient of x, as `aten.max_pool2d_with_indices_backward` does; NotImplemented if
    windows overlap or leave gaps (PyTorch's own decomposition then scatters g by the indices).
    """
    stride, padding, dilation, _, _ = rest
    height, width = kernel
    if tuple(stride or kernel) != (height, width) or max(padding) or max(dilation) > 1:
        return NotImplemented
    (n, channels, tall, wide), (down, right) = x.shape, g.shape[2:]
    if down * height > tall or right * width > wide:  # windows beyond the edge
        return NotImplemented
    inner = x[:, :, : down * height, : right * width]
    windows = inner.reshape(n, channels, down, height, right, width)
    most = torch.ops.aten.max_pool2d_with_indices(x, kernel, stride)[0]
    free, rows = torch.ones_like(most, dtype=torch.bool), []
    for i in range(height):
        row = []
        for j in range(width):
            first = (windows[:, :, :, i, :, j] == most) & free
            free = free & ~first
            row.append(torch.where(first, g, 0.0))
        rows.append(torch.stack(row, -1))  # [N, C, h, w, k]
    spread = torch.stack(rows, 3).flatten(4).flatten(2, 3)  # [N, C, h, k, w k] -> [N, C, h k, w k]
    return F.pad(spread, (0, wide - right * width, 0, tall - down * height))
