"""Agents can publish and read only their own topics at a real mosquitto with the shipped files."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coordinator.broker.mosquitto_config import COORDINATOR, format_acl
from federated.wire import topics
from federated.wire.links.mqtt import MqttLink
from federated.wire.links.mqtt_client_setup import ClientSetup, connect, disconnect
from tests.support.brokers import needs_mosquitto
from tests.support.certificate_authority import SHIPPED, TlsBroker, member
from tests.support.strangers import receive_all, receive_until, wait_for_failure

pytestmark = [pytest.mark.broker, needs_mosquitto]
LAST = topics.say("r", "last")  # after which nothing comes


def test_an_agent_can_publish_only_on_its_own_topics(
    tls_broker: TlsBroker, hearing: MqttLink, tmp_path: Path
) -> None:
    mine = member(tls_broker.authority, "b", tmp_path)
    foreign = (
        topics.say("r", "a"),
        topics.command("r", "b"),
        topics.run("r"),
        topics.everyone("r"),
        topics.release_card("r"),
        topics.upload("r", "a", "t"),
    )

    def publish(number: int, topic: str) -> str:
        """Publish on a link of its own, which the refusal ends."""
        link = MqttLink(tls_broker.address(mine), f"r-b-{number}")
        link.publish(topics.say("r", "b"), b"mine")
        link.publish(topic, b"not mine")
        reason = wait_for_failure(link)
        link.close()
        return reason

    with ThreadPoolExecutor(len(foreign)) as pool:
        reasons = list(pool.map(publish, range(len(foreign)), foreign))
    assert all("Not authorized" in reason for reason in reasons), reasons
    hearing.publish(LAST, b"")
    *found, _ = receive_until(hearing, LAST)
    assert found == [(topics.say("r", "b"), b"mine")] * len(foreign)


def test_an_agent_can_publish_only_on_its_own_topics_with_mqtt_3(
    tls_broker: TlsBroker, hearing: MqttLink, tmp_path: Path
) -> None:
    link = MqttLink(
        tls_broker.address(member(tls_broker.authority, "c", tmp_path)), "r-c", version=4
    )
    link.publish(topics.say("r", "a"), b"not mine")
    link.publish(topics.say("r", "c"), b"mine")
    mine = topics.say("r", "c")
    assert receive_until(hearing, mine) == [(mine, b"mine")]
    link.close()


def every_topic(agent: str) -> dict[str, str]:
    """Return all topics of `federated.wire.topics` for one agent. `OWN` lists those that it may
    write to.
    """
    version = "0" * 12
    model, release = topics.model("r", "v", "s"), topics.release("r", version, "f")
    return {
        "status": topics.status("r", agent),
        "profile": topics.profile("r", agent),
        "serving": topics.serving("r", agent),
        "heartbeat": topics.heartbeat("r", agent),
        "say": topics.say("r", agent),
        "probe": topics.probe("r", agent),
        "upload": topics.chunk(topics.upload("r", agent, "t"), 0),
        "answer": topics.answer("r", agent, "q"),
        "ask": topics.ask("r", agent, "q"),
        "command": topics.command("r", agent),
        "everyone": topics.everyone("r"),
        "run": topics.run("r"),
        "manifest": topics.manifest(model),
        "chunk": topics.chunk(model, 0),
        "card": topics.release_card("r"),
        "released": topics.manifest(release),
        "piece": topics.chunk(release, 0),
        "another": topics.run("another"),
    }


OWN = {"status", "profile", "serving", "heartbeat", "say", "probe", "upload", "answer"}


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("whose", ["mine", "theirs"])
def test_only_the_owner_can_replace_or_delete_retained_messages(
    tls_broker: TlsBroker, hearing: MqttLink, tmp_path: Path, version: int, whose: str
) -> None:
    name = f"retained-{version}-{whose}"
    wanted = every_topic(name if whose == "mine" else "a")
    pem = member(tls_broker.authority, name, tmp_path)
    for topic in wanted.values():
        hearing.publish(topic, b"kept", retain=True)
    hearing.publish(LAST, b"")
    assert {topic for topic, _ in receive_until(hearing, LAST)} == {*wanted.values(), LAST}
    for topic in wanted.values():
        link = connect(ClientSetup(tls_broker.address(pem), f"r-{name}"), version=version).client
        link.publish(topic, b"", qos=1, retain=True)
        link.publish(topic, b"mine", qos=0, retain=True)
        disconnect(link, version)  # after both messages
    hearing.publish(LAST, b"")
    touched = {topic for topic, _ in receive_until(hearing, LAST)}
    for topic in wanted.values():
        hearing.publish(topic, b"", retain=True)
    assert {key for key, topic in wanted.items() if topic in touched} == (
        OWN if whose == "mine" else set()
    )


@pytest.mark.parametrize("whose", ["mine", "theirs"])
def test_a_last_will_on_a_foreign_topic_is_not_published(
    tls_broker: TlsBroker, hearing: MqttLink, tmp_path: Path, whose: str
) -> None:
    name = f"will-{whose}"
    wanted, pem = (
        every_topic(name if whose == "mine" else "a"),
        member(tls_broker.authority, name, tmp_path),
    )

    def connect_and_vanish(number: int, topic: str) -> None:
        setup = ClientSetup(tls_broker.address(pem), f"r-{name}-{number}", (topic, b"will"))
        client = connect(setup).client
        client.loop_stop()  # it waits up to a second for the network
        there = client.socket()
        assert there is not None
        there.close()  # without a DISCONNECT

    with ThreadPoolExecutor(len(wanted)) as pool:
        list(pool.map(connect_and_vanish, range(len(wanted)), wanted.values()))
    arrived = dict(receive_all(hearing, 1.5))
    for topic in wanted.values():
        hearing.publish(topic, b"", retain=True)
    assert {key for key, topic in wanted.items() if topic in arrived} == (
        OWN if whose == "mine" else set()
    )


@pytest.mark.parametrize(
    "pattern",
    [
        "fl/v1/r/cmd/a",
        "fl/v1/+/cmd/+",
        "fl/v1/r/agent/a/up/+/c/+",
        "fl/v1/#",
        "#",
        "$share/g/fl/v1/+/cmd/+",
    ],
)
def test_an_agent_cannot_receive_commands_or_updates_of_others(
    tls_broker: TlsBroker, hearing: MqttLink, tmp_path: Path, pattern: str
) -> None:
    name = f"d{abs(hash(pattern))}"
    link = MqttLink(tls_broker.address(member(tls_broker.authority, name, tmp_path)), f"r-{name}")
    link.subscribe(pattern)
    link.subscribe(topics.command("r", name))
    time.sleep(0.2)
    hearing.publish(topics.command("r", "a"), b"secret")
    hearing.publish(topics.chunk(topics.upload("r", "a", "t"), 0), b"secret")
    hearing.publish(topics.command("r", name), b"hello")
    own = topics.command("r", name)
    assert receive_until(link, own) == [(own, b"hello")]
    link.close()


def test_only_the_coordinator_can_read_statistics_of_the_broker(
    tls_broker: TlsBroker, hearing: MqttLink, tmp_path: Path
) -> None:
    link = MqttLink(tls_broker.address(member(tls_broker.authority, "e", tmp_path)), "r-e")
    for one in (link, hearing):
        one.subscribe("$SYS/broker/version")
    assert receive_all(link, 1.0) == []
    assert [topic for topic, _ in receive_all(hearing, 1.0)] == ["$SYS/broker/version"]
    link.close()


def test_the_shipped_rights_equal_the_generated_ones() -> None:
    assert (SHIPPED / "rights.acl").read_text() == format_acl(COORDINATOR)
