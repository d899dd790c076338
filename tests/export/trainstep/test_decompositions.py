"""The gradients of activations, convolution, pooling, interpolation, indices and slices are
autograd's.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from export.trainstep.decompositions.activations import (
    differentiate_hardtanh,
    differentiate_silu,
    differentiate_threshold,
)
from export.trainstep.decompositions.convolution import differentiate_convolution
from export.trainstep.decompositions.indexing import differentiate_select, differentiate_slice
from export.trainstep.decompositions.pooling import (
    differentiate_average_pool,
    differentiate_max_pool,
)
from export.trainstep.decompositions.resizing import differentiate_interpolation, interpolate

# batch, channels and sides of x; then outputs, kernel, stride, padding, dilation, groups
CONVOLUTIONS = {
    "3x3": ((2, 3, 6, 5), 4, (3, 3), 1, 1, 1, 1),
    "1x1": ((2, 3, 6, 5), 4, (1, 1), 1, 0, 1, 1),
    "large map": ((2, 3, 9, 9), 4, (3, 3), 1, 1, 1, 1),
    "stride": ((2, 3, 7, 6), 4, (3, 3), 2, 1, 1, 1),
    "1x1 with stride": ((2, 3, 7, 6), 4, (1, 1), 2, 0, 1, 1),
    "valid": ((2, 3, 7, 6), 4, (5, 5), 1, 0, 1, 1),
    "wide padding": ((2, 3, 5, 5), 4, (1, 3), 1, 2, 1, 1),
    "dilation": ((2, 3, 9, 8), 4, (3, 2), 1, 2, 2, 1),
    "groups": ((2, 4, 6, 5), 6, (3, 3), 1, 1, 1, 2),
    "groups and stride": ((2, 4, 6, 5), 6, (3, 3), 2, 1, 1, 2),
    "depthwise": ((2, 4, 6, 5), 4, (3, 3), 1, 1, 1, 4),
    "depthwise with stride": ((2, 4, 7, 6), 4, (3, 3), 2, 1, 1, 4),
    "depthwise with two outputs each": ((2, 4, 6, 5), 8, (3, 3), 1, 1, 1, 4),
    "along time": ((2, 3, 12), 4, (5,), 2, 2, 1, 1),
    "depthwise along time": ((2, 4, 12), 4, (3,), 1, 1, 1, 4),
}


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_convolution(case) -> None:
    shape, outputs, kernel, stride, padding, dilation, groups = case
    x, weight = draw(*shape), draw(outputs, shape[1] // groups, *kernel)
    bias, axes = draw(outputs), len(kernel)
    convolve: Callable[..., Tensor] = F.conv2d if axes == 2 else F.conv1d
    leaves = [one.requires_grad_() for one in (x, weight, bias)]
    y = convolve(*leaves, stride, padding, dilation, groups)
    g = draw(*y.shape) + 1
    wanted = torch.autograd.grad(y, leaves, g)
    found = differentiate_convolution(
        *(g, x.detach(), weight.detach(), [outputs]),
        *([stride] * axes, [padding] * axes, [dilation] * axes),
        *(False, [0] * axes, groups, [True, True, True]),
    )
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_activations_that_cut_off() -> None:
    x = torch.tensor([-1.0, 0.0, 0.5, 6.0, 7.0], requires_grad=True)  # also at the kinks
    g = torch.arange(1.0, 6.0)
    (wanted,) = torch.autograd.grad(F.relu6(x), x, g)
    assert torch.equal(differentiate_hardtanh(g, x.detach(), 0.0, 6.0), wanted)
    (wanted,) = torch.autograd.grad(y := F.relu(x), x, g)
    assert torch.equal(differentiate_threshold(g, y.detach(), 0.0), wanted)


def test_silu() -> None:
    x, g = draw(7).requires_grad_(), draw(7) + 1
    (wanted,) = torch.autograd.grad(F.silu(x), x, g)
    torch.testing.assert_close(differentiate_silu(g, x.detach()), wanted, rtol=1e-12, atol=0)


def test_convolution_omits_gradients_that_nobody_asks_for() -> None:
    x, weight, g = draw(1, 1, 4, 4), draw(1, 1, 3, 3), draw(1, 1, 4, 4)
    shape = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    for mask in ([False, True, False], [True, False, False]):
        found = differentiate_convolution(g, x, weight, None, *shape, mask)
        assert [one is not None for one in found] == mask


def test_transposed_convolution_is_left_to_the_exporter() -> None:
    shape = ([1, 1], [1, 1], [1, 1], True, [0, 0], 1, [True, True, False])
    x = draw(1, 1, 4, 4)
    assert differentiate_convolution(x, x, x, None, *shape) is NotImplemented


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "counted"),
    [((2, 2), (), (0, 0), True), ((3, 2), (2, 1), (1, 0), True), ((3, 3), (2, 2), (0, 0), False)],
)
def test_average_pool(kernel, stride, padding, counted) -> None:
    x = draw(2, 3, 7, 6).requires_grad_()
    y = F.avg_pool2d(x, kernel, stride or None, padding, count_include_pad=counted)
    g = draw(*y.shape) + 1
    (wanted,) = torch.autograd.grad(y, x, g)
    found = differentiate_average_pool(g, x.detach(), kernel, stride, padding, False, counted, None)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def test_average_pool_with_windows_of_several_sizes_is_left_to_the_exporter() -> None:
    x = draw(1, 1, 4, 4)
    for rest in (([], (1, 1), False, False, None), ([], (0, 0), True, True, None)):
        assert differentiate_average_pool(x, x, (2, 2), *rest) is NotImplemented


def test_max_pool_gives_the_gradient_to_the_first_maximum() -> None:
    x = draw(2, 3, 7, 6).round().requires_grad_()  # with equal numbers in a window
    y = F.max_pool2d(x, (2, 3))
    g = draw(*y.shape) + 1
    (wanted,) = torch.autograd.grad(y, x, g)
    rest = ((2, 3), (0, 0), (1, 1), False, None)
    found = differentiate_max_pool(g, x.detach(), (2, 3), *rest)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize(
    "rest",
    [
        ((1, 1), (0, 0), (1, 1), False, None),
        ((2, 2), (1, 1), (1, 1), False, None),
        ((2, 2), (0, 0), (2, 2), False, None),
    ],
)
def test_max_pool_with_other_windows_is_left_to_the_exporter(rest) -> None:
    x = draw(1, 1, 4, 4)
    assert differentiate_max_pool(x, x, (2, 2), *rest) is NotImplemented


def test_max_pool_with_windows_beyond_the_edge_is_left_to_the_exporter() -> None:
    x, g = draw(1, 1, 5, 5), draw(1, 1, 3, 3)  # ceil_mode
    rest = ((2, 2), (0, 0), (1, 1), True, None)
    assert differentiate_max_pool(g, x, (2, 2), *rest) is NotImplemented


@pytest.mark.parametrize(("axis", "index"), [(0, 2), (1, -1), (-1, 0)])
def test_select(axis, index) -> None:
    x = draw(3, 4, 5).requires_grad_()
    y = x.select(axis, index)
    g = draw(*y.shape) + 1
    (wanted,) = torch.autograd.grad(y, x, g)
    found = differentiate_select(g, x.shape, axis, index)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("axis", "start", "end"), [(0, 1, 3), (1, -3, -1), (-1, 0, 99), (2, -99, 2), (1, 9, 99)]
)
def test_slice(axis, start, end) -> None:
    x = draw(3, 4, 5).requires_grad_()
    y = torch.ops.aten.slice(x, axis, start, end, 1)
    g = draw(*y.shape) + 1
    (wanted,) = torch.autograd.grad(y, x, g)
    found = differentiate_slice(g, x.shape, axis, start, end, 1)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert differentiate_slice(g, x.shape, axis, start, end, 2) is NotImplemented


@pytest.mark.parametrize(("outputs", "scale"), [((7, 9), None), ((2, 3), None), ((6, 8), 1.7)])
def test_interpolation(outputs, scale) -> None:
    scales = (scale, scale)
    x = draw(2, 3, 4, 5).requires_grad_()
    y = torch.ops.aten.upsample_bilinear2d(x, outputs, False, *scales)
    g = draw(*y.shape) + 1
    (wanted,) = torch.autograd.grad(y, [x], g)
    torch.testing.assert_close(interpolate(x, outputs, False, *scales), y)
    found = differentiate_interpolation(g, outputs, x.shape, False, *scales)
    torch.testing.assert_close(found, wanted)


def test_interpolation_between_aligned_corners_is_left_to_the_exporter() -> None:
    x = draw(2, 3, 4, 5)
    assert interpolate(x, (7, 9), True) is NotImplemented
    assert differentiate_interpolation(x, (4, 5), (2, 3, 7, 9), True) is NotImplemented
