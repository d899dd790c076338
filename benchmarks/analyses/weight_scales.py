"""Measure how the scale of weights differs between submodels (Park and Joe-Wong, FedFA, arXiv
2406.09877, section F.2.2, Table 10).

For each convolution of the smallest submodel M, with the same corner of a larger one, M_k:

    magnitude = sum_i ||M_i||_1 / (N_out N_in),    distance = sum_i ||M_i - M_k,i||_1 / (N_out N_in)

over its weight maps i. The paper's networks were trained apart from each other, as under the method
exclusivefl.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from benchmarks.analyses.panels import Panel, make_panel
from coordinator.release.stored_run import load_stored_run
from federated.errors import ConfigError
from models.slicing import as_slices, corner

__all__ = ["analyse", "find_convolutions"]

MAPS = 4  # axes of a convolution's weight


def find_convolutions(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of convolutions: [out, in, height, width]."""
    return {name: value for name, value in tensors.items() if value.ndim == MAPS}


def measure_scale(weight: Tensor) -> float:
    """Return the mean L1 norm of the weight maps of a convolution."""
    return float(weight.abs().sum() / (weight.shape[0] * weight.shape[1]))


def analyse(folder: Path) -> list[Panel]:
    """Return the panels `magnitude`, layers by the smallest submodel; `distance`, layers by the
    other submodels; and `ratio`, distance by magnitude of the means over layers, by submodel.
    """
    run = load_stored_run(folder, folder.parent)
    first, *others = (
        (
            one.name,
            find_convolutions(run.method.dispatch(run.state, run.method.place(run.state, one))),
        )
        for one in dict.fromkeys(submodel.plain for submodel in run.menu)
    )
    name, base = first
    if not base or not others:
        raise ConfigError(
            f"run '{folder.name}': expected several submodels with convolutions to compare"
        )
    magnitude = {(layer, name): measure_scale(value) for layer, value in base.items()}
    distance = {
        (layer, other): measure_scale(value - tensors[layer][as_slices(corner(value.shape))])
        for other, tensors in others
        for layer, value in base.items()
        if layer in tensors
    }
    ratios = {
        (other, "ratio"): float(
            np.mean([distance[layer, other] for layer in base if (layer, other) in distance])
            / np.mean([magnitude[layer, name] for layer in base if (layer, other) in distance])
        )
        for other, _ in others
    }
    return [
        make_panel("magnitude", magnitude),
        make_panel("distance", distance),
        make_panel("ratio", ratios),
    ]
