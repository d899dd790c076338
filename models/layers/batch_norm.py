"""Handle batch norm in a federation: train with batch statistics, and measure the running
statistics afterwards in one pass (HeteroFL, section 3).

"static": training neither changes nor sends running statistics; `calibrate` measures them later.
"tracked": training updates running statistics, which are sent like weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

__all__ = ["NORMS", "calibrate", "norms", "set_norm"]

# the first covers batch and instance norm
NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)

MOMENTUM = {"static": 0.0, "tracked": 0.1}


def norms(net: nn.Module) -> dict[str, _BatchNorm]:
    """Return the batch norm layers that keep running statistics, by name."""
    return {
        name: m
        for name, m in net.named_modules()
        if isinstance(m, _BatchNorm) and m.track_running_stats
    }


def set_norm(net: nn.Module, mode: Literal["static", "tracked"]) -> None:
    """Let training update the running statistics, or not."""
    for layer in norms(net).values():
        layer.momentum = MOMENTUM[mode]


def calibrate(net: nn.Module, batches: Iterable[Tensor]) -> tuple[dict[str, Tensor], int]:
    """Measure batch norm statistics in one pass over `batches` of inputs, and store them in `net`.

    Returns running_mean and running_var of every layer by name, and the number of batches. They are
    the means, over batches, of the batch means and of the unbiased batch variances (PyTorch's
    cumulative average, momentum=None); every batch has the same weight. All modules but the norms
    behave as in evaluation, and no weight changes. In a network with exits every exit runs, since
    each has its own norms.

    ValueError: no batch.
    """
    layers, count, answers = norms(net), 0, getattr(net, "exits", net)
    momenta = {name: layer.momentum for name, layer in layers.items()}
    training = net.training
    net.eval()
    for layer in layers.values():
        layer.reset_running_stats()
        layer.momentum = None
        layer.training = True  # not train(): modules inside a norm stay in evaluation mode
    with torch.no_grad():
        for x in batches:
            answers(x)
            count += 1
    for name, layer in layers.items():
        layer.momentum = momenta[name]
    net.train(training)
    if not count:
        raise ValueError("calibration requires at least one batch of examples")
    return {
        f"{name}.{key}": getattr(layer, key).clone()
        for name, layer in layers.items()
        for key in ("running_mean", "running_var")
    }, count
