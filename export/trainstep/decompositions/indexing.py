"""The gradients of an index and of a slice: the gradient of the part, padded with zeros to the
shape of the whole. PyTorch's own decompositions look the places up in tables instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

__all__ = ["differentiate_select", "differentiate_slice"]


def differentiate_select(g: Tensor, sizes: Sequence[int], axis: int, index: int) -> Tensor:
    """Return the gradient of x, as `aten.select_backward` does for x.select(axis, index)."""
    axis, index = axis % len(sizes), index % sizes[axis]
    return pad(g.unsqueeze(axis), sizes, axis, index)


def differentiate_slice(g: Tensor, sizes: Sequence[int], axis: int, *rest: int) -> Any:
    """Return the gradient of x, as `aten.slice_backward` does for x[start:end] along an axis;
    NotImplemented for other steps than 1.
    """
    start, _, step = rest
    if step != 1:
        return NotImplemented
    axis, size = axis % len(sizes), sizes[axis]
    return pad(g, sizes, axis, max(0, start + size) if start < 0 else min(start, size))


def pad(g: Tensor, sizes: Sequence[int], axis: int, start: int) -> Tensor:
    """Return g with zeros before and after it along an axis, in the shape of the whole."""
    after = sizes[axis] - start - g.shape[axis]
    margins = [(start, after) if one == axis else (0, 0) for one in range(len(sizes))]
    return F.pad(g, [size for pair in reversed(margins) for size in pair])
