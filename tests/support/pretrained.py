"""Comparison of a family's network with torchvision's network, with the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from models.families.catalogue import FAMILIES
from models.named_network import network
from models.optional_torchvision import import_torchvision
from models.submodel import Network
from models.submodel_building import build, full, shapes, statistics

__all__ = ["assert_equals_torchvision", "original"]

TOLERANCE = 1e-6  # of the spread of the outputs, in float64


def original(made: Network, **arguments: Any) -> nn.Module:
    """Return torchvision's network of a preset in evaluation mode, every parameter and every
    running statistic random. arguments: for its function.
    """
    known = FAMILIES[made.family].torchvision
    assert known is not None
    net: nn.Module = import_torchvision("models").get_model(
        known.names[made.preset], weights=None, num_classes=made.outputs, **arguments
    )
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)  # so that none is 0 or 1 throughout
        for name, statistic in net.named_buffers():
            if name.endswith("running_mean"):
                statistic.normal_(0, 0.2)
            elif name.endswith("running_var"):
                statistic.uniform_(0.5, 1.5)
    return net.eval()


def assert_equals_torchvision(
    model: str, inputs: Sequence[int] = (3, 64, 64), outputs: int = 10, **arguments: Any
) -> None:
    """Convert a random network of torchvision, strictly, and compares both networks' outputs for
    three images.

    In float64, and against how far the images' outputs are apart: a deep random network says much
    the same of any image, and a layer of a wrong stride would pass unseen beside its biases.
    """
    torch.manual_seed(0)
    made = network(model, inputs, outputs)
    known = FAMILIES[made.family].torchvision
    assert known is not None
    theirs, ours, whole = (
        original(made, **arguments).double(),
        build(full(made)).double().eval(),
        full(made),
    )
    tensors = known.convert(made.preset, theirs.state_dict())
    assert {name: tuple(value.shape) for name, value in tensors.items()} == shapes(
        whole
    ) | statistics(whole)
    ours.load_state_dict(tensors, strict=False)
    x = torch.randn(3, *inputs, dtype=torch.float64) * 10  # beyond the bound of ReLU6
    with torch.no_grad():
        found, expected = ours(x), theirs(x)
    spread = float((expected - expected.mean(0)).abs().max())
    assert spread > 1e-9
    assert float((found - expected).abs().max()) < TOLERANCE * spread
