"""Measure how similar the blocks of two submodels are: the Pearson correlation of matched weight
maps (Park and Joe-Wong, FedFA, arXiv 2406.09877, section B.3, Tables 7 to 9).

Two filters are compared by matching each weight map of one, in order, with the unmatched map of the
other that it correlates with most; their similarity is the mean of these correlations. Two layers
are compared by matching filters in the same way. The first block of a section, which has other
inputs, is left out, and so are convolutions of single numbers. Of wide layers, the first MOST
filters and maps are compared, as the number of pairs grows with the fourth power of the width.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.analyses.panels import Panel, make_panel
from benchmarks.analyses.weight_scales import find_convolutions
from coordinator.release.stored_run import StoredRun, load_stored_run
from coordinator.run.run_preparation import make_weights
from federated.errors import ConfigError
from federated.method import State
from models.submodel import Submodel
from models.submodel_building import address

__all__ = ["analyse", "compare_layers"]

MOST = 32


def match_greedily(pairs: Tensor) -> Tensor:
    """Return the mean of one-to-one matches: each row in order takes the largest entry of a column
    that no earlier row took. pairs: [..., rows, columns], with at least as many columns; returns
    [...].
    """
    left, total = pairs.clone(), torch.zeros(pairs.shape[:-2])
    for row in range(pairs.shape[-2]):
        best = left[..., row, :].max(-1)
        total += best.values
        taken = best.indices[..., None, None].expand(*pairs.shape[:-1], 1)
        left.scatter_(-1, taken, -torch.inf)
    return total / pairs.shape[-2]


def compare_layers(one: Tensor, other: Tensor) -> float:
    """Return the similarity of two convolutions [out, in, height, width]: at most 1."""
    maps = []
    for weight in (one, other):
        flat = weight[:MOST, :MOST].double().flatten(2)  # [out, in, height * width]
        flat = flat - flat.mean(-1, keepdim=True)
        maps.append(flat / flat.norm(dim=-1, keepdim=True).clamp(min=1e-30))
    size = [min(pair) for pair in zip(maps[0].shape[:2], maps[1].shape[:2], strict=True)]
    first, second = maps[0][: size[0], : size[1]], maps[1][: size[0], : size[1]]
    found = torch.einsum("ikp,jlp->ijkl", first, second)
    return float(match_greedily(match_greedily(found)))


def list_layers(
    run: StoredRun, state: State, submodel: Submodel
) -> dict[tuple[int, int, str], Tensor]:
    """Return the convolutions with several positions, without those of first blocks, by section,
    block and rest of the name.
    """
    tensors = run.method.dispatch(state, run.method.place(state, submodel))
    found = {}
    for name, value in find_convolutions(tensors).items():
        place = address(run.network, name)
        if place is not None and place[1] and value[0, 0].numel() > 1:
            found[place] = value
    return found


def analyse(folder: Path) -> list[Panel]:
    """Return a panel for each section: layers of the first submodel of the menu by those of the
    last one; and `before` and `after`, the mean of each section before and after training.
    """
    run = load_stored_run(folder, folder.parent)
    weights = make_weights(run.config, run.network, run.method)
    start = run.method.start(weights, run.menu, run.config.settings)
    menu = [submodel.plain for submodel in run.menu]
    small, large = menu[0], menu[-1]
    panels, means = [], {"before": dict[tuple[str, str], float](), "after": {}}
    for when, state in (("before", start), ("after", run.state)):
        mine, its = list_layers(run, state, small), list_layers(run, state, large)
        for section in sorted({place[0] for place in mine}):
            numbers = {
                (f"{a[1]}.{a[2]}", f"{b[1]}.{b[2]}"): compare_layers(mine[a], its[b])
                for a in sorted(mine)
                for b in sorted(its)
                if a[0] == b[0] == section and a[2] == b[2]
            }
            means[when][f"section {section}", "mean"] = float(np.mean(list(numbers.values())))
            if when == "after":
                panels.append(make_panel(f"section {section}", numbers))
    if not panels:
        raise ConfigError(
            f"run '{folder.name}': expected submodels with two blocks in a section to compare"
        )
    return [*panels, *(make_panel(when, found) for when, found in means.items())]
