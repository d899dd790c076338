"""A broker that spells topics in another way than its clients."""

from __future__ import annotations

import socket
import threading

import pytest

from federated.errors import LinkError
from federated.wire.links.mqtt import MqttLink
from tests.support.links import wait_for_delivery

# CONNACK of MQTT 5 (section 3.2): no session, success, no properties
GREETING = bytes([0x20, 3, 0, 0, 0])


def publication(topic: bytes) -> bytes:
    """Return a PUBLISH of MQTT 5 (section 3.3) with QoS 0, no properties and the payload `x`."""
    body = len(topic).to_bytes(2, "big") + topic + b"\0x"
    return bytes([0x30, len(body)]) + body


def test_a_link_fails_when_the_dots_of_its_topics_become_slashes() -> None:
    """As at RabbitMQ. Other topics that nobody subscribed to are ignored."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(1000)
                client.sendall(GREETING)
                client.recv(1000)  # the subscription
                client.sendall(publication(b"a/c") + publication(b"a/b"))
                client.recv(1000)

        thread = threading.Thread(target=serve)
        thread.start()
        link = MqttLink(f"127.0.0.1:{listener.getsockname()[1]}", "me")
        link.subscribe("a.b")
        with pytest.raises(LinkError, match=r"turns '\.' in topics into '/'.*--name"):
            wait_for_delivery(link, "a.b", 30)
        link.close()
        thread.join()
