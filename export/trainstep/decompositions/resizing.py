"""Bilinear interpolation and its gradient, as products with constant matrices.

Each axis is interpolated by itself: output i lies at s = max((i + 1/2) r - 1/2, 0) of the input,
with r the ratio of the sizes, and takes 1 - (s - floor s) of the input there and the rest of the
next one. With A and B these weights of rows and columns, [outputs, inputs]:

    y = A x B^T        dx = A^T g B
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["differentiate_interpolation", "interpolate"]


def interpolate(x: Tensor, outputs: Sequence[int], align: bool, *scales: float | None) -> Any:
    """Return x, [N, channels, height, width], in another size, as `aten.upsample_bilinear2d` does;
    NotImplemented if the corners are aligned.
    """
    if align:
        return NotImplemented
    rows, columns = make_weights(x, x.shape[2:], outputs, scales)
    return rows @ x @ columns.T


def differentiate_interpolation(
    g: Tensor, outputs: Sequence[int], inputs: Sequence[int], align: bool, *scales: float | None
) -> Any:
    """Return the gradient of x, as `aten.upsample_bilinear2d_backward` does; NotImplemented if the
    corners are aligned.
    """
    if align:
        return NotImplemented
    rows, columns = make_weights(g, inputs[2:], outputs, scales)
    return rows.T @ g @ columns


def make_weights(
    like: Tensor, inputs: Sequence[int], outputs: Sequence[int], scales: Sequence[float | None]
) -> list[Tensor]:
    """Return the weights of each axis. scales: outputs per input, if not the ratio of the sizes."""
    made = []
    for before, after, scale in zip(inputs, outputs, scales or (None, None), strict=True):
        ratio = 1 / scale if scale else before / after
        weights = [[0.0] * before for _ in range(after)]
        for i, row in enumerate(weights):
            source = max((i + 0.5) * ratio - 0.5, 0.0)
            first = min(math.floor(source), before - 1)
            share = source - first if first < before - 1 else 0.0
            row[first] += 1 - share
            row[min(first + 1, before - 1)] += share
        made.append(torch.tensor(weights, dtype=like.dtype))
    return made
