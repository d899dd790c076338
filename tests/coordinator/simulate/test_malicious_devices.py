"""Malicious devices of a simulation: who they are, and that a fleet of such agents equals it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from coordinator.run.config_sources import ConfigSources
from coordinator.settings.config import load
from coordinator.simulate.malicious_devices import choose_malicious, name_malicious
from coordinator.simulate.simulation import simulate_run
from coordinator.store.run_store import Store
from federated.data import loading
from federated.device.attacks.known_attacks import parse_attack
from federated.device.attacks.malicious_trainer import make_malicious
from federated.errors import ConfigError, Unknown
from tests.support.memory_federation import PYTORCH, RUN, Member, federate

AGENTS, ATTACK = 3, "backdoor:3"
SETTINGS: dict[str, Any] = {
    "rounds": 2,
    "method.name": "heterofl",
    "method.widths": [1.0, 0.5],
    "model.name": "mlp-small",
    "data.name": "digits",
    "train.steps": 2,
    "train.epochs": 1,
    "assign.submodels": {"d0": "w0.5-d2-scaler", "d*": "w1-d2-scaler"},
    "evaluate.devices": False,
}


def configure(**simulate: Any) -> Any:
    return load(None, {}, [(f"simulate.{key}", value) for key, value in simulate.items()])


@pytest.mark.parametrize(
    ("agents", "share", "count"),
    [(100, 0.0, 0), (100, 0.01, 1), (100, 0.2, 20), (20, 0.01, 1), (10, 0.3, 3), (3, 0.5, 2)],
)
def test_the_share_of_malicious_devices_is_rounded_up(
    agents: int, share: float, count: int
) -> None:
    assert len(choose_malicious(configure(agents=agents, attackers=share))) == count


def test_the_seed_chooses_the_malicious_devices() -> None:
    made = configure(agents=100, attackers=0.1)
    other = load(None, {}, [("seed", 1), ("simulate.agents", 100), ("simulate.attackers", 0.1)])
    assert choose_malicious(made) == choose_malicious(made) != choose_malicious(other)
    assert name_malicious(made) == sorted(name_malicious(made))
    # more attackers include the fewer, so that a comparison changes only their number
    assert choose_malicious(made) < choose_malicious(configure(agents=100, attackers=0.2))


def run_simulation(folder: Path, **more: Any) -> dict[str, torch.Tensor]:
    flags = [*SETTINGS.items(), *((f"simulate.{key}", value) for key, value in more.items())]
    flags += [("simulate.agents", AGENTS), ("simulate.partition", "iid"), ("name", "same")]
    simulate_run(
        ConfigSources(flags=flags), folder, threading.Event(), lambda event: None, resume=False
    )
    return read_weights(folder, "same")


def read_weights(runs: Path, name: str) -> dict[str, torch.Tensor]:
    store = Store.open(runs, name, read_only=True)
    last = store.read_last()
    store.close()
    assert last is not None
    return dict(last.tensors)


def test_a_fleet_with_a_malicious_agent_learns_what_its_simulation_learns(tmp_path: Path) -> None:
    [attacker] = name_malicious(configure(agents=AGENTS, attackers=0.3))
    members = [
        Member(
            f"d{i}",
            loading.load_device("digits", name=f"d{i}", shard=f"{i}/3", partition="iid", seed=0),
            trainer=make_malicious(PYTORCH, parse_attack(ATTACK))
            if f"d{i}" == attacker
            else PYTORCH,
        )
        for i in range(AGENTS)
    ]
    federate(tmp_path, members, SETTINGS)
    there = read_weights(tmp_path / "runs", RUN)
    here = run_simulation(tmp_path / "attacked", attackers=0.3, attack=ATTACK)
    honest = run_simulation(tmp_path / "honest")
    assert there.keys() == here.keys() == honest.keys()
    assert max(float((there[home] - here[home]).abs().max()) for home in there) <= 1e-6
    assert max(float((honest[home] - here[home]).abs().max()) for home in there) > 1e-2


def test_an_unknown_attack_is_an_error_before_the_first_round(tmp_path: Path) -> None:
    with pytest.raises(Unknown, match="unknown attack 'backdor'; did you mean backdoor"):
        run_simulation(tmp_path, attack="backdor")
    with pytest.raises(ConfigError, match="positive number"):
        run_simulation(tmp_path, attack="backdoor:0")
    assert not any(tmp_path.iterdir())
