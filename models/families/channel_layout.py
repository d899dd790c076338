"""Arrange the weights of convolutions in memory so that training and evaluation are fastest."""

from __future__ import annotations

import torch
from torch import nn

from models.families.catalogue import FAMILIES
from models.submodel import Submodel

__all__ = ["arrange_channels"]

# least number of output channels of the widest convolution: with 16 or fewer, LeNet takes up to 1.4
# times as long
LEAST = 32


def arrange_channels(net: nn.Module, submodel: Submodel) -> nn.Module:
    """Arrange the weights of wide 2D convolutions by pixel, with the channels of a pixel side by
    side (NHWC, PyTorch's `channels_last`), and return the network. Their outputs follow. On one
    core, a training step of a MobileNet takes 0.6 times as long, of a small ResNet 0.8 times, of a
    ResNet-18 0.95 times. Shapes, names and, to within rounding, results are the same.

    A user's network stays as it is, since it may call `view` on an output.
    """
    if submodel.network.family not in FAMILIES:
        return net
    layers = [module for module in net.modules() if isinstance(module, nn.Conv2d)]
    if max((layer.out_channels for layer in layers), default=0) >= LEAST:
        for layer in layers:
            # new memory: earlier views of the weight do not see its further changes
            layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
    return net
