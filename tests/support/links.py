"""Links over a real broker, and functions that wait for deliveries."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from federated.errors import LinkError
from federated.wire.link import Delivery
from federated.wire.links.mqtt import MqttLink
from federated.wire.mqtt_address import MqttAddress

__all__ = ["connect", "listen", "open_links", "wait_for_delivery"]


def connect(address: str | MqttAddress, client: str, seconds: float = 60.0) -> MqttLink:
    """Connect to a broker that may still be starting."""
    until = time.monotonic() + seconds
    while True:
        try:
            return MqttLink(address, client, timeout=2)
        except LinkError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


@contextlib.contextmanager
def open_links(address: str, *names: str, **options: object) -> Iterator[list[MqttLink]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(contextlib.closing(MqttLink(address, name, **options)))
            for name in names
        ]  # type: ignore[arg-type]


def wait_for_delivery(link: MqttLink, topic: str, timeout: float = 60.0) -> Delivery:
    """Return the next delivery on a topic; skip earlier ones on other topics."""
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        delivery = link.receive(0.1)
        if delivery is not None and delivery.topic == topic:
            return delivery
    raise AssertionError(f"nothing came on {topic} within {timeout} s")


def listen(link: MqttLink, *patterns: str) -> None:
    """Subscribe, and wait until the broker has processed it: others may publish at once."""
    for pattern in (*patterns, f"sync/{link.client_id}"):
        link.subscribe(pattern)
    link.publish(f"sync/{link.client_id}", b"1")
    wait_for_delivery(link, f"sync/{link.client_id}")
