"""Batch norm in a federation: trained on batch statistics, its running statistics measured
afterwards in one pass (HeteroFL, section 3).

"static": running statistics stay as they are while training and do not travel; `calibrate` measures
them later.
"tracked": they move while training and travel like weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

__all__ = ["NORMS", "calibrate", "load_stats", "norms", "set_norm"]

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)  # the first: batch and instance norm

MOMENTUM = {"static": 0.0, "tracked": 0.1}


def norms(net: nn.Module) -> dict[str, _BatchNorm]:
    """The batch norm layers that keep running statistics, by name."""
    return {
        name: m
        for name, m in net.named_modules()
        if isinstance(m, _BatchNorm) and m.track_running_stats
    }


def set_norm(net: nn.Module, mode: Literal["static", "tracked"]) -> None:
    """Whether training moves the running statistics."""
    for layer in norms(net).values():
        layer.momentum = MOMENTUM[mode]


def calibrate(net: nn.Module, batches: Iterable[Tensor]) -> tuple[dict[str, Tensor], int]:
    """Measures batch norm statistics over a pass through `batches` of inputs, and leaves them in
    `net`.

    Returns running_mean and running_var of every layer by name, and the number of batches: the
    means, over batches, of the batch means and of the unbiased batch variances (PyTorch's
    cumulative average, momentum=None). Every batch counts the same. All but the norms behaves as in
    evaluation; no weight changes. Of a network with exits every one answers, since each has norms
    of its own. ValueError: no batch.
    """
    layers, count, answers = norms(net), 0, getattr(net, "exits", net)
    momenta = {name: layer.momentum for name, layer in layers.items()}
    training = net.training
    net.eval()
    for layer in layers.values():
        layer.reset_running_stats()
        layer.momentum = None
        layer.training = True  # not train(): what lies inside a norm stays as in evaluation
    with torch.no_grad():
        for x in batches:
            answers(x)
            count += 1
    for name, layer in layers.items():
        layer.momentum = momenta[name]
    net.train(training)
    if not count:
        raise ValueError("calibration without a batch: nothing to measure statistics on")
    return {
        f"{name}.{key}": getattr(layer, key).clone()
        for name, layer in layers.items()
        for key in ("running_mean", "running_var")
    }, count


def load_stats(net: nn.Module, stats: Mapping[str, Tensor]) -> None:
    """Writes running statistics by name into a network. ValueError: one is missing, too many, or of
    another shape.
    """
    expected = {
        f"{name}.{key}": getattr(layer, key)
        for name, layer in norms(net).items()
        for key in ("running_mean", "running_var")
    }
    if expected.keys() != stats.keys():
        odd = sorted(expected.keys() ^ stats.keys())
        raise ValueError(
            f"running statistics do not fit the network: missing or too many: {', '.join(odd[:4])}"
        )
    with torch.no_grad():
        for name, buffer in expected.items():
            if buffer.shape != stats[name].shape:
                raise ValueError(
                    f"statistic {name}: expected shape {tuple(buffer.shape)}, found "
                    f"{tuple(stats[name].shape)}"
                )
            buffer.copy_(stats[name])
