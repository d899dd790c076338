"""Orders of the agents' software on an in-memory broker, for a stored run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from coordinator import audit_log
from coordinator.access.certificate_authority import Authority
from coordinator.observe.round_records import Entry, RoundRecord
from coordinator.release.history import SoftwareHistory
from coordinator.release.history_file import HistoryFile
from coordinator.settings.config import Config, to_json
from coordinator.settings.service_tables import Broker
from coordinator.store.database import Facts
from coordinator.store.run_store import Store
from coordinator.upgrade.agent_upgrade import AgentUpgrade, upgrade_run
from coordinator.upgrade.upgrade_request import UpgradeRequest
from federated.errors import ConfigError, ExportError, FleetError, StoreError, Unknown, UsageError
from federated.wire import envelope, topics
from federated.wire.links.memory import MemoryBroker, MemoryLink
from federated.wire.release_messages import Installed, Software, SoftwareCard
from tests.support.scripted_agent import PROFILE

SHA, OTHER = "ab" * 32, "cd" * 32
NEW, NEWER = "0.3.0-abababab", "0.4.0-cdcdcdcd"


@dataclass
class Fleet:
    """The stored run `r` with the agents a to d, of which d does not follow."""

    store: Store
    upgrade: AgentUpgrade
    broker: MemoryBroker
    lines: list[str] = field(default_factory=list)

    def follow(self, **wanted: Any) -> dict[str, Any]:
        return self.upgrade.follow(UpgradeRequest("r", wait=0.0, **wanted))

    def card(self) -> SoftwareCard:
        found = envelope.decode(self.broker.retained[topics.release_card("r", "software")])
        assert isinstance(found, SoftwareCard)
        return found

    def report(self, agent: str, version: str = "", release: str = "0.2.0", **more: str) -> None:
        link = MemoryLink(self.broker, f"device-{agent}")
        said = envelope.encode(Installed(agent, version, release, **more))
        link.publish(topics.serving("r", agent, "software"), said, retain=True)
        link.close()

    def play(self, number: int, failed: str = "", **releases: str) -> None:
        """Store a round in which each agent answers, but those that fail."""
        profiles = {
            name: replace(
                PROFILE,
                agent=name,
                labels=("eu",) if name in "ab" else (),
                software=f"edge-agent {releases.get(name, '0.2.0')}",
            )
            for name in "abcd"
        }
        self.store.agents.write_decisions(number, {}, profiles)
        entries = [Entry(name, "w1", "late" if name in failed else "folded") for name in "abcd"]
        self.store.save(RoundRecord(number, 1.0, {"w": torch.zeros(1)}, {}, entries))


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    store, broker, lines = Store.create(tmp_path, "r"), MemoryBroker(), list[str]()
    file: HistoryFile[Software, Installed] = HistoryFile(
        tmp_path / "r" / "upgrades", "r", SoftwareHistory
    )
    link = MemoryLink(broker, "coordinator")
    made = Fleet(store, AgentUpgrade(link, file, tmp_path, lines.append), broker, lines)
    made.play(1)
    for name in "abc":
        made.report(name)
    made.follow(status=True)
    yield made
    store.close()


def hear(fleet: Fleet) -> None:
    """Take all messages at the broker."""
    for _ in range(10):
        fleet.upgrade._receive(0.01)


def test_a_version_is_wanted_on_the_canary_first_and_then_on_all(fleet: Fleet) -> None:
    hear(fleet)
    fleet.follow(version="0.3.0", sha256=SHA, share="50%")
    card = fleet.card()
    assert card.canary == Software("0.3.0", SHA, 1)
    assert (card.stable, len(card.agents), "d" in card.agents) == (None, 2, False)
    first, second = card.agents
    with pytest.raises(ExportError, match=f"not installed yet by {first}, {second}"):
        fleet.follow(promote=True)
    for name in card.agents:
        fleet.report(name, NEW, "0.3.0")
    hear(fleet)
    with pytest.raises(ExportError, match="installed it, but did not join the run with it"):
        fleet.follow(promote=True)
    fleet.play(2, **dict.fromkeys(card.agents, "0.3.0"))
    with pytest.raises(ExportError, match="none of 2 agents answered a task yet"):
        fleet.follow(promote=True)
    fleet.play(3, failed=first)
    fleet.play(4, **dict.fromkeys(card.agents, "0.3.0"))
    with pytest.raises(ExportError, match="1 of 4 tasks failed, before 0 of 2"):
        fleet.follow(promote=True)
    result = fleet.follow(promote=True, force=True)
    assert (result["stable"], result["canary"]) == (NEW, "")
    assert fleet.card() == SoftwareCard("r", Software("0.3.0", SHA, 1))
    states = {row["agent"]: row["state"] for row in result["reports"]}
    assert states == {name: "installed" if name in card.agents else "waiting" for name in "abc"}
    assert result["silent"] == ["d"]


def test_a_refused_version_is_taken_back_and_the_operator_told(fleet: Fleet) -> None:
    fleet.report("a", "", "0.2.0", refused=NEW, reason="its checks failed")
    hear(fleet)
    result = fleet.follow(version="0.3.0", sha256=SHA, share="a", promote=True)
    assert result["error"] == f"version {NEW} was rolled back: a refused it: its checks failed"
    assert fleet.card() == SoftwareCard("r", withdrawn=NEW)
    with pytest.raises(ExportError, match=r"a refused it: its checks failed; use --force"):
        fleet.follow(version="0.3.0", sha256=SHA)
    assert fleet.follow(version="0.3.0", sha256=SHA, force=True)["stable"] == NEW
    assert fleet.card() == SoftwareCard("r", Software("0.3.0", SHA, 1))


def test_an_order_is_for_the_agents_with_a_label_and_can_be_rolled_back(fleet: Fleet) -> None:
    hear(fleet)
    fleet.follow(version="0.3.0", sha256=SHA)
    with pytest.raises(FleetError, match="no agent of the run has label asia"):
        fleet.follow(version="0.4.0", sha256=OTHER, labels=("asia",))
    with pytest.raises(ConfigError, match=r"--group: .* this run has none: .*--tls"):
        fleet.follow(version="0.4.0", sha256=OTHER, groups=("eu",))
    fleet.follow(version="0.4.0", sha256=OTHER, labels=("eu",))
    assert fleet.card().stable == Software("0.4.0", OTHER, 1, ("a", "b"))
    fleet.follow(rollback=True)
    assert fleet.card() == SoftwareCard("r", Software("0.3.0", SHA, 1), withdrawn=NEWER)
    assert f"rolled back version {NEWER}; agents are told to install {NEW}" in fleet.lines


def test_an_order_is_for_the_agents_of_groups_that_the_coordinator_keeps(
    fleet: Fleet, tmp_path: Path
) -> None:
    wanted = Broker(tls=True, pki=str(tmp_path / "pki"))
    fleet.store.write_facts(Facts(to_json(Config(broker=wanted)), defaults={}))
    with closing(Authority(tmp_path / "pki")) as authority, authority.registry.transaction():
        for name, groups in (("b", ("eu", "lab")), ("d", ("eu",)), ("x", ("eu", "asia"))):
            authority.registry.register(name)
            authority.registry.set_groups(name, groups)
    hear(fleet)
    fleet.follow(version="0.4.0", sha256=OTHER, groups=("eu",))
    assert fleet.card().stable == Software("0.4.0", OTHER, 1, ("b", "d"))
    fleet.follow(version="0.3.0", sha256=SHA, groups=("eu", "lab"), labels=("eu",), share="100%")
    assert fleet.card().canary == Software("0.3.0", SHA, 1, ("b",))
    assert fleet.card().agents == ("b",)
    with pytest.raises(FleetError, match="no agent of the run has group asia"):
        fleet.follow(version="0.4.0", sha256=OTHER, groups=("asia",))
    with pytest.raises(Unknown, match="group"):
        fleet.follow(version="0.4.0", sha256=OTHER, groups=("europe",))


def test_only_devices_that_follow_are_drawn(fleet: Fleet) -> None:
    fleet.upgrade.seen.reports.clear()
    with pytest.raises(FleetError, match="no device of these agents follows"):
        fleet.follow(version="0.3.0", sha256=SHA, share="1")
    with pytest.raises(Unknown, match="e"):
        fleet.follow(version="0.3.0", sha256=SHA, share="a,e")
    fleet.follow(version="0.3.0", sha256=SHA, share="d")
    assert fleet.card().agents == ("d",), "named ones need no report"


def test_the_card_is_published_again(fleet: Fleet) -> None:
    fleet.follow(version="0.3.0", sha256=SHA)
    fleet.broker.retained.clear()
    fleet.follow()
    assert fleet.card().stable == Software("0.3.0", SHA, 1)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"version": "0.3.0"}, "VERSION and --sha256"),
        ({"version": "../x", "sha256": SHA}, "expected a VERSION such as 0.3.0"),
        ({"version": "0.3.0", "sha256": "12"}, "64 hexadecimal digits"),
        ({"share": "10%"}, "expected the VERSION that the agents"),
        ({"groups": ("eu",)}, "--group: expected the VERSION"),
        ({"version": "0.3.0", "sha256": SHA, "promote": True}, "expected --canary, too"),
        ({"version": "0.3.0", "sha256": SHA, "rollback": True}, "cannot be combined"),
        ({"wait": -1.0}, "--wait: expected at least 0"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    fleet: Fleet, tmp_path: Path, wanted: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        upgrade_run(UpgradeRequest("r", **wanted), tmp_path, print)
    assert not audit_log.read(tmp_path / "r" / "run.sqlite")[0]


def test_an_unknown_run_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        upgrade_run(UpgradeRequest("gone"), tmp_path, print)
