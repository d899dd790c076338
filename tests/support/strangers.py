"""The coordinator's link to a broker, and functions that read links."""

from __future__ import annotations

import time

from federated.errors import LinkError
from federated.wire.links.mqtt import MqttLink
from tests.support.certificate_authority import TlsBroker
from tests.support.links import connect

__all__ = ["coordinator_link", "receive_all", "receive_until", "wait_for_failure"]


def coordinator_link(tls_broker: TlsBroker) -> MqttLink:
    return connect(tls_broker.address(tls_broker.authority.coordinator), "coordinator-r")


def receive_all(link: MqttLink, seconds: float) -> list[tuple[str, bytes]]:
    """Return all deliveries until none arrives for this time."""
    return [
        (delivery.topic, delivery.payload) for delivery in iter(lambda: link.receive(seconds), None)
    ]


def receive_until(link: MqttLink, topic: str) -> list[tuple[str, bytes]]:
    """Return all deliveries up to the first on a topic: what was published before has come."""
    found = list[tuple[str, bytes]]()
    until = time.monotonic() + 60
    while time.monotonic() < until and topic not in dict(found):
        if (delivery := link.receive(0.1)) is not None:
            found.append((delivery.topic, delivery.payload))
    return found


def wait_for_failure(link: MqttLink) -> str:
    """Return the reason why a link failed, as soon as it has."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            link.receive(0.1)
        except LinkError as error:
            return str(error)
    return ""
