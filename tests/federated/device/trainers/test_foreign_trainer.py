"""A trainer of another package takes part in runs: chosen by name, without PyTorch."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from coordinator.run.config_sources import ConfigSources
from coordinator.simulate.simulation import simulate
from coordinator.store.run_store import Store
from edge_agent.device.process_limits import Limits
from edge_agent.join.training_process_control import Job, Worker
from federated.device.trainers.catalogue import TRAINERS, open_trainer
from federated.errors import ConfigError, MissingExtra, Unknown
from federated.task import Recipe, Task
from federated.wire import tensors
from federated.wire.codecs.catalogue import find_loaded_codec
from federated.wire.codecs.codec import decode_update
from federated.wire.messages import Run
from models.named_network import network
from models.submodel_building import full, initial, shapes, statistics
from tests.support.commands import ROOT
from tests.support.memory_federation import Member, digits, federate
from tests.support.plugins import install
from tests.support.small_tasks import parameters
from tests.support.toy_trainer import Adding

NAME = "tests.support.toy_trainer:open_adding"
FEDAVG = {
    "method.name": "fedavg",
    "model.name": "mlp",
    "train.norm": "static",
    "train.steps": 2,
    "train.lr": 0.25,
}
MLP = network("mlp", (1, 8, 8), 10)
WHOLE = full(MLP)


def state(folder: Path, number: int) -> dict[str, torch.Tensor]:
    store = Store.open(folder / "runs", "test", read_only=True)
    try:
        return store.read_checkpoint(number)[0]
    finally:
        store.close()


def test_the_updates_of_a_foreign_trainer_are_folded(tmp_path: Path) -> None:
    """Two steps of 0.25 on every agent move every weight of the fleet by a half each round."""
    members = [Member(f"a{i}", digits(i, 2), trainer=Adding()) for i in range(2)]
    federate(tmp_path, members, {**FEDAVG, "rounds": 2})
    first, second = state(tmp_path, 1), state(tmp_path, 2)
    assert shapes(WHOLE).keys() <= first.keys()
    for name in shapes(WHOLE):
        moved = second[name] - first[name]
        torch.testing.assert_close(moved, torch.full_like(moved, 0.5), rtol=0, atol=1e-5)


def test_a_foreign_trainer_and_pytorch_share_a_round(tmp_path: Path) -> None:
    members = [Member("a0", digits(0, 2), trainer=Adding()), Member("a1", digits(1, 2))]
    assert federate(tmp_path, members, FEDAVG).result.rounds == 1
    store = Store.open(tmp_path / "runs", "test", read_only=True)
    assert {entry.agent for entry in store.read_entries(1)} == {"a0", "a1"}
    store.close()


def test_a_trainer_without_a_needed_capability_is_refused_at_join(tmp_path: Path) -> None:
    members = [Member(f"a{i}", digits(i, 3)) for i in range(2)]
    lacking = Member("a2", digits(2, 3), trainer=Adding())
    given = {**FEDAVG, "method.name": "moon", "fleet.min_agents": 2}
    federate(tmp_path, [*members, lacking], given)
    assert lacking.participant is not None
    assert lacking.participant.state.refused
    assert "hook:moon" in lacking.participant.state.over
    assert "adding 1.0" in lacking.participant.state.over
    store = Store.open(tmp_path / "runs", "test", read_only=True)
    assert {entry.agent for entry in store.read_entries(1)} == {"a0", "a1"}
    store.close()


def test_a_trainer_is_chosen_by_module_and_function_or_by_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(open_trainer(NAME), Adding)
    install(tmp_path, "toy", {"espalier.trainers": {"adding": NAME}})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert isinstance(open_trainer("adding"), Adding)
    with pytest.raises(Unknown, match="unknown trainer 'pytroch'; did you mean pytorch"):
        open_trainer("pytroch")
    with pytest.raises(ConfigError, match="no_such_module"):
        open_trainer("no_such_module:trainer")
    with pytest.raises(ConfigError, match=r"trainer 'math:sqrt' .*TypeError"):
        open_trainer("math:sqrt")
    with pytest.raises(ConfigError, match=r"returned a str without accelerator, .*a Trainer, see"):
        open_trainer("os.path:basename")


def test_every_member_of_the_catalogue_declares_itself() -> None:
    for name in TRAINERS:
        made = open_trainer(name)
        assert made.runtime
        assert made.capabilities


def test_a_simulation_runs_with_a_foreign_trainer(tmp_path: Path) -> None:
    """Two rounds of two steps of 0.25 move every weight by one."""
    file = tmp_path / "short.toml"
    file.write_text('name = "short"\nrounds = 2\n[method]\nname = "fedavg"\n')
    given = [f"{key}={value}" for key, value in FEDAVG.items()]
    given += [f"simulate.trainer={NAME}", "simulate.agents=2", "simulate.workers=1"]
    simulate(
        ConfigSources(file, settings=tuple(given)),
        tmp_path / "runs",
        tmp_path / "out",
        resume=False,
        say=lambda line: None,
    )
    begun, ended = (
        initial(MLP, 0),
        load_file(tmp_path / "runs/short-seed0/round-000002.safetensors"),
    )
    for name in shapes(WHOLE):
        torch.testing.assert_close(ended[name], begun[name] + 1, rtol=0, atol=1e-5)


# ---- without PyTorch -----------------------------------------------------------------------------


@pytest.fixture
def torchless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide PyTorch from processes that start now."""
    (tmp_path / "without").mkdir()
    (tmp_path / "without/torch.py").write_text("raise ModuleNotFoundError('hidden', name='torch')")
    path = [str(tmp_path / "without"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))


def working(trainer: str) -> Worker:
    job = Job("a", "digits", None, "0/2", "iid", 0, "cpu", "", Limits(cpus=1), trainer=trainer)
    return Worker(job)


@pytest.mark.processes
@pytest.mark.usefixtures("torchless")
def test_an_agent_without_pytorch_measures_itself_and_trains(tmp_path: Path) -> None:
    worker = working(NAME)
    try:
        worker.load()
        card = Run("r", "fedavg", "mlp", MLP, (WHOLE,), 8, "s")
        profile = worker.measure(card, fresh=True)
        assert (profile.runtime, profile.capabilities) == ("adding 1.0", ("clip",))
        assert [timing.submodel for timing in profile.timings] == [WHOLE]
        given, result = parameters(WHOLE), tmp_path / "result"
        (tmp_path / "weights").write_bytes(tensors.encode({}, given))
        recipe = Recipe(steps=2, batch=8, lr=0.5)
        task = Task("r", 1, 1, "a", "train", WHOLE, "r0", "0" * 64, 1, recipe, 60.0)
        worker.rehearse(msgspec.to_builtins(task), tmp_path / "weights", result)
    finally:
        worker.close()
    update = decode_update(result.read_bytes(), find_loaded_codec("raw"), 1 << 20, {})
    assert update.steps == 2
    assert update.tensors.keys() == shapes(WHOLE).keys()
    assert not update.tensors.keys() & statistics(WHOLE).keys()
    assert all(np.allclose(value, given[name] + 1) for name, value in update.tensors.items())


@pytest.mark.processes
@pytest.mark.usefixtures("torchless")
def test_pytorch_that_is_not_installed_is_an_extra() -> None:
    worker = working("pytorch")
    try:
        with pytest.raises(MissingExtra, match=r"torch.*\[train\]"):
            worker.load()
    finally:
        worker.close()
