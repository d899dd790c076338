"""Views and tallies of arrays are those of PyTorch's evaluation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from federated.training import objective
from federated.training.array_scores import list_views, tally
from models.submodel import Network

NETWORKS = [
    Network("n", "", (1,), 3),
    Network("n", "", (4,), 3, objective="next"),
    Network("n", "", (1,), 3, objective="value", shift=(1.0, 2.0, 3.0), scale=(2.0, 3.0, 4.0)),
    Network("n", "", (1,), 3, objective="value"),
]


@pytest.mark.parametrize("network", NETWORKS, ids=lambda one: one.objective)
@pytest.mark.parametrize("per_class", [True, False])
def test_tally(network, per_class) -> None:
    random = np.random.default_rng(0)
    places = network.inputs if network.objective == "next" else ()
    out = random.normal(size=(5, 3, *places)).astype(np.float32)
    truth = random.integers(0, 3, (5, *places))
    if network.objective == "value":
        truth = random.normal(size=(5, 3)).astype(np.float32)
    learned = objective.standardise_values(network, torch.from_numpy(truth))
    wanted = objective.tally(network, torch.from_numpy(out), learned, per_class=per_class)
    found = tally(network, out, truth, per_class=per_class)
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        assert found[name] == pytest.approx(values, rel=1e-5)


def test_views() -> None:
    outs = [np.array([[1.0, 2.0]]), np.array([[3.0, 6.0]])]
    found = {name: view.tolist() for name, view in list_views(outs, [1]).items()}
    assert found == {
        "all": [[3.0, 6.0]],
        "ensemble": [[2.0, 4.0]],
        "exit0": [[1.0, 2.0]],
        "exit1": [[3.0, 6.0]],
        "labels": [[0.0, 6.0]],
    }
    assert list_views(outs[:1], []).keys() == {"all"}
