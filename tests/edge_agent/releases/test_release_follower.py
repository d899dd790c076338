"""An agent follows releases: it downloads its version and reports what it serves."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.releases.assigned_release import Arrival, Subscription
from edge_agent.releases.release_follower import Follower
from export import release_reader
from export.broker_publishing import announce, describe_version, publish, withdraw
from federated.errors import FleetError
from federated.wire import envelope, messages, topics
from federated.wire.link import Delivery
from federated.wire.links.memory import MemoryBroker, MemoryLink
from federated.wire.release_messages import Release, Serving, Version
from tests.support.handmade_releases import Clock, toy

ASSIGNED = {"pi": "w1-d1"}


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker(max_payload=8192)


@pytest.fixture
def make(tmp_path: Path, broker: MemoryBroker) -> Callable[[str], Version]:
    """Make and publish the files of a version; the test publishes the card."""

    def make_version(padding: str) -> Version:
        folder = toy(tmp_path / f"made-{padding}", padding.encode() * 9000)
        publish(MemoryLink(broker, "coordinator"), "spring", folder, {})
        return describe_version(folder, "spring", ASSIGNED)

    return make_version


def card(
    broker: MemoryBroker, stable: Version | None, canary: Version | None = None, *agents: str
) -> None:
    announce(MemoryLink(broker, "coordinator"), Release("spring", stable, canary, agents))


def follower(
    broker: MemoryBroker,
    store: Path,
    name: str = "pi",
    run: str | None = "spring",
    submodel: str | None = None,
    clock: Clock | None = None,
) -> Follower:
    return Follower(
        MemoryLink(broker, name),
        Subscription(run, name, submodel, store, "s1"),
        clock=clock or time.monotonic,
    )


def read_report(broker: MemoryBroker, agent: str = "pi") -> Serving:
    found = envelope.decode(broker.retained[topics.serving("spring", agent)])
    assert isinstance(found, Serving)
    return found


def serve(f: Follower, version: str, **more: object) -> None:
    f.report(
        replace(
            Serving("pi", "s1", version, "w1-d1", "fp32", "CPUExecutionProvider", 0.001, 0.002),
            **more,
        )
    )  # type: ignore[arg-type]


def test_version_arrives_once_with_own_files_only(
    broker: MemoryBroker, make: Callable[[str], Version], tmp_path: Path
) -> None:
    f = follower(broker, tmp_path / "store")
    assert f.turn(0.3) is None
    one = make("1")
    card(broker, one)
    assert f.turn(9) == Arrival(one.name, tmp_path / "store" / "spring" / one.name, "w1-d1", False)
    assert release_reader.read(tmp_path / "store" / "spring" / one.name, "w1-d1").round == 7
    card(broker, one)
    assert f.turn(0.3) is None


def test_canary_arrives_at_its_agents_and_is_withdrawn(
    broker: MemoryBroker, make: Callable[[str], Version], tmp_path: Path
) -> None:
    one, two = make("1"), make("2")
    card(broker, one, two, "pi")
    pi, tv = (
        follower(broker, tmp_path / "pi"),
        follower(broker, tmp_path / "tv", "tv", submodel="w1-d1"),
    )
    first, other = pi.turn(9), tv.turn(9)
    assert first is not None
    assert other is not None
    assert (first.version, first.canary) == (two.name, True)
    assert (other.version, other.canary) == (one.name, False)
    card(broker, one)
    back = pi.turn(9)
    assert back is not None
    assert (back.version, back.canary) == (one.name, False)
    assert tv.turn(0.3) is None
    card(broker, two)
    again, promoted = pi.turn(9), tv.turn(9)
    assert again is not None
    assert promoted is not None
    assert again.version == promoted.version == two.name


def test_a_promoted_canary_does_not_arrive_a_second_time(
    broker: MemoryBroker, make: Callable[[str], Version], tmp_path: Path
) -> None:
    one, two = make("1"), make("2")
    card(broker, one, two, "pi")
    f = follower(broker, tmp_path)
    assert f.turn(9) is not None
    card(broker, two)
    assert f.turn(0.3) is None


def test_newer_version_replaces_the_download(
    broker: MemoryBroker, make: Callable[[str], Version], tmp_path: Path
) -> None:
    one, two = make("1"), make("2")
    published = False

    def tamper(delivery: Delivery) -> Iterable[Delivery]:
        nonlocal published
        if one.name in delivery.topic and "/c/" in delivery.topic and not published:
            published = True
            card(broker, two)
            withdraw(
                MemoryLink(broker, "coordinator"),
                "spring",
                [two.name],
                {(one.name, "w1-d1.onnx"): messages.Manifest("t", 9000, 4096, "0" * 64)},
            )
        return [delivery]

    broker.tamper = tamper
    card(broker, one)
    f = follower(broker, tmp_path)
    arrived = f.turn(100)
    assert published
    assert arrived is not None
    assert arrived.version == two.name
    assert f.turn(0.3) is None


def test_restart_downloads_nothing_again(
    broker: MemoryBroker, make: Callable[[str], Version], tmp_path: Path
) -> None:
    card(broker, make("1"))
    assert follower(broker, tmp_path).turn(9) is not None
    link = MemoryLink(broker, "pi")
    assert Follower(link, Subscription("spring", "pi", None, tmp_path)).turn(9) is not None
    assert link.received_bytes < 1024


def test_only_run_needs_no_name_and_several_require_a_choice(
    broker: MemoryBroker, make: Callable[[str], Version], tmp_path: Path
) -> None:
    one = make("1")
    card(broker, one)
    f = follower(broker, tmp_path, run=None)
    serve(f, one.name)
    assert topics.serving("spring", "pi") not in broker.retained, (
        "of which run it does not know yet"
    )
    assert f.turn(9) is not None
    assert f.run == "spring"
    assert read_report(broker).version == one.name
    announce(MemoryLink(broker, "coordinator"), Release("autumn", one))
    with pytest.raises(
        FleetError, match="several runs released a network for 'pi': autumn, spring"
    ):
        follower(broker, tmp_path, run=None).turn(9)


def test_missing_own_submodel_is_reported_and_following_continues(
    broker: MemoryBroker, make: Callable[[str], Version], tmp_path: Path
) -> None:
    one, two = make("1"), make("2")
    card(broker, one)
    f = follower(broker, tmp_path, "new")
    assert f.turn(0.3) is None
    assert read_report(broker, "new").refused == one.name
    assert (
        "expected a submodel for agent 'new' (or choose one with --submodel), found only w1-d1"
        in read_report(broker, "new").reason
    )
    card(broker, replace(two, assignment={"new": "w1-d1"}))
    arrived = f.turn(9)
    assert arrived is not None
    serve(f, arrived.version, agent="new")
    assert (read_report(broker, "new").version, read_report(broker, "new").refused) == (
        two.name,
        "",
    )


def test_failed_version_is_reported_and_retried(
    broker: MemoryBroker, make: Callable[[str], Version], tmp_path: Path
) -> None:
    one, two = make("1"), make("2")
    (tmp_path / "store" / "spring").mkdir(parents=True)
    (tmp_path / "store" / "spring" / two.name).write_text("in the way")
    card(broker, one)
    clock = Clock()
    f = follower(broker, tmp_path / "store", clock=clock)
    assert f.turn(30) is not None
    serve(f, one.name)
    card(broker, one, two, "pi")
    assert f.turn(0.3) is None
    assert (read_report(broker).version, read_report(broker).refused) == (one.name, two.name)
    assert two.name in read_report(broker).reason
    serve(f, one.name, answered=7)
    assert (read_report(broker).answered, read_report(broker).refused) == (7, two.name), (
        "the next count of answers does not hide it"
    )
    (tmp_path / "store" / "spring" / two.name).unlink()
    clock.now += 300
    arrived = f.turn(30)
    assert arrived is not None
    assert arrived.version == two.name
    serve(f, two.name)
    assert read_report(broker).refused == ""


def test_refusal_is_reported_until_another_version_is_wanted(
    broker: MemoryBroker, make: Callable[[str], Version], tmp_path: Path
) -> None:
    one, two = make("1"), make("2")
    card(broker, one, two, "pi")
    f = follower(broker, tmp_path)
    assert f.turn(9) is not None
    serve(f, "", refused=two.name, reason="the self-test fails" + "x" * 20_000)
    assert len(read_report(broker).reason) == 1000
    serve(f, "")
    assert read_report(broker).refused == two.name
    card(broker, one)
    assert f.turn(9) is not None
    serve(f, one.name)
    assert read_report(broker).refused == ""


def test_report_is_published_again_after_reconnecting(
    broker: MemoryBroker, make: Callable[[str], Version], tmp_path: Path
) -> None:
    one = make("1")
    card(broker, one)
    link = MemoryLink(broker, "pi")
    f = Follower(link, Subscription("spring", "pi", None, tmp_path))
    assert f.turn(9) is not None
    serve(f, one.name)
    link.drop()
    broker.retained.clear()
    link.restore()
    assert f.turn(0.3) is None
    assert read_report(broker).version == one.name


def test_other_deliveries_are_passed_on(broker: MemoryBroker, tmp_path: Path) -> None:
    heard: list[str] = []
    link = MemoryLink(broker, "pi")
    f = Follower(
        link,
        Subscription("spring", "pi", None, tmp_path),
        other=lambda delivery: heard.append(delivery.topic),
    )
    link.subscribe("questions")
    MemoryLink(broker, "asker").publish("questions", b"?")
    f.turn(0.3)
    assert heard == ["questions"]


def test_old_versions_are_pruned_except_last_good_ones(
    broker: MemoryBroker, make: Callable[[str], Version], tmp_path: Path
) -> None:
    f = follower(broker, tmp_path)
    names = []
    for i in range(5):
        version = make(str(i))
        card(broker, version)
        arrived = f.turn(9)
        assert arrived is not None
        serve(f, arrived.version)
        os.utime(arrived.folder, (i, i))  # in the order of use
        names.append(version.name)
    assert {path.name for path in (tmp_path / "spring").iterdir()} == set(names[2:])


def test_refused_versions_do_not_displace_good_ones(
    broker: MemoryBroker, make: Callable[[str], Version], tmp_path: Path
) -> None:
    f = follower(broker, tmp_path)
    names = []
    for letter, good in zip("abcdef", (True, True, False, False, False, True), strict=True):
        version = make(letter)
        card(broker, version)
        arrived = f.turn(9)
        assert arrived is not None
        if good:
            names.append(version.name)
        serve(
            f,
            names[-1],
            refused="" if good else version.name,
            reason="" if good else "the self-test fails",
        )
        time.sleep(0.01)  # so that files differ in age
    assert {path.name for path in (tmp_path / "spring").iterdir()} == set(names)


def test_failing_disk_is_reported_and_not_fatal(
    broker: MemoryBroker,
    make: Callable[[str], Version],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(path: Path) -> str:
        raise OSError(5, "Input/output error")

    one, store = make("1"), tmp_path / "store"
    card(broker, one)
    assert follower(broker, store).turn(9) is not None
    monkeypatch.setattr("edge_agent.releases.release_download.sha256", fail)
    f = follower(broker, store)
    assert f.turn(0.3) is None
    # not where the store lies
    assert (read_report(broker).refused, read_report(broker).reason) == (
        one.name,
        f"spring/{one.name}: Input/output error",
    )
    (store / "spring" / "0123456789ab").symlink_to("nowhere")  # gone as it is looked at
    serve(f, one.name)
    assert read_report(broker).version == one.name


def test_closing_removes_the_report(
    broker: MemoryBroker, make: Callable[[str], Version], tmp_path: Path
) -> None:
    one = make("1")
    card(broker, one)
    f = follower(broker, tmp_path)
    assert f.turn(9) is not None
    serve(f, one.name)
    f.close()
    assert topics.serving("spring", "pi") not in broker.retained
