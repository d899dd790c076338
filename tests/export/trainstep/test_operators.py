"""Devices accept the graphs of every family, and of a network with many other layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from torch import nn

from export.trainstep.export_process import export_graphs
from export.trainstep.graph_order import make_order
from federated.device.trainers.graph_checks import load_graph
from federated.task import GraphKind, Recipe
from models.families.catalogue import FAMILIES
from models.menu import menu
from models.named_network import network
from models.submodel import Submodel
from models.submodel_building import full, statistics
from tests.support.smallest_networks import small

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
# with the operators of every term that a step can have
RECIPE = Recipe(batch=2, optimiser="adamw", pull=1.0, clip=1.0, variate="scaffold", masked=True)


LOSSES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {  # features and options by method
    "depthfl": (("exits",), {"weight": 0.5}),
    "scalefl": (
        ("exits-conv", "scaler-always"),
        {"gamma": 0.5, "temperature": 3.0, "variant": "code"},
    ),
}


def check_graphs(submodel: Submodel, folder: Path, recipe: Recipe = RECIPE) -> None:
    """Export the graphs of a submodel, and load them as a device does."""
    export_graphs(make_order(submodel, recipe), folder)
    found = set()
    for path in folder.iterdir():
        kind, _, digest = path.stem.rpartition("-")
        load_graph(path.rename(folder / f"{digest}.graph"), kind, submodel.name, 1)
        found.add(kind)
    calibrated = bool(statistics(submodel))
    assert found == set(get_args(GraphKind)) - (set() if calibrated else {"calibration"})


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str, tmp_path: Path) -> None:
    check_graphs(menu(small(family), (0.5,), (1,))[0], tmp_path)


@pytest.mark.parametrize("method", LOSSES)
def test_losses_of_methods(method: str, tmp_path: Path) -> None:
    features, options = LOSSES[method]
    recipe = replace(RECIPE, hook=method, options=options)
    (submodel,) = menu(small("resnet"), (0.5,), (1,), features)
    check_graphs(submodel, tmp_path, recipe)


def layers() -> nn.Module:
    """Return a network with layers that no family has."""
    return nn.Sequential(
        *(nn.Conv2d(4, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.GELU()),
        *(nn.Conv2d(8, 8, 3, padding=1), nn.InstanceNorm2d(8, affine=True), nn.LeakyReLU()),
        *(nn.AvgPool2d(2), nn.PReLU(), nn.ELU(), nn.SELU(), nn.Hardswish(), nn.Hardsigmoid()),
        *(nn.Mish(), nn.Softplus(), nn.Softsign(), nn.SiLU(), nn.ReLU6(), nn.Tanh()),
        *(nn.PixelShuffle(2), nn.PixelUnshuffle(2), nn.Flatten(), nn.Linear(128, 16)),
        *(nn.LayerNorm(16), nn.Sigmoid(), nn.Linear(16, 10)),
    )


def test_many_layers(tmp_path: Path) -> None:
    check_graphs(full(network(f"{__name__}:layers", (4, 8, 8), 10)), tmp_path)
