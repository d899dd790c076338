"""Answers of the real coordinator to authenticated clients that send invalid messages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from coordinator.fleet.message_loop import MessageLoop
from federated.wire import envelope, messages, topics
from federated.wire.links.mqtt import MqttLink
from tests.support.brokers import needs_mosquitto
from tests.support.certificate_authority import TlsBroker, member
from tests.support.strangers import coordinator_link

pytestmark = [pytest.mark.broker, needs_mosquitto]


@pytest.fixture
def fleet(tls_broker: TlsBroker, tmp_path: Path) -> Iterator[MessageLoop]:
    link = coordinator_link(tls_broker)
    card = messages.Run("r", "fedavg", "mlp", None, (), 1, "s")
    fleet = MessageLoop(link, card, tmp_path / "spool")
    fleet.endpoint.announce()
    fleet.turn(0.2)
    yield fleet
    link.close()


def send_and_receive(
    fleet: MessageLoop, link: MqttLink, topic: str, payload: bytes
) -> list[messages.Message]:
    """Return the messages that an agent receives in answer."""
    link.subscribe(topics.command("r", "h"))
    link.publish(topic, payload)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        fleet.turn(0.05)
        if (delivery := link.receive(0.05)) is not None and delivery.topic == topics.command(
            "r", "h"
        ):
            return [envelope.decode(delivery.payload)]
    return []


def test_an_offer_for_a_finished_round_is_refused(
    tls_broker: TlsBroker, fleet: MessageLoop, tmp_path: Path
) -> None:
    link = MqttLink(tls_broker.address(member(tls_broker.authority, "h", tmp_path)), "r-h")
    offer = messages.Offer(
        messages.Manifest("1-1-h", 4096, 1024, "0" * 64), "r", 1, 1, "train", "w1-d2"
    )
    answer = send_and_receive(fleet, link, topics.say("r", "h"), envelope.encode(offer))
    reason = (
        "nothing waits for this update: its train task of round 1, attempt 1, is unknown, is over, "
        "or was given up"
    )
    assert answer == [messages.Receipt("1-1-h", False, reason)]
    link.close()
    tls_broker.authority.revoke("h")


def test_another_version_of_the_protocol_is_refused_with_a_reason(
    tls_broker: TlsBroker, fleet: MessageLoop, tmp_path: Path
) -> None:
    link = MqttLink(tls_broker.address(member(tls_broker.authority, "h", tmp_path)), "r-h")
    other = msgpack.packb({"v": envelope.PROTOCOL + 1, "kind": "status", "body": {}})
    answer = send_and_receive(fleet, link, topics.status("r", "h"), other)
    assert len(answer) == 1
    assert isinstance(answer[0], messages.Refusal)
    both = f"{envelope.PROTOCOL + 1}, this side {envelope.OLDEST} to {envelope.PROTOCOL}"
    assert f"the peer speaks protocol {both}: upgrade" in answer[0].reason
    assert answer[0].about == messages.JOINING, "so that the device leaves"
    link.close()
    tls_broker.authority.revoke("h")
