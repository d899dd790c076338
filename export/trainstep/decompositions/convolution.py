"""The gradients of a convolution as convolutions and matrix products.

With x [N, C, H, W], weight w [O, C/G, k, k] in G groups, output y and its gradient g [N, O, h, w]:

    dx = g convolved with w, flipped and transposed        stride 1
    dx = transposed convolution of g with w                otherwise
    dw[o, c, i, j] = sum over n, p, q of g[n, o, p, q] x[n, c, p s + i d - pad, q s + j d - pad]
    db[o] = sum over n, p, q of g[n, o, p, q]

dw is a matrix product per group and place of the kernel, over all examples and places of the map:
of g and of the view of x that this place of the kernel meets ("tap"). To stack the taps for one
product takes up to 1.8 times as long, and more memory. A convolution with g as its kernel computes
the same, but 2 to 20 times slower, except if every channel is a group of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, stack
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

__all__ = ["differentiate_convolution"]


@dataclass(frozen=True)
class Geometry:
    """The shape of a convolution, per axis: height, width."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def differentiate_convolution(g: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> Any:
    """Return the gradients of x, weight and bias, as `aten.convolution_backward` does;
    NotImplemented for a transposed or three-dimensional convolution.
    """
    _, stride, padding, dilation, transposed, _, groups, (for_x, for_weight, for_bias) = rest
    if transposed or x.dim() not in (3, 4):
        return NotImplemented
    bias = g.flatten(2).sum((0, 2)) if for_bias else None
    short = x.dim() == 3  # [N, C, T] is a map of height 1
    if short:
        g, x, weight = g.unsqueeze(2), x.unsqueeze(2), weight.unsqueeze(2)
        stride, padding, dilation = (1, *stride), (0, *padding), (1, *dilation)
    geometry = Geometry(tuple(stride), tuple(padding), tuple(dilation), groups)
    found = (
        differentiate_by_input(g, x, weight, geometry) if for_x else None,
        differentiate_by_weight(g, x, weight, geometry) if for_weight else None,
    )
    return (*(one.squeeze(2) if short and one is not None else one for one in found), bias)


def differentiate_by_input(g: Tensor, x: Tensor, weight: Tensor, shape: Geometry) -> Tensor:
    kernel, groups = weight.shape[2:], shape.groups
    reach = [d * (k - 1) for k, d in zip(kernel, shape.dilation, strict=True)]
    margin = [r - p for r, p in zip(reach, shape.padding, strict=True)]
    if set(shape.stride) == {1} and min(margin) >= 0:
        # [O, C/G, k, k] -> [C, O/G, k, k]
        split = weight.reshape(groups, -1, *weight.shape[1:]).transpose(1, 2).flatten(0, 1)
        turned = split.flip(2, 3) if max(kernel) > 1 else split
        return F.conv2d(g, turned, None, 1, margin, shape.dilation, groups)
    beyond = [
        size - ((out - 1) * s - 2 * p + r + 1)
        for size, out, s, p, r in zip(
            x.shape[2:], g.shape[2:], shape.stride, shape.padding, reach, strict=True
        )
    ]
    return F.conv_transpose2d(
        g, weight, None, shape.stride, shape.padding, beyond, groups, shape.dilation
    )


def differentiate_by_weight(g: Tensor, x: Tensor, weight: Tensor, shape: Geometry) -> Tensor:
    (n, channels, *sides), (outputs, _, *kernel), groups = x.shape, weight.shape, shape.groups
    if channels == outputs == groups > 1:  # one convolution with a channel of an example per group
        one = x.reshape(1, n * channels, *sides)
        kernels = g.reshape(n * channels, 1, *g.shape[2:])
        found = F.conv2d(
            one, kernels, None, shape.dilation, shape.padding, shape.stride, n * channels
        )
        return found[:, :, : kernel[0], : kernel[1]].reshape(n, channels, 1, *kernel).sum(0)
    made = g.transpose(0, 1).reshape(groups, outputs // groups, -1)  # [G, O/G, N hw]
    taps = list_taps(g, x.transpose(0, 1), kernel, shape)
    rows = [one.reshape(groups, channels // groups, -1) for one in taps]  # each [G, C/G, N hw]
    products = stack([made @ one.transpose(1, 2) for one in rows], 3)  # [G, O/G, C/G, k k]
    return products.reshape(weight.shape)


def list_taps(g: Tensor, x: Tensor, kernel: Sequence[int], shape: Geometry) -> list[Tensor]:
    """Return, for each place of the kernel, the inputs that it meets, for x [C, N, H, W]: each
    [C, N, h, w].
    """
    (up, left), (down, right) = shape.padding, shape.dilation
    padded = F.pad(x, (left, left, up, up)) if up or left else x
    (tall, wide), (height, width) = shape.stride, g.shape[2:]
    return [
        padded[
            :,
            :,
            i * down : i * down + (height - 1) * tall + 1 : tall,
            j * right : j * right + (width - 1) * wide + 1 : wide,
        ]
        for i in range(kernel[0])
        for j in range(kernel[1])
    ]
