"""Draw the features of the devices' networks in two dimensions by t-SNE (Chan et al., InCo, arXiv
2308.11464, section 5.4, Figures 9d to 9f; t-SNE: van der Maaten and Hinton, JMLR 9, 2008).

The features are those of the last section, after a training as in
`benchmarks.analyses.client_similarity`. Features of one class that lie apart by device show that
the devices' networks drift apart.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.analyses.client_similarity import choose_devices, read_features, train_device
from benchmarks.analyses.panels import Panel, make_panel
from coordinator.release.stored_run import load_stored_run
from coordinator.simulate.device_data import DataSource
from federated.errors import ConfigError, require_extra

__all__ = ["analyse", "count_same", "embed"]

DEVICES, CLASSES, EXAMPLES = 3, 6, 30  # the paper's numbers, and examples of each class
NEIGHBOURS = 10
PERPLEXITY = 30.0


def embed(x: NDArray[np.floating], perplexity: float = PERPLEXITY) -> NDArray[np.floating]:
    """Return the positions of points in two dimensions, [n, 2]. x: [n, numbers]. Raises
    MissingExtra.
    """
    with require_extra("python -m benchmarks analyse features", "bench", "scikit-learn"):
        from sklearn.manifold import TSNE

    placed = TSNE(perplexity=min(perplexity, (len(x) - 1) / 3), random_state=0).fit_transform(x)
    return np.asarray(placed)


def count_same(x: NDArray[np.floating], groups: NDArray[np.generic]) -> float:
    """Return the share of the nearest neighbours of each point that are of its group, of at most
    NEIGHBOURS of them. x: [n, numbers], groups: [n].
    """
    points = torch.from_numpy(x).double()
    distances = torch.cdist(points, points).fill_diagonal_(torch.inf)
    nearest = distances.topk(min(NEIGHBOURS, len(x) - 1), largest=False).indices.numpy()
    return float((groups[nearest] == groups[:, None]).mean())


def analyse(folder: Path) -> list[Panel]:
    """Return the panels `by class` and `by device`, points by coordinates, and `neighbours`, the
    percentage of a point's nearest neighbours with the same class, or the same device.
    """
    run = load_stored_run(folder, folder.parent)
    source = DataSource.from_config(run.config)
    held, truth = source.whole.x_held, source.whole.y_held
    if source.whole.target != "class":
        raise ConfigError(f"run '{run.name}': expected data with classes")
    chosen = np.concatenate([np.flatnonzero(truth == c)[:EXAMPLES] for c in range(CLASSES)])
    x = torch.from_numpy(np.array(held[chosen]))
    found: dict[str, NDArray[np.floating]] = {}
    for agent, submodel in choose_devices(run, source).items():
        last = list(read_features(train_device(run, agent, submodel, source), x).items())[-1:]
        for _, features in last:
            if len(found) < DEVICES and all(one.shape == features.shape for one in found.values()):
                found[agent] = features
    if len(found) < 2:
        raise ConfigError(
            f"run '{run.name}': expected two devices with equally many features, such as networks "
            "of one width with several depths"
        )
    features = np.concatenate([*found.values()])
    classes = np.tile(truth[chosen], len(found))
    devices = np.repeat([*found], len(chosen))
    places = embed(features)
    points = {
        (f"{device} {one} {index}", axis): float(value)
        for index, (device, one, place) in enumerate(zip(devices, classes, places, strict=True))
        for axis, value in zip("xy", place, strict=True)
    }
    same = {
        ("same class", "%"): 100 * count_same(features, classes),
        ("same device", "%"): 100 * count_same(features, devices),
    }
    return [
        make_panel("by class", points, [f"class {one}" for one in classes]),
        make_panel("by device", points, [str(one) for one in devices]),
        make_panel("neighbours", same),
    ]
