"""Rights: every topic that an agent uses is its own to use, and no other one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from coordinator.broker import local as brokers
from coordinator.broker.mosquitto import COORDINATOR, rights
from federated.errors import LinkError
from federated.wire import topics
from federated.wire.links.catalogue import open_link
from tests.support.brokers import needs_mosquitto

VERSION = "0123456789ab"
SAID = [topics.status, topics.profile, topics.heartbeat, topics.say, topics.probe, topics.serving]


def written(name: str) -> list[str]:
    """Where the agent of a name speaks."""
    return [say("r", name) for say in SAID] + [
        topics.chunk(topics.upload("r", name, "t"), 0),
        topics.answer("r", name, "q"),
    ]


def heard(name: str) -> list[str]:
    """What the agent of a name listens to, as the code asks for it."""
    model, release = topics.model("r", "v", "w1"), topics.release("r", VERSION, "f")
    shared = [
        topics.any_run(),
        topics.manifest(model),
        topics.chunk(model, "+"),
        topics.release_card("+"),
        topics.release_card("r"),
    ]
    shared += [
        topics.release_manifests("r"),
        topics.manifest(release),
        topics.chunk(release, "+"),
        topics.ask("r", name, "+"),
    ]
    return [*topics.agent_patterns("r", name), *shared]


def may(user: str, access: str, topic: str) -> bool:
    """Whether the rights let an agent publish (write) to a topic, or subscribe (read) to a
    pattern.
    """
    return any(
        wanted == access and topics.matches(pattern.replace("%u", user), topic)
        for wanted, pattern in topics.agent_rights()
    )


@pytest.mark.parametrize("topic", written("a"))
def test_an_agent_may_speak_where_it_does(topic: str) -> None:
    assert may("a", "write", topic)


@pytest.mark.parametrize(
    "topic",
    [
        *written("b"),
        *heard("a")[:3],
        topics.release_card("r"),
        topics.ask("r", "a", "q"),
        "x",
        "fl/v1/r/agent/a",
    ],
)
def test_an_agent_may_speak_nowhere_else(topic: str) -> None:
    """The last of them, `agent/a`, is the parent that `agent/a/#` stands for as well: nobody
    listens there.
    """
    assert not may("a", "write", topic) or topic == "fl/v1/r/agent/a"


@pytest.mark.parametrize("pattern", heard("a"))
def test_an_agent_may_hear_what_it_listens_to(pattern: str) -> None:
    assert may("a", "read", pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        *topics.coordinator_patterns("r"),
        topics.command("r", "b"),
        topics.ask("r", "b", "+"),
        "fl/v1/+/cmd/+",
        "#",
        "$SYS/#",
    ],
)
def test_an_agent_may_hear_nothing_else(pattern: str) -> None:
    assert not may("a", "read", pattern)


def test_who_is_barred_is_denied_everything_by_name() -> None:
    assert rights(COORDINATOR, ["b", "a"]).endswith(
        "user a\ntopic deny #\n\nuser b\ntopic deny #\n"
    )


@pytest.mark.broker
@needs_mosquitto
def test_with_passwords_too_a_user_speaks_for_the_agent_of_its_name_alone(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("a:x\nb:y\n")
    with brokers.start(port=0, directory=tmp_path / "b", clients=tmp_path / "users") as broker:
        coordinator = open_link(broker.url, "c")
        coordinator.subscribe(topics.all_topics())
        a, b = (open_link(f"mqtt://{user}@{broker.address}", user[0]) for user in ("a:x", "b:y"))
        b.publish(topics.say("r", "a"), b"not mine")
        a.publish(topics.say("r", "a"), b"mine")
        a.subscribe(topics.command("r", "a"))
        time.sleep(0.2)
        coordinator.publish(topics.command("r", "a"), b"for a")
        said = [delivery.payload for delivery in iter(lambda: coordinator.receive(0.5), None)]
        got = a.receive(2)
        for link in (coordinator, a, b):
            link.close()
    assert sorted(said) == [b"for a", b"mine"]
    assert got is not None
    assert got.payload == b"for a"


@pytest.mark.broker
@needs_mosquitto
def test_a_reloaded_broker_denies_who_was_barred_and_a_restarted_one_keeps_what_is_retained(
    tmp_path: Path,
) -> None:
    (tmp_path / "users").write_text("a:x\n")
    with brokers.start(
        port=0, kind="mosquitto", directory=tmp_path / "b", clients=tmp_path / "users"
    ) as broker:
        a = open_link(f"mqtt://a:x@{broker.address}", "a")
        a.publish(topics.status("r", "a"), b"kept", retain=True)
        broker.reload(["a"])
        time.sleep(0.3)
        a.publish(topics.say("r", "a"), b"too late")
        with pytest.raises(LinkError, match="Not authorized"):
            list(iter(lambda: a.receive(2) or a.receive(2), None))
        a.close()
        broker.restart()
        coordinator = open_link(broker.url, "c")
        coordinator.subscribe(topics.all_topics())
        delivery = coordinator.receive(3)
        coordinator.close()
    assert delivery is not None
    assert (delivery.topic, delivery.payload) == (topics.status("r", "a"), b"kept")
