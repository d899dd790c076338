"""Coordinators and agents of this version together with those of earlier versions, which are built
from the history of the repository.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from coordinator.store.run_store import Store
from federated.wire.envelope import PROTOCOL
from tests.support.earlier_versions import (
    AT_PROTOCOL_2,
    AT_PROTOCOL_3,
    build_wheel,
    extract_commit,
    unpack_wheel,
)
from tests.support.processes import Running, Start, result, wait_for_words
from tests.support.shared_folders import share_folder
from tests.support.waiting import PATIENCE, eventually

pytestmark = [pytest.mark.processes, pytest.mark.broker, pytest.mark.slow]
RUN = ["start", "--name", "r", "--model", "mlp-small", "--format", "json"]
QUICK = ["train.epochs=1", "evaluate.devices=false", "fleet.wait=90"]
SETTINGS = [word for one in QUICK for word in ("--set", one)]
NOW = ""  # in the place of a commit: this version


def build_version(commit: str, folder: Path) -> None:
    """Build the wheel of a commit, and unpack it into a folder."""
    unpack_wheel(
        build_wheel(extract_commit(commit, folder / "source"), folder), folder / "installed"
    )


@pytest.fixture
def install(tmp_path: Path) -> Callable[[str], str]:
    """Return a function that builds the wheel of a commit, and returns where it is unpacked."""

    def build(commit: str) -> str:
        made = share_folder(commit, tmp_path.parent, partial(build_version, commit))
        return str(made / "installed")

    return build


class Versions:
    """Starts commands of this version, and of those before."""

    def __init__(self, start: Start, install: Callable[[str], str], broker: str) -> None:
        self.start, self.install, self.broker = start, install, broker

    def run(self, commit: str, module: str, *words: str) -> Running:
        # with another flag than that of COORDINATOR and AGENT, which are forked from this version
        command = [sys.executable, *(["-u"] if commit else []), "-m", f"{module}.cli", *words]
        path = {"PYTHONPATH": self.install(commit)} if commit else {}
        return self.start(*command, variables=path)

    def coordinate(self, commit: str, *more: str) -> Running:
        return self.run(commit, "coordinator", *RUN, "--broker", self.broker, *SETTINGS, *more)

    def join(self, commit: str, name: str, shard: str, wait: int = 120) -> Running:
        words = ["--broker", self.broker, "--name", name, "--wait", str(wait), "--format", "json"]
        data = ["--data", "digits", "--shard", shard, "--seed", "0"]
        return self.run(commit, "edge_agent", "join", *words, *data)


@pytest.fixture
def versions(start: Start, install: Callable[[str], str], broker: str) -> Versions:
    return Versions(start, install, broker)


def list_folded(folder: Path, number: int) -> list[str]:
    """Return the agents whose updates a round folded."""
    store = Store.open(folder / "runs", "r", read_only=True)
    found = [one.agent for one in store.read_entries(number) if one.outcome == "folded"]
    store.close()
    return sorted(found)


@dataclass
class Site:
    """A coordinator and its agents, each of which can be replaced by another version during the
    run. The coordinator runs in this folder.

    lives: all processes of each agent, in their order.
    """

    folder: Path
    versions: Versions
    coordinator: Running
    lives: dict[str, list[Running]] = field(default_factory=dict)

    def join(self, name: str, commit: str) -> None:
        """Start an agent, after its last process, if any, has left the run."""
        lives = self.lives.setdefault(name, [])
        if lives:
            lives[-1].send_signal(signal.SIGTERM)
            lives[-1].wait(PATIENCE)
        lives.append(self.versions.join(commit, name, f"{'abc'.index(name)}/3"))

    def coordinate(self, commit: str, rounds: int) -> None:
        """Replace the coordinator, and end the run after so many more rounds."""
        self.coordinator.send_signal(signal.SIGTERM)
        assert self.coordinator.wait(PATIENCE) == 130
        more = ["--resume", "--rounds", str(self.count_rounds() + rounds), "--min-agents", "2"]
        self.coordinator = self.versions.coordinate(commit, *more)

    def count_rounds(self) -> int:
        with closing(Store.open(self.folder / "runs", "r", read_only=True)) as store:
            return store.rounds_done

    def wait(self, *agents: str, rounds: int = 2) -> None:
        """Wait until so many rounds that began from now on have the updates of these agents."""
        first = self.count_rounds() + 2

        def seen() -> bool:
            time.sleep(0.5)  # reading takes long in a run of many rounds
            last = self.count_rounds()
            lists = [list_folded(self.folder, number) for number in range(first, last + 1)]
            return sum(set(agents) <= set(names) for names in lists) >= rounds

        assert eventually(lambda: seen() or self.coordinator.poll() is not None, 300)
        assert self.coordinator.poll() is None


def count_updates(agent: Running) -> int:
    """Return how many updates an agent knew to be accepted when it left the run."""
    told, _ = agent.communicate(timeout=PATIENCE)
    return int(json.loads(told.splitlines()[-1])["updates"])


def check_profiles(versions: Versions) -> None:
    """Check that a new coordinator shows the versions of old and new agents."""
    shown = versions.run(NOW, "coordinator", "devices", "r", "--format", "json")
    devices = {one["agent"]: one["profile"] for one in result(shown)["agents"]}
    found = {name: one["protocol"] for name, one in devices.items()}
    assert found == {"a": 3, "b": 3, "c": PROTOCOL}
    assert devices["a"]["software"] == ""
    assert devices["c"]["software"].startswith("edge-agent")


@pytest.mark.timeout(1800)  # nine processes start one after another
def test_a_fleet_is_upgraded_and_goes_back_while_rounds_go_on(
    tmp_path: Path, versions: Versions
) -> None:
    """Agents of both versions train in every step, each update that an agent knows to be accepted
    is in the model once, and no round is missing.
    """
    old = AT_PROTOCOL_3
    site = Site(
        tmp_path, versions, versions.coordinate(old, "--rounds", "5000", "--min-agents", "2")
    )
    for name, commit in {"a": old, "b": old, "c": NOW}.items():
        site.join(name, commit)
    assert wait_for_words(site.coordinator, tmp_path / "0.err", "round 2 of 5000")
    steps: list[tuple[str, int]] = [("coordinator old, agents a old, b old, c new", 1)]

    def proceed(step: str) -> None:
        site.wait("a", "b", "c")
        steps.append((step, site.count_rounds()))

    site.coordinate(NOW, 5000)
    proceed("coordinator new, agents a old, b old, c new")
    check_profiles(versions)
    for name in "ab":
        site.join(name, NOW)
    proceed("coordinator new, agents a new, b new, c new")
    site.join("b", old)
    proceed("coordinator new, agents a new, b old, c new")
    site.coordinate(old, 5000)
    proceed("coordinator old, agents a new, b old, c new")
    site.join("a", old)
    proceed("coordinator old, agents a old, b old, c new")
    site.coordinate(old, 2)
    last = result(site.coordinator)["rounds"]

    found = [list_folded(tmp_path, number) for number in range(1, last + 1)]
    told = {name: sum(map(count_updates, lives)) for name, lives in site.lives.items()}
    for step, rounds in steps:
        print(f"{step}: until round {rounds}")
    print(f"{last} rounds; updates that the agents delivered: {told}")
    assert all(found), "each round has an update"
    assert all(len(names) == len(set(names)) for names in found), "none counts twice"
    for name, lives in site.lives.items():
        # an agent that is stopped may leave before it learns that its last update was accepted
        unknown = sum(name in names for names in found) - told[name]
        assert 0 <= unknown < len(lives), f"{name}: none is lost"


@pytest.mark.parametrize(
    ("commit", "setting", "words"),
    [
        (AT_PROTOCOL_2, "", "the peer speaks protocol 3, this side 2: install the same version"),
        (AT_PROTOCOL_3, "http.listen=127.0.0.1:0", "protocol 4, and this device speaks 3: upgrade"),
    ],
)
def test_an_agent_that_is_too_old_learns_both_versions(
    tmp_path: Path, versions: Versions, commit: str, setting: str, words: str
) -> None:
    more = ["--set", setting] if setting else []
    coordinator = versions.coordinate(NOW, "--rounds", "2", "--min-agents", "1", *more)
    assert wait_for_words(coordinator, tmp_path / "0.err", "waiting: 0 of 1 agents")
    agent = versions.join(commit, "old", "0/1", wait=10)
    told, _ = agent.communicate(timeout=PATIENCE)
    assert agent.returncode != 0
    reason = json.loads(told.splitlines()[-1])["reason"] if told.strip() else ""
    assert words in (tmp_path / "1.err").read_text() + reason
