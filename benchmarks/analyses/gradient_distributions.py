"""Show how the changes of each convolution in a training are distributed (Chan et al., InCo,
arXiv 2308.11464, section 2, Figures 2c, 2d and 3), and how alike the devices' distributions are.

A device's change is that of one more plain training of its last submodel, as in
`benchmarks.analyses.client_similarity`: the sum of its steps, as InCo takes the change of a round
for the gradient.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.analyses.client_similarity import choose_devices, train_device
from benchmarks.analyses.panels import Panel, make_panel
from benchmarks.analyses.weight_scales import find_convolutions
from coordinator.release.stored_run import StoredRun, load_stored_run
from coordinator.simulate.device_data import DataSource
from federated.errors import ConfigError
from models.submodel import Submodel

__all__ = ["analyse", "measure_overlap"]

BINS = 21  # odd: 0 is in the middle of a bin
SPAN = 3.0  # standard deviations of all changes, to both sides of 0

Changes = NDArray[np.floating]


def find_changes(
    run: StoredRun, agent: str, submodel: Submodel, source: DataSource
) -> dict[str, Changes]:
    """Return the change of each convolution of a device by name, flat."""
    before = run.method.dispatch(run.state, run.method.place(run.state, submodel))
    after = train_device(run, agent, submodel, source).state_dict()
    return {
        name.removesuffix(".weight"): (after[name] - value).flatten().double().numpy()
        for name, value in find_convolutions(before).items()
    }


def count_shares(changes: Changes, edges: Changes) -> Changes:
    """Return the share of the changes in each bin; those beyond the edges are in the outer bins."""
    counts, _ = np.histogram(np.clip(changes, edges[0], edges[-1]), edges)
    shares: Changes = counts / len(changes)
    return shares


def measure_overlap(shares: list[Changes]) -> float:
    """Return the mean overlap of the distributions of two devices, over all pairs: from 0 to 1."""
    pairs = [np.minimum(a, b).sum() for i, a in enumerate(shares) for b in shares[:i]]
    return float(np.mean(pairs))


def analyse(folder: Path) -> list[Panel]:
    """Return three panels. `distribution`: layers by changes, the percentage of changes near each
    value, over all devices; `deviation`: layers by devices, the standard deviation of the changes;
    `overlap`: the share that the distributions of two devices have in common, by layer.
    """
    run = load_stored_run(folder, folder.parent)
    source = DataSource.from_config(run.config)
    found = {
        agent: find_changes(run, agent, submodel, source)
        for agent, submodel in choose_devices(run, source).items()
    }
    layers: dict[str, dict[str, Changes]] = {}
    for agent, changes in found.items():
        for layer, values in changes.items():
            layers.setdefault(layer, {})[agent] = values
    if not layers:
        raise ConfigError(f"run '{run.name}': expected submodels with convolutions")
    pooled = {layer: np.concatenate([*several.values()]) for layer, several in layers.items()}
    limit = SPAN * float(np.concatenate([*pooled.values()]).std())
    edges = np.linspace(-limit, limit, BINS + 1)
    middles = [f"{middle:.3g}" for middle in (edges[:-1] + edges[1:]) / 2]
    distribution = {
        (layer, middle): 100 * share
        for layer, values in pooled.items()
        for middle, share in zip(middles, count_shares(values, edges), strict=True)
    }
    deviation = {
        (layer, agent): float(values.std())
        for layer, several in layers.items()
        for agent, values in several.items()
    }
    overlap = {
        (layer, "overlap"): measure_overlap([count_shares(v, edges) for v in several.values()])
        for layer, several in layers.items()
        if len(several) > 1
    }
    return [
        make_panel("distribution", distribution),
        make_panel("deviation", deviation),
        make_panel("overlap", overlap),
    ]
