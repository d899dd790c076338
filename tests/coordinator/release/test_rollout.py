"""Releases, canaries and rollbacks on an in-memory broker, with agents that follow and report."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from coordinator.release import canary
from coordinator.release.archive import Archive
from coordinator.release.release_request import ReleaseRequest
from coordinator.release.rollout import Rollout, release_run
from edge_agent.releases.assigned_release import Subscription
from edge_agent.releases.release_follower import Follower
from export import release_reader
from federated.errors import ExportError, FleetError, LinkError, StoreError, Unknown, UsageError
from federated.wire import envelope, topics
from federated.wire.links.memory import MemoryBroker, MemoryLink
from federated.wire.release_messages import Release, Serving
from tests.support.handmade_releases import toy
from tests.support.terminal import run_on_terminal
from tests.support.waiting import eventually

WAITING = """
import pathlib
from coordinator.release.archive import Archive
from coordinator.release.release_request import ReleaseRequest
from coordinator.release.rollout import Rollout
from edge_agent.releases.assigned_release import Subscription
from edge_agent.releases.release_follower import Follower
from export import release_reader
from federated.wire.links.memory import MemoryBroker, MemoryLink
from federated.wire.release_messages import Serving

folder, broker = pathlib.Path.cwd(), MemoryBroker()
version = release_reader.read_version(folder / "made")
agent = Follower(MemoryLink(broker, "d0"), Subscription("spring", "d0", None, folder / "d0"))
agent.report(Serving("d0", "s", version, "w1-d1"))
archive = Archive(folder / "runs", "spring")
rollout = Rollout(MemoryLink(broker, "c"), archive, {"d0": "w1-d1", "d1": "w1-d1"}, 7, print)
rollout.follow(ReleaseRequest("spring", "memory", folder / "made", share="d0,d1", wait=30.0))
"""
TRAINED = {f"d{i}": "w1-d1" for i in range(4)}
ORDER = ("w0.25-d1", "w0.5-d1", "w1-d1")


@dataclass
class Device:
    """An agent that serves each release, and reports numbers chosen by the test.

    refuse: versions that fail its self-test.
    """

    name: str
    link: MemoryLink
    store: Path
    p90: float = 0.010
    refuse: set[str] = field(default_factory=set)
    version: str = ""
    stop: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None

    def live(self) -> None:
        try:
            follower = Follower(self.link, Subscription("spring", self.name, None, self.store))
            while not self.stop.is_set():
                arrival = follower.turn(0.02)
                if arrival is None:
                    continue
                if arrival.version in self.refuse:
                    follower.report(
                        Serving(
                            self.name,
                            "s",
                            self.version,
                            "w1-d1",
                            refused=arrival.version,
                            reason="the self-test fails",
                        )
                    )
                    continue
                release_reader.read(arrival.folder, arrival.submodel)
                self.version = arrival.version
                follower.report(
                    Serving(
                        self.name,
                        "s",
                        self.version,
                        arrival.submodel,
                        "fp32",
                        "cpu",
                        self.p90,
                        self.p90,
                    )
                )
        except BaseException as error:
            self.error = error


@dataclass
class Fleet:
    """Four devices at a broker, and releases of run `spring` made by the test."""

    broker: MemoryBroker
    folder: Path
    devices: dict[str, Device]
    lines: list[str] = field(default_factory=list)
    trained: dict[str, str] = field(default_factory=lambda: dict(TRAINED))

    def make_release(self, letter: str) -> Path:
        return toy(self.folder / f"made-{letter}", letter.encode() * 9000)

    def follow(self, **wanted: Any) -> dict[str, Any]:
        link = MemoryLink(self.broker, "coordinator")
        try:
            rollout = Rollout(
                link,
                Archive(self.folder / "runs", "spring"),
                self.trained,
                7,
                self.lines.append,
                ORDER,
            )
            return rollout.follow(ReleaseRequest("spring", "memory", **wanted))
        finally:
            link.close()

    def card(self) -> Release:
        found = envelope.decode(self.broker.retained[topics.release_card("spring")])
        assert isinstance(found, Release)
        return found

    def versions(self) -> set[str]:
        """Return the versions whose files are retained."""
        return {
            place.version
            for topic in self.broker.retained
            if (place := topics.parse(topic)) is not None and place.version
        }


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setattr("export.broker_publishing.SETTLE", 0.1)
    (tmp_path / "runs" / "spring").mkdir(parents=True)
    broker = MemoryBroker(max_payload=8192)
    devices = {name: Device(name, MemoryLink(broker, name), tmp_path / name) for name in TRAINED}
    threads = [threading.Thread(target=device.live, daemon=True) for device in devices.values()]
    for thread in threads:
        thread.start()
    yield Fleet(broker, tmp_path, devices)
    for device in devices.values():
        device.stop.set()
    for thread in threads:
        thread.join(60)
    assert not [device.error for device in devices.values() if device.error is not None]


def test_a_release_reaches_all_agents(fleet: Fleet) -> None:
    one = fleet.make_release("1")
    fleet.follow(bundle=one)
    result = fleet.follow(status=True)
    name = release_reader.read_version(one)
    assert result["stable"] == name
    assert result["versions"][name]["round"] == 7
    told = fleet.follow(bundle=one, wait=10.0)
    assert {row["agent"]: row["version"] for row in told["reports"]} == dict.fromkeys(TRAINED, name)
    assert any("d0" in line and "10.00" in line for line in fleet.lines), (
        "the table, in milliseconds"
    )
    assert not any("other releases than" in line for line in fleet.lines)


def stable(fleet: Fleet, letter: str) -> str:
    """Release to all agents, and wait until they have it."""
    folder = fleet.make_release(letter)
    fleet.follow(bundle=folder)
    name = release_reader.read_version(folder)
    eventually(lambda: all(device.version == name for device in fleet.devices.values()))
    return name


def test_a_canary_goes_to_a_share_and_is_promoted(fleet: Fleet) -> None:
    old = stable(fleet, "1")
    new = fleet.make_release("2")
    tried = fleet.follow(bundle=new, share="30%", wait=10.0)
    name = release_reader.read_version(new)
    assert tried["agents"] == canary.draw_agents("30%", name, sorted(TRAINED))
    assert len(tried["agents"]) == 2
    assert {row["agent"] for row in tried["reports"] if row["version"] == name} == set(
        tried["agents"]
    )
    assert {row["agent"] for row in tried["reports"] if row["version"] == old} == set(
        TRAINED
    ) - set(tried["agents"])
    promoted = fleet.follow(promote=True)
    assert (promoted["stable"], promoted["previous"], promoted["canary"]) == (name, old, "")
    serving = {row["agent"]: row["version"] for row in promoted["reports"]}
    assert serving == dict.fromkeys(TRAINED, name), "it waits until all agents have it"
    eventually(lambda: all(device.version == name for device in fleet.devices.values()))
    assert fleet.versions() == {name, old}


def test_a_slow_canary_is_not_promoted_unless_forced(fleet: Fleet) -> None:
    stable(fleet, "1")
    fleet.devices["d1"].p90 = 0.013
    new = fleet.make_release("2")
    fleet.follow(bundle=new, share="d1", wait=10.0)
    with pytest.raises(
        ExportError, match=r"is not promoted .*\n  - p90 is 1.30 times that of the stable version"
    ):
        fleet.follow(promote=True)
    assert fleet.card().canary is not None, "the canary continues until it is promoted or withdrawn"
    forced = fleet.follow(promote=True, force=True)
    assert forced["stable"] == release_reader.read_version(new)
    assert forced["last"]["reasons"] == (
        "p90 is 1.30 times that of the stable version, +3.00 ms (median of 1 agent)",
    )


def test_one_command_rolls_a_refused_canary_back(fleet: Fleet) -> None:
    old = stable(fleet, "1")
    bad = fleet.make_release("2")
    name = release_reader.read_version(bad)
    fleet.devices["d2"].refuse.add(name)
    result = fleet.follow(bundle=bad, share="d2,d3", promote=True, wait=10.0)
    assert result["error"] == f"version {name} was rolled back: d2 refused it: the self-test fails"
    assert (result["stable"], result["canary"]) == (old, "")
    assert fleet.card() == Release("spring", fleet.card().stable)
    eventually(lambda: {device.version for device in fleet.devices.values()} == {old})
    assert fleet.versions() == {old}
    with pytest.raises(
        ExportError,
        match=r"was rolled back at .*: d2 refused it: the self-test fails; .*--force",
    ):
        fleet.follow(bundle=bad)


def test_one_command_promotes_a_good_canary(fleet: Fleet) -> None:
    old = stable(fleet, "1")
    new = fleet.make_release("2")
    result = fleet.follow(bundle=new, share="25%", promote=True, wait=10.0)
    assert "error" not in result
    assert (result["stable"], result["previous"]) == (release_reader.read_version(new), old)
    assert result["verdict"]["reasons"] == ()


def test_a_terminal_shows_how_many_agents_have_reported(tmp_path: Path) -> None:
    (tmp_path / "runs" / "spring").mkdir(parents=True)
    toy(tmp_path / "made", b"1" * 9000)
    (tmp_path / "waiting.py").write_text(WAITING)
    text = run_on_terminal(["waiting"], tmp_path, until="1/2")
    assert "waiting for the reports of agents" in text


def test_a_canary_without_reports_in_time_is_rolled_back(fleet: Fleet) -> None:
    old = stable(fleet, "1")
    for device in fleet.devices.values():
        device.stop.set()
    result = fleet.follow(bundle=fleet.make_release("2"), share="1", promote=True, wait=0.3)
    assert "no report from any of its 1 agent" in result["error"]
    assert result["stable"] == old


def test_a_rollback_restores_the_previous_release(fleet: Fleet) -> None:
    one, two = stable(fleet, "1"), stable(fleet, "2")
    result = fleet.follow(rollback=True)
    assert (result["stable"], result["previous"]) == (one, "")
    eventually(lambda: {device.version for device in fleet.devices.values()} == {one})
    assert fleet.versions() == {one}
    assert not (fleet.folder / "runs" / "spring" / "releases" / two).exists()
    with pytest.raises(
        ExportError, match=f"nothing to roll back to: version {one} is the only one"
    ):
        fleet.follow(rollback=True)


def test_only_the_last_two_releases_are_kept(fleet: Fleet) -> None:
    names = [stable(fleet, letter) for letter in "123"]
    assert fleet.versions() == set(names[1:])


def test_the_releases_are_published_again_to_a_broker_that_lost_them(fleet: Fleet) -> None:
    stable(fleet, "1")
    fleet.follow(bundle=fleet.make_release("2"), share="1", wait=10.0)
    before = {
        topic: payload for topic, payload in fleet.broker.retained.items() if "/release/" in topic
    }
    fleet.broker.retained.clear()
    fleet.follow(status=True)
    assert any("the broker has other releases" in line for line in fleet.lines)
    fleet.follow()
    assert any("nothing new: round 7 is already version" in line for line in fleet.lines)
    after = {
        topic: payload for topic, payload in fleet.broker.retained.items() if "/release/" in topic
    }
    assert after == before


def test_an_interrupted_release_is_completed_when_the_command_is_repeated(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = stable(fleet, "1")
    new = fleet.make_release("2")

    def cut(*given: object) -> None:
        raise LinkError("the link is down")

    monkeypatch.setattr("coordinator.release.rollout.publish", cut)
    with pytest.raises(LinkError):
        fleet.follow(bundle=new, share="1", wait=10.0)
    monkeypatch.undo()
    status = fleet.follow(status=True)
    assert (status["stable"], status["canary"]) == (old, "")
    assert fleet.follow(bundle=new, share="1", wait=10.0)["canary"] == release_reader.read_version(
        new
    )


def test_a_damaged_release_changes_nothing(fleet: Fleet) -> None:
    old = stable(fleet, "1")
    bad = fleet.make_release("2")
    (bad / "w1-d1.onnx").write_bytes((bad / "w1-d1.onnx").read_bytes()[:-1] + b"x")
    retained = dict(fleet.broker.retained)
    with pytest.raises(ExportError, match="expected sha256"):
        fleet.follow(bundle=bad)
    assert fleet.broker.retained == retained
    assert fleet.follow(status=True)["stable"] == old


def test_a_release_of_another_run_is_refused(fleet: Fleet) -> None:
    link = MemoryLink(fleet.broker, "coordinator")
    (fleet.folder / "runs" / "autumn").mkdir()
    rollout = Rollout(
        link,
        Archive(fleet.folder / "runs", "autumn"),
        {},
        7,
        fleet.lines.append,
    )
    with pytest.raises(
        ExportError, match="expected a release of run 'autumn', found one of 'spring'"
    ):
        rollout.follow(ReleaseRequest("autumn", "memory", bundle=fleet.make_release("1")))


def test_a_missing_canary_or_agent_is_an_error(fleet: Fleet) -> None:
    with pytest.raises(ExportError, match="no canary to promote"):
        fleet.follow(promote=True)
    link = MemoryLink(MemoryBroker(), "coordinator")
    rollout = Rollout(
        link,
        Archive(fleet.folder / "runs", "spring"),
        {},
        7,
        fleet.lines.append,
    )
    with pytest.raises(FleetError, match="cannot draw a canary"):
        rollout.follow(
            ReleaseRequest("spring", "memory", bundle=fleet.make_release("1"), share="10%")
        )


@pytest.mark.parametrize("share", ["0%", "9", "nobody", "10 %"])
def test_an_invalid_share_is_refused_before_an_export(
    fleet: Fleet, share: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("it was exported")

    stable(fleet, "1")
    monkeypatch.setattr("coordinator.release.export_run.write_release", never)
    with pytest.raises((UsageError, Unknown)):
        fleet.follow(share=share, force=True)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"rollback": True, "promote": True, "broker": "h"}, "--rollback and --status cannot"),
        ({"status": True, "share": "1"}, "--rollback and --status cannot"),
        ({"rollback": True, "bundle": Path("x"), "broker": "h"}, "--rollback and --status cannot"),
        (
            {"promote": True, "bundle": Path("x"), "broker": "h"},
            "--promote promotes the current canary",
        ),
        ({"bundle": Path("x"), "inputs": Path("y"), "broker": "h"}, "--bundle and --inputs cannot"),
        ({"share": "101%", "broker": "h"}, "--canary: expected a percentage"),
        ({"share": "0", "broker": "h"}, "--canary: expected a percentage"),
        ({"wait": -1.0, "broker": "h"}, "--wait: expected at least 0 seconds, found -1"),
    ],
)
def test_conflicting_flags_are_usage_errors(
    tmp_path: Path, wanted: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        release_run(ReleaseRequest("spring", **wanted), tmp_path, print)


def test_a_missing_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no run 'spring'"):
        release_run(ReleaseRequest("spring", status=True), tmp_path, print)


def release_submodels(fleet: Fleet, submodels: tuple[str, ...]) -> str:
    """Release a version of these submodels to all."""
    made = toy(fleet.folder / f"made-{len(submodels)}", b"3" * 9000, submodels=submodels)
    fleet.follow(bundle=made)
    return release_reader.read_version(made)


def test_a_rollback_assigns_submodels_to_agents_whose_own_the_old_version_lacks(
    fleet: Fleet,
) -> None:
    fleet.trained = {"d0": "w0.25-d1", "d1": "w0.5-d1"}
    old = release_submodels(fleet, ORDER[:2])
    fleet.trained = dict(TRAINED)
    new = release_submodels(fleet, ORDER)
    eventually(lambda: fleet.devices["d2"].version == new)
    fleet.lines.clear()
    result = fleet.follow(rollback=True)
    assert "error" not in result
    served = {row["agent"]: (row["version"], row["submodel"]) for row in result["reports"]}
    assert served["d0"] == (old, "w0.25-d1"), "as before"
    assert served["d2"] == (old, "w0.5-d1"), "the largest one up to its own"
    assert (
        f"version {old} named no submodel for d2: it gets w0.5-d1, the largest one that is not "
        "larger than its w1-d1"
    ) in fleet.lines
    assert f"4 of 4 agents reported that they serve version {old}" in fleet.lines


def test_a_rollback_that_an_agent_refuses_is_an_error(fleet: Fleet) -> None:
    old, new = stable(fleet, "1"), stable(fleet, "2")
    fleet.devices["d1"].refuse.add(old)
    result = fleet.follow(rollback=True)
    assert result["error"] == (
        f"version {old} is released, but d1 refused it and serves {new}: the self-test fails"
    )
    assert f"rolled back version {new}; agents are told to serve {old}" in fleet.lines
    assert f"3 of 4 agents reported that they serve version {old}" in fleet.lines


def test_a_release_is_an_error_only_if_all_agents_refuse_it(fleet: Fleet) -> None:
    stable(fleet, "1")
    bad = fleet.make_release("2")
    name = release_reader.read_version(bad)
    fleet.devices["d1"].refuse.add(name)
    assert "error" not in fleet.follow(bundle=bad)
    worse = fleet.make_release("3")
    for device in fleet.devices.values():
        device.refuse.add(release_reader.read_version(worse))
    assert "d0 refused it and serves" in fleet.follow(bundle=worse)["error"]


def test_a_release_tells_which_agents_did_not_report(fleet: Fleet) -> None:
    stable(fleet, "1")
    fleet.devices["d3"].stop.set()
    fleet.lines.clear()
    made = fleet.make_release("2")
    assert "error" not in fleet.follow(bundle=made, wait=2.0)
    assert (
        f"3 of 4 agents reported that they serve version {release_reader.read_version(made)}; "
        "no report on it yet from d3"
    ) in fleet.lines


def test_a_canary_of_the_stable_version_is_refused_before_anything_is_said(fleet: Fleet) -> None:
    name = stable(fleet, "1")
    fleet.lines.clear()
    with pytest.raises(ExportError, match=f"version {name} .* is already stable"):
        fleet.follow(share="1")
    assert not any("releasing" in line for line in fleet.lines)
