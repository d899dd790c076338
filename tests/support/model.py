"""A network of one's own, as `--model tests.support.model:small` names it."""

from __future__ import annotations

from torch import nn

from models.submodel import Submodel, kept


def small(submodel: Submodel) -> nn.Module:
    """Two linear layers; the hidden one scales with the width."""
    hidden = kept(submodel.width, 32)
    pixels = 1
    for axis in submodel.network.inputs:
        pixels *= axis
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, submodel.network.outputs))
