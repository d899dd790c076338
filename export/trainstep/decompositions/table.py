"""The operators that are decomposed before the export: with decompositions of this project, or of
PyTorch for the gradients of activations that its exporter leaves whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._decomp import get_decompositions

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

__all__ = ["DECOMPOSITIONS"]

aten = torch.ops.aten
ACTIVATIONS = (
    aten.elu_backward,
    aten.hardsigmoid_backward,
    aten.hardswish_backward,
    aten.leaky_relu_backward,
    aten.mish_backward,
    aten.softplus_backward,
)
DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    **get_decompositions(ACTIVATIONS),
    aten.avg_pool2d_backward.default: differentiate_average_pool,
    aten.convolution_backward.default: differentiate_convolution,
    aten.hardtanh_backward.default: differentiate_hardtanh,
    aten.max_pool2d_with_indices_backward.default: differentiate_max_pool,
    aten.select_backward.default: differentiate_select,
    aten.silu_backward.default: differentiate_silu,
    aten.slice_backward.default: differentiate_slice,
    aten.threshold_backward.default: differentiate_threshold,
    aten.upsample_bilinear2d.default: interpolate,
    aten.upsample_bilinear2d_backward.default: differentiate_interpolation,
}
