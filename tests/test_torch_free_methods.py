"""Methods, and the simulation, with devices that train without PyTorch, by exported graphs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from coordinator.fleet.message_loop import MessageLoop
from coordinator.run.config_sources import ConfigSources
from coordinator.simulate.simulation import simulate_run
from coordinator.store.run_store import Store
from federated.data import loading
from federated.device.trainers.onnx_trainer import OnnxTrainer
from tests.support.exported_graphs import find_graphs, list_orders
from tests.support.memory_federation import PYTORCH, RUN, Member, digits, federate, make_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SHARDS = 16  # of the digits, so that a device has 90
WIDTHS = {"method.widths": [0.5, 1.0]}
DEPTHS = {"method.widths": [1.0], "method.depths": [1, 2]}
EXITS = {"model.name": "resnet-small"}
METHODS: dict[str, dict[str, Any]] = {
    "depthfl": EXITS,
    "fedavg": DEPTHS,
    "fedfa": DEPTHS,
    "fednova": DEPTHS,
    "fedprox": DEPTHS,
    "fedrolex": WIDTHS,
    "heterofl": WIDTHS,
    "inclusivefl": {"method.depths": [1, 2]},
    "inco-avg": {"method.depths": [1, 2]},
    "inco-scaffold": {"method.depths": [1, 2]},
    "nefl-wd": {"method.widths": [1.0], "method.depths": [1, 2]},
    "scaffold": DEPTHS,
    "scalefl": EXITS,
}
SETTINGS: dict[str, Any] = {
    "model.name": "mlp",
    "data.name": "digits",
    "rounds": 2,
    "fleet.wait": 600.0,
    "train.epochs": 1,
    "train.lr": 0.05,
    # all examples of a device, since trainers shuffle differently
    "train.batch": 100,
    "evaluate.every": 2,
    "evaluate.between": False,
    "evaluate.devices": False,
}


def read_tensors(runs: Path, name: str) -> dict[str, torch.Tensor]:
    """Return what a run learned, without statistics, which any device may measure."""
    store = Store.open(runs, name, read_only=True)
    last = store.read_last()
    outcomes = {one.outcome for number in (1, 2) for one in store.read_entries(number)}
    store.close()
    assert last is not None
    assert last.round == 2
    assert outcomes == {"folded"}
    return {home: one for home, one in last.tensors.items() if not home.startswith("stats/")}


def measure_distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Return the root mean square of the differences of the tensor that differs most."""
    assert one.keys() == other.keys()
    return max(float((one[home] - other[home]).double().square().mean().sqrt()) for home in one)


@pytest.mark.parametrize("name", METHODS)
def test_a_device_without_pytorch_replaces_one_with_it(name: str, tmp_path: Path) -> None:
    """The one with the smallest submodel, beside another with the largest. What they learn differs
    by no more than what two of PyTorch alone learn if one adds up its examples in another order.
    """
    given = {**SETTINGS, **METHODS[name], "method.name": name}
    orders = list_orders(make_config(given))
    order, largest = orders[0], orders[-1].submodel.name
    exported = find_graphs(order, tmp_path)
    found, data = {}, digits(0, SHARDS)
    other = replace(data, x=data.x[::-1].copy(), y=data.y[::-1].copy())
    cases = {
        "mixed": (OnnxTrainer("cpu"), data),
        "same": (PYTORCH, data),
        "other": (PYTORCH, other),
    }
    for folder, (trainer, own) in cases.items():
        graphs = tmp_path / folder / "runs" / RUN / "graphs" / order.name

        def watch(fleet: MessageLoop, graphs: Path = graphs) -> None:
            shutil.copytree(exported, graphs)

        members = [Member("a0", own, trainer=trainer), Member("a1", digits(1, SHARDS))]
        pins = {"assign.submodels": {"a0": order.submodel.name, "a1": largest}}
        done = federate(tmp_path / folder, members, given | pins, watch=watch)
        profile = done.fleet.agents["a0"].profile
        assert profile is not None
        assert profile.runtime == trainer.runtime
        found[folder] = read_tensors(tmp_path / folder / "runs", RUN)
    rounding = measure_distance(found["other"], found["same"])
    assert measure_distance(found["mixed"], found["same"]) <= max(1e-6, 2 * rounding)


@pytest.mark.processes
def test_a_simulation_with_graphs_learns_what_a_fleet_without_pytorch_learns(
    tmp_path: Path,
) -> None:
    """The simulation exports the graphs first."""
    given = {**SETTINGS, "method.name": "fedavg", "train.batch": 32, "train.steps": 5}
    own = {"name": "s", "simulate.agents": 2, "simulate.trainer": "onnx", "simulate.workers": 1}
    own["simulate.partition"] = "dirichlet:1.0"
    sources = ConfigSources(flags=[*given.items(), *own.items()])
    simulate_run(sources, tmp_path / "runs", Event(), lambda event: None, resume=False)

    def watch(fleet: MessageLoop) -> None:
        shutil.copytree(tmp_path / "runs" / "s" / "graphs", tmp_path / "runs" / RUN / "graphs")

    data = [
        loading.load_device(
            "digits", name=f"d{i}", shard=f"{i}/2", partition="dirichlet:1.0", seed=0
        )
        for i in range(2)
    ]
    members = [Member(f"d{i}", one, trainer=OnnxTrainer("cpu")) for i, one in enumerate(data)]
    federate(tmp_path, members, given, watch=watch)
    there, here = (read_tensors(tmp_path / "runs", name) for name in ("s", RUN))
    assert measure_distance(there, here) <= 1e-6
