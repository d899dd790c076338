"""Whole runs whose devices download encoded weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from coordinator.run import runner
from coordinator.run.run_preparation import prepare
from coordinator.store.run_store import Store
from coordinator.trust import configured_defences
from federated.errors import ConfigError
from federated.task import Update
from federated.wire.codecs.weights import list_weights_codecs
from federated.wire.links.memory import MemoryBroker, MemoryLink
from models.extension_lookup import NAMED
from tests.support.memory_federation import Member, digits, federate, make_config, run_members
from tests.support.restarted_coordinator import Fuse, Killed

FEDAVG = {"method.name": "fedavg", "train.norm": "tracked", "model.name": "mlp", "train.steps": 2}
LOSSY = [name for name in list_weights_codecs() if name != "raw"]
Versions = dict[str, set[str]]


def read(folder: Path, number: int = 1) -> dict[str, torch.Tensor]:
    with closing(Store.open(folder / "runs", "test", read_only=True)) as store:
        return store.read_checkpoint(number)[0]


def remember(versions: Versions, update: Update) -> Update:
    versions[update.agent].add(update.version)
    return update


def make_members(
    of: int, versions: Versions, change: Callable[[Update], Update] = lambda update: update
) -> list[Member]:
    """Return agents that record the version of the weights of each of their updates."""

    def both(update: Update) -> Update:
        return change(remember(versions, update))

    return [Member(f"a{index}", digits(index, of), change=both) for index in range(of)]


@pytest.mark.parametrize("codec", LOSSY)
def test_downloads_halve_and_the_weights_differ_by_rounding_only(
    tmp_path: Path, codec: str
) -> None:
    found, down = {}, {}
    for name in ("raw", codec):
        versions = defaultdict[str, set[str]](set)
        given = {**FEDAVG, "wire.weights_codec": name}
        made = federate(tmp_path / name, make_members(2, versions), given)
        found[name], down[name] = read(tmp_path / name), made.result.bytes_down
        assert all(
            one.endswith(f"-{codec}") is (name == codec)
            for some in versions.values()
            for one in some
        )
    # half the bytes of each version once, for both agents: to train, and to evaluate
    size = sum(value.nbytes for value in found["raw"].values())
    assert down["raw"] - down[codec] >= 0.9 * size
    for home, value in found["raw"].items():
        assert torch.allclose(found[codec][home], value, rtol=0.01, atol=2e-3), home
    assert any(not torch.equal(value, found[codec][home]) for home, value in found["raw"].items())


def test_an_agent_that_cannot_decode_weights_gets_raw_ones(tmp_path: Path) -> None:
    """An agent of an earlier version states nothing."""
    versions = defaultdict[str, set[str]](set)
    members = make_members(3, versions)
    members[1].weights_codecs = ("raw",)
    made = federate(tmp_path, members, {**FEDAVG, "rounds": 2, "wire.weights_codec": "fp16"})
    assert made.result.rounds == 2
    trained = {agent: {"r0", "r1"} & some for agent, some in versions.items()}
    encoded = {agent: {"r0-fp16", "r1-fp16"} & some for agent, some in versions.items()}
    assert [len(trained[f"a{i}"]) for i in range(3)] == [0, 2, 0]
    assert [len(encoded[f"a{i}"]) for i in range(3)] == [2, 0, 2]
    with closing(Store.open(tmp_path / "runs", "test", read_only=True)) as store:
        for number in (1, 2):
            entries = store.read_entries(number)
            assert {(one.agent, one.outcome) for one in entries} == {
                (f"a{i}", "folded") for i in range(3)
            }


UNMOVED = {
    "train.lr": 1e-30,
    "train.steps": 1,
    "train.batch": 8,
    "rounds": 2,
    "evaluate.every": 2,
    "evaluate.between": False,
    "evaluate.agents": 1,
    "evaluate.devices": False,
    "evaluate.examples": 8,
}


@pytest.mark.parametrize(
    ("method", "updates"),
    [
        ("fedavg", "raw"),
        ("fedfa", "fp16"),
        ("fedrolex", "raw"),
        ("inco-avg", "raw"),
        ("nefl-wd", "fp16"),
        ("scaffold", "raw"),
    ],
)
def test_rounding_does_not_enter_the_model(tmp_path: Path, method: str, updates: str) -> None:
    """Agents that do not change what they receive leave the weights as exact as raw downloads do,
    also after two rounds.
    """
    found = {}
    for name in ("raw", "fp16"):
        wire = {"wire.codec": updates, "wire.weights_codec": name}
        members = [Member(f"a{index}", digits(index, 2)) for index in range(2)]
        given = {**UNMOVED, **wire, "method.name": method, "model.name": "resnet-small"}
        federate(tmp_path / name, members, given)
        found[name] = read(tmp_path / name, 2)
    assert found["raw"].keys() == found["fp16"].keys()
    for home, value in found["raw"].items():
        # statistics and variates are measured with rounded weights
        if not home.startswith(("stats/", "c/")) and "running_" not in home:
            assert torch.allclose(found["fp16"][home], value, rtol=1e-6, atol=1e-12), home


@pytest.mark.parametrize(
    "more",
    [
        {"robust.rule": "median"},
        {"robust.rule": "clip"},
        {"fleet.mode": "buffered", "fleet.buffer": 1, "rounds": 3},
    ],
)
def test_rules_and_late_updates_start_from_the_exact_weights(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    """As above. A late update is compared with the weights of its own round."""
    found = {}
    for name in ("raw", "fp16"):
        members = [Member(f"a{index}", digits(index, 3)) for index in range(3)]
        given = {**FEDAVG, **UNMOVED, **more, "wire.weights_codec": name}
        federate(tmp_path / name, members, given)
        found[name] = read(tmp_path / name, int(given["rounds"]))
    for home, value in found["raw"].items():
        if "running" not in home:
            assert torch.allclose(found["fp16"][home], value, rtol=1e-6, atol=1e-12), home


@pytest.mark.parametrize(("before", "after"), [("fp16", "raw"), ("raw", "fp16")])
def test_a_resumed_round_keeps_the_weights_of_its_tasks(
    tmp_path: Path, before: str, after: str
) -> None:
    """A coordinator dies when it folds the first update, and is resumed with another codec of the
    weights: the round in progress ends as if it had not changed.
    """
    broker, fuse, versions = MemoryBroker(), Fuse(1), defaultdict[str, set[str]](set)
    member = Member("a0", digits(0, 1), change=partial(remember, versions))
    folder = tmp_path / "resumed"
    with run_members([member], broker, folder), pytest.MonkeyPatch.context() as patch:
        patch.setattr(configured_defences, "fold", fuse.around(configured_defences.fold))
        for name, end in ((before, pytest.raises(Killed)), (after, nullcontext())):
            config = make_config({**FEDAVG, "rounds": 2, "wire.weights_codec": name})
            prepared = prepare(config, folder / "runs", resume=name == after)
            link = MemoryLink(broker, "coordinator")
            with closing(prepared), closing(link), end:
                runner.run(prepared, link, lambda event: None)
            NAMED.clear()
    assert {"r0-fp16" if before == "fp16" else "r0", "r1-fp16" if after == "fp16" else "r1"} <= (
        versions["a0"]
    )
    assert ("r0" if before == "fp16" else "r0-fp16") not in versions["a0"]
    federate(
        tmp_path / "whole", [Member("a0", digits(0, 1))], {**FEDAVG, "wire.weights_codec": before}
    )
    found, expected = read(folder), read(tmp_path / "whole")
    assert all(
        torch.equal(value, expected[home])
        for home, value in found.items()
        if not home.startswith("stats/")
    )


def test_other_codecs_of_weights_are_refused() -> None:
    with pytest.raises(ConfigError, match="weights_codec"):
        make_config({**FEDAVG, "wire.weights_codec": "int8"})
