"""FedAdam, FedYogi, FedAdagrad and FedAvgM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coordinator.run.rounds import Result
from coordinator.store.run_store import Store
from federated.engine.aggregate import Total, fold
from federated.engine.update_contributions import Part
from federated.method import State, configure
from federated.methods.catalogue import find_method
from federated.task import Update
from models.named_network import network
from models.submodel_building import initial
from tests.support.memory_federation import Member, digits, federate
from tests.support.restarted_coordinator import Fuse, run_with_restarts

NAMES = ("fedadagrad", "fedadam", "fedavgm", "fedyogi")
NET = network("mlp", (6,), 3)
SIZES = {"widths": (0.5, 1.0), "depths": (1, 2)}


def begin_method(name: str, tensors: dict[str, list[float]], **given: Any) -> State:
    settings = configure(find_method(name), given)
    return State(0, {home: torch.tensor(value) for home, value in tensors.items()}, settings)


def after(name: str, state: State, *sent: tuple[str, list[float], int]) -> State:
    """Return the state after a round of (home, leading values, examples)."""
    total = Total()
    for index, (home, values, weight) in enumerate(sent):
        value = torch.tensor(values)
        shape = tuple(state.tensors[home.partition("@")[0]].shape)
        shape = (len(values),) if "@" in home else shape
        fold(total, [Part(home, ((0, len(values)),), shape, value, weight)], (index,))
    return find_method(name).finish(state, total, np.random.default_rng(0))


def test_fedavgm_takes_along_the_last_step_of_what_a_small_device_holds() -> None:
    """Means: (2, 2) of both devices by examples, then 4 of the large one. Changes from (0, 0, 0):
    (2, 2, 4), and in the next round of the small device alone, from there, (1, 0).
    """
    state = begin_method("fedavgm", {"w": [0.0] * 3}, server_lr=1.0, server_momentum=0.5)
    first = after("fedavgm", state, ("w", [5.0, 2.0], 1), ("w", [1.0, 2.0, 4.0], 3))
    assert first.tensors["w"].tolist() == [2.0, 2.0, 4.0]
    second = after("fedavgm", first, ("w", [3.0, 2.0], 1))
    assert second.tensors["w"].tolist() == [2 + 1 + 1, 2 + 0 + 1, 4.0]
    assert second.tensors["server/m/w"].tolist() == [2.0, 1.0, 4.0]
    assert second.round == 2


def test_fedadam_moves_each_coordinate_that_a_device_holds_by_its_own_step_size() -> None:
    """The formulas' numbers are derived in tests/federated/engine/test_server_optimizer.py."""
    given = {"server_lr": 2.0, "beta1": 0.5, "beta2": 0.75, "tau": 1.0}
    state = begin_method("fedadam", {"w": [1.0, 2.0, 3.0]}, **given)
    first = after("fedadam", state, ("w", [2.0, 2.0, 0.25], 7))
    torch.testing.assert_close(first.tensors["w"], torch.tensor([1.5, 2.0, 3 - 2.75 / 2.625]))
    second = after("fedadam", first, ("w", [2.5, 4.0], 2))
    expected = torch.tensor([1.5 + 0.75, 2 + 2 / 2.25, 3 - 2.75 / 2.625])
    torch.testing.assert_close(second.tensors["w"], expected)
    assert second.tensors["server/v/w"].tolist() == [1.0, 1.5625, 2.640625]


@pytest.mark.parametrize("name", NAMES)
def test_running_statistics_take_the_plain_mean(name: str) -> None:
    homes = ["norm.running_mean", "norm.running_var", "norm.running_var@w0.5"]
    state = begin_method(name, {"norm.running_mean": [0.0, 0.0], "norm.running_var": [1.0, 1.0]})
    found = after(name, state, *((home, [3.0], 1) for home in homes))
    assert [found.tensors[home][0].item() for home in homes] == [3.0, 3.0, 3.0]
    assert not [home for home in found.tensors if home.startswith("server/")]


