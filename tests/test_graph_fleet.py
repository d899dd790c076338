"""Agents with and without the network's code share the rounds of a run, in one process. The graphs
are made by hand: each step subtracts the learning rate from every weight.
"""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

from coordinator.fleet.message_loop import MessageLoop
from coordinator.observe.round_records import Entry
from coordinator.run.config_sources import ConfigSources
from coordinator.simulate.simulation import simulate_run
from coordinator.store.run_store import Store
from export.trainstep.graph_order import make_order
from federated.data import loading
from federated.device.trainers.onnx_trainer import OnnxTrainer
from federated.task import Recipe
from models.named_network import network
from models.submodel import Network
from models.submodel_building import full
from tests.support.handmade_graphs import Design, make_node
from tests.support.memory_federation import Federation, Member, digits, federate

RECIPE = Recipe(batch=32)
SETTINGS = {
    "method.name": "fedavg",
    "model.name": "mlp",
    "train.norm": "static",
    "train.steps": 2,
    "train.lr": 0.25,
    "train.batch": RECIPE.batch,
}


def shelve(folder: Path, network: Network, *odd: Any) -> None:
    """Write graphs of the run's network, as an earlier process of the run did. odd: nodes in
    addition to those of a step.
    """
    submodel = full(network)
    place = folder / "runs" / "test" / "graphs" / make_order(submodel, RECIPE).name
    Design.of(submodel, RECIPE.batch).write(place, *odd)


def free(index: int, of: int) -> Member:
    return Member(f"a{index}", digits(index, of, "iid"), trainer=OnnxTrainer("cpu"))


def run(folder: Path, members: list[Member], *odd: Any, rounds: int = 1) -> Federation:
    def watch(fleet: MessageLoop) -> None:
        assert fleet.run.network is not None
        shelve(folder, fleet.run.network, *odd)

    return federate(folder, members, {**SETTINGS, "rounds": rounds}, watch=watch)


def read(folder: Path, number: int) -> tuple[dict[str, Entry], dict[str, Any], Any]:
    """Return the entries by agent, the weights, and the scores of a round."""
    store = Store.open(folder / "runs", "test", read_only=True)
    try:
        entries = {one.agent: one for one in store.read_entries(number)}
        return entries, store.read_checkpoint(number)[0], store.read_scores(number)
    finally:
        store.close()


def test_a_fleet_without_code_trains_calibrates_and_scores(tmp_path: Path) -> None:
    run(tmp_path, [free(0, 2), free(1, 2)], rounds=2)
    _, first, _ = read(tmp_path, 1)
    entries, second, scores = read(tmp_path, 2)
    assert {one.outcome for one in entries.values()} == {"folded"}
    for name, value in first.items():
        if "/" not in name:
            assert (value - second[name]).allclose(value.new_tensor(0.5), atol=1e-5), name
    measured = [value for name, value in second.items() if name.startswith("stats/")]
    assert measured
    assert all(bool((value == 1).all()) for value in measured)
    assert any(score.view == "devices" for score in scores)


def test_simulated_devices_train_with_graphs(tmp_path: Path) -> None:
    card = loading.load_central("digits").card()
    made = network("mlp", card.inputs, card.outputs, card)
    missing = [made]

    def shelve_once(event: object) -> None:  # the run has its folder then
        if missing:
            shelve(tmp_path, missing.pop())

    own = {"simulate.agents": 2, "simulate.trainer": "onnx", "data.name": "digits", "name": "test"}
    flags = [*SETTINGS.items(), *own.items(), ("rounds", 2)]
    simulate_run(ConfigSources(flags=flags), tmp_path / "runs", Event(), shelve_once, resume=False)
    _, first, _ = read(tmp_path, 1)
    entries, second, _ = read(tmp_path, 2)
    assert [one.outcome for one in entries.values()] == ["folded"] * 2
    for name, value in first.items():
        if "/" not in name:
            assert (value - second[name]).allclose(value.new_tensor(0.5), atol=1e-5), name


def test_agents_with_and_without_code_mix_in_a_round(tmp_path: Path) -> None:
    done = run(tmp_path, [free(0, 2), Member("a1", digits(1, 2, "iid"))])
    entries, _, _ = read(tmp_path, 1)
    assert {name: one.outcome for name, one in entries.items()} == {"a0": "folded", "a1": "folded"}
    known = done.fleet.agents
    assert known["a0"].profile is not None
    assert known["a0"].profile.timings == ()


def test_a_graph_that_a_device_refuses_fails_its_task_and_the_round_goes_on(
    tmp_path: Path,
) -> None:
    odd = make_node("RandomNormal", [], ["odd"], shape=[1])
    run(tmp_path, [free(0, 2), Member("a1", digits(1, 2, "iid"))], odd, rounds=2)
    entries, _, _ = read(tmp_path, 1)
    assert entries["a1"].outcome == "folded"
    assert entries["a0"].outcome.startswith("failed: training graph ")
    assert "does not run the operators RandomNormal" in entries["a0"].outcome
    entries, _, _ = read(tmp_path, 2)
    assert entries.keys() == {"a1"}, "there is no smaller submodel for the other"
