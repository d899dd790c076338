"""Access control: an agent may use exactly the topics that it needs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from coordinator.broker import local_broker as brokers
from coordinator.broker.mosquitto_config import COORDINATOR, Rights, format_acl
from federated.errors import LinkError
from federated.wire import topics
from federated.wire.links.catalogue import open_link
from tests.support.brokers import needs_mosquitto

VERSION = "0123456789ab"
PUBLISHED = [
    topics.status,
    topics.profile,
    topics.heartbeat,
    topics.say,
    topics.probe,
    topics.serving,
]


def list_published(name: str) -> list[str]:
    """Return the topics that the agent publishes to."""
    return [say("r", name) for say in PUBLISHED] + [
        topics.chunk(topics.upload("r", name, "t"), 0),
        topics.answer("r", name, "q"),
    ]


def list_subscribed(name: str) -> list[str]:
    """Return the patterns that the agent subscribes to."""
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
    """Return True if an agent may publish (write) to a topic, or subscribe (read) to a pattern."""
    return any(
        wanted == access and topics.matches(pattern.replace("%u", user), topic)
        for wanted, pattern in topics.agent_rights()
    )


@pytest.mark.parametrize("topic", list_published("a"))
def test_an_agent_may_publish_to_its_topics(topic: str) -> None:
    assert may("a", "write", topic)


@pytest.mark.parametrize(
    "topic",
    [
        *list_published("b"),
        *list_subscribed("a")[:3],
        topics.release_card("r"),
        topics.ask("r", "a", "q"),
        "x",
        "fl/v1/r/agent/a",
    ],
)
def test_an_agent_may_publish_to_no_other_topic(topic: str) -> None:
    """The exception is `agent/a`, which `agent/a/#` also matches. No client subscribes to it."""
    assert not may("a", "write", topic) or topic == "fl/v1/r/agent/a"


@pytest.mark.parametrize("pattern", list_subscribed("a"))
def test_an_agent_may_subscribe_to_its_patterns(pattern: str) -> None:
    assert may("a", "read", pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        *(one for one in topics.coordinator_patterns("r") if one != topics.run("r")),
        topics.dynamic_security_answer(),
        topics.command("r", "b"),
        topics.ask("r", "b", "+"),
        "fl/v1/+/cmd/+",
        "#",
        "$SYS/#",
    ],
)
def test_an_agent_may_subscribe_to_no_other_pattern(pattern: str) -> None:
    assert not may("a", "read", pattern)


def test_barred_agents_are_denied_every_topic() -> None:
    assert format_acl(COORDINATOR, Rights(frozenset("ab"))).endswith(
        "user a\ntopic deny #\n\nuser b\ntopic deny #\n"
    )


@pytest.mark.broker
@needs_mosquitto
def test_with_passwords_a_user_may_act_only_for_the_agent_of_its_name(tmp_path: Path) -> None:
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
def test_a_reloaded_broker_denies_barred_agents_and_a_restarted_one_keeps_retained_messages(
    tmp_path: Path,
) -> None:
    (tmp_path / "users").write_text("a:x\n")
    with brokers.start(
        port=0, kind="mosquitto", directory=tmp_path / "b", clients=tmp_path / "users"
    ) as broker:
        a = open_link(f"mqtt://a:x@{broker.address}", "a")
        a.publish(topics.status("r", "a"), b"kept", retain=True)
        broker.reload(Rights(frozenset("a")))
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