def test_a_group_starts_from_the_corner_that_it_reads() -> None:
    state = begin_method("fedavgm", {"w": [1.0, 2.0, 3.0]}, server_lr=0.5)
    found = after("fedavgm", state, ("w@w0.5", [3.0, 2.0], 1))
    assert found.tensors["w@w0.5"].tolist() == [2.0, 2.0]
    assert found.tensors["w"].tolist() == [1.0, 2.0, 3.0]


def rounds(name: str, given: dict[str, Any]) -> tuple[State, dict[str, Tensor]]:
    """Return the state after three rounds of four sizes, one of which is missing in each; and what
    the largest device would receive then.
    """
    chosen = find_method(name)
    settings = configure(chosen, {**SIZES, **given})
    menu = chosen.menu(NET, settings)
    state = chosen.start(initial(NET, 0), menu, settings)
    generator = torch.Generator().manual_seed(0)
    for number in range(3):
        total = Total()
        for index, submodel in enumerate(menu):
            plan = chosen.place(state, submodel)
            sent = {
                local: value + torch.rand(value.shape, generator=generator)
                for local, value in chosen.dispatch(state, plan).items()
            }
            update = Update("r", 1, 0, "a", "train", submodel, "0", 1 + index, 1, sent)
            if index != number:
                assert fold(total, chosen.parts(state, plan, update), (index,))
        state = chosen.finish(state, total, np.random.default_rng(0))
    return state, chosen.dispatch(state, chosen.place(state, menu[-1]))


def test_sgd_at_rate_1_without_momentum_is_fedavg_on_nested_submodels() -> None:
    found, received = rounds("fedavgm", {"server_lr": 1.0, "server_momentum": 0.0})
    wanted, expected = rounds("fedavg", {})
    assert found.tensors.keys() == wanted.tensors.keys()
    for home, value in wanted.tensors.items():
        torch.testing.assert_close(found.tensors[home], value, rtol=1e-6, atol=1e-6)
    assert received.keys() == expected.keys()


@pytest.mark.parametrize("name", NAMES)
def test_devices_receive_no_moments(name: str) -> None:
    state, received = rounds(name, {})
    kept = {home for home in state.tensors if home.startswith("server/")}
    assert kept
    assert kept.isdisjoint(received)
    assert received.keys() == rounds("fedavg", {})[1].keys()


def federation(tmp_path: Path, name: str, **given: Any) -> Result:
    fleet = [Member(f"a{i}", digits(i, 3), speed) for i, speed in enumerate((0.01, 0.018, 0.5))]
    settings = {"method.name": name, "model.name": "mlp", "train.epochs": 3, "rounds": 3}
    sizes = {f"method.{key}": list(value) for key, value in SIZES.items()}
    return federate(tmp_path, fleet, {**settings, "evaluate.every": 3, **sizes, **given}).result


@pytest.mark.parametrize("name", NAMES)
def test_unequal_devices_learn_digits_by_default(tmp_path: Path, name: str) -> None:
    scores = federation(tmp_path, name).scores
    assert all(np.isfinite(score.loss) for score in scores)
    assert max(score.accuracy for score in scores if score.view == "central") > 0.5


def test_a_killed_coordinator_resumes_its_moments_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fleet() -> list[Member]:
        return [Member(f"a{i}", digits(i, 2)) for i in range(2)]

    settings = {
        "method.name": "fedadam",
        "method.widths": [0.5, 1.0],
        "model.name": "mlp-small",
        "train.steps": 2,
        "rounds": 2,
        "evaluate.examples": 20,
        "evaluate.devices": False,
    }
    whole = federate(tmp_path / "whole", fleet(), settings).result.state.tensors
    monkeypatch.setattr(Store, "save", Fuse(1, after=True).around(Store.save))
    result, deaths = run_with_restarts(tmp_path / "revived", fleet(), settings)
    assert deaths == 1
    assert result.state.tensors.keys() == whole.keys()
    assert any(home.startswith("server/v/") for home in whole)
    assert all(torch.equal(result.state.tensors[home], value) for home, value in whole.items())
