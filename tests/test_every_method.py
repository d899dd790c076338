"""Every method on a fleet: three agents of different sizes over a real broker reach the weights of
the simulation with the same seed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from coordinator.broker import local_broker as brokers
from coordinator.run.config_sources import ConfigSources
from coordinator.simulate.simulation import simulate_run
from coordinator.store.run_store import Store
from federated.data import loading
from federated.errors import ConfigError
from federated.method import configure
from federated.methods.catalogue import METHODS, find_method
from models.named_network import network
from models.submodel import Submodel
from tests.support.memory_federation import RUN, Member, federate

pytestmark = [pytest.mark.broker, pytest.mark.processes]
AGENTS = 3
PARTITION = "dirichlet:1.0"
MODELS = ("preresnet", "resnet-small")  # the first that can do what a method asks of a network
# a hypernetwork computes one tensor after another, so these methods get a network of few tensors
FEW_TENSORS = {"recipfl": ("mlp-small",)}
WIDTHS = [0.25, 0.5, 1.0]  # for methods that have one size unless more are set
FEW = {"widths": [0.5, 1.0], "depths": [2, 4]}  # for methods that have many
# One method of each kind: static batch norm with averaged scales, control variates, own norms and
# step sizes, a hypernetwork, gradients shared across layers. The others are slow tests.
FAST = ("fedfa", "scaffold", "nefl-wd", "recipfl", "inco-avg")
QUICK = {
    "rounds": 2,
    "train.epochs": 1,
    "train.steps": 2,
    "train.batch": 8,
    "evaluate.every": 2,
    "evaluate.between": False,
    "evaluate.agents": 1,
    # scores are not compared
    "evaluate.devices": False,
    "evaluate.examples": 8,
}


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with brokers.start("127.0.0.1", 0, "auto", tmp_path / "broker") as started:
        yield started.address


def menu(name: str, given: dict[str, Any]) -> tuple[str, tuple[Submodel, ...]]:
    """Return a model, and the submodels that a method proposes for it."""
    chosen, card = find_method(name), loading.load_central("digits").card()
    for model in FEW_TENSORS.get(name, MODELS):
        try:
            made = network(model, card.inputs, card.outputs, card)
            return model, chosen.menu(made, configure(chosen, given, rounds=2))
        except ConfigError:
            continue
    raise AssertionError(f"{name} serves no network of this test")


def settings(name: str) -> dict[str, Any]:
    """Return the smallest submodel, one in the middle, and the largest, for two short rounds."""
    given: dict[str, Any] = {}
    count = len(menu(name, {})[1])
    if count == 1:
        given = {"widths": WIDTHS}
    elif count > 5 and FEW.keys() <= find_method(name).settings.keys():
        given = FEW
    model, proposed = menu(name, given)
    pins = {f"d{i}": proposed[place].name for i, place in enumerate((0, len(proposed) // 2, -1))}
    more = {f"method.{key}": value for key, value in given.items()}
    return {
        **QUICK,
        **more,
        "method.name": name,
        "model.name": model,
        "data.name": "digits",
        "assign.submodels": pins,
    }


def tensors(runs: Path, name: str) -> dict[str, torch.Tensor]:
    store = Store.open(runs, name, read_only=True)
    last = store.read_last()
    store.close()
    assert last is not None
    assert last.round == 2
    return dict(last.tensors)


@pytest.mark.parametrize(
    "name",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in METHODS],
)
def test_a_fleet_learns_what_its_simulation_learns(name: str, tmp_path: Path, address: str) -> None:
    given = settings(name)
    data = [
        loading.load_device(
            "digits", name=f"d{i}", shard=f"{i}/{AGENTS}", partition=PARTITION, seed=0
        )
        for i in range(AGENTS)
    ]
    members = [Member(f"d{i}", one) for i, one in enumerate(data)]
    done = federate(tmp_path, members, given, broker=address)
    assert {m.error for m in members} == {None}
    assert len({submodel.unowned.name for submodel in done.result.history.assigned.values()}) >= (
        1 if name == "allsmall" else 2
    )
    flags = [*given.items(), ("simulate.agents", AGENTS), ("simulate.partition", PARTITION)]
    simulate_run(
        ConfigSources(flags=[*flags, ("name", "same")]),
        tmp_path / "simulated",
        threading.Event(),
        lambda event: None,
        resume=False,
    )
    there, here = tensors(tmp_path / "runs", RUN), tensors(tmp_path / "simulated", "same")
    assert there.keys() == here.keys()
    assert max(float((there[home] - here[home]).abs().max()) for home in there) <= 1e-6
