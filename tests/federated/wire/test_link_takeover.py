"""A broker that reports that another client took this one's place."""

from __future__ import annotations

import socket
import threading

import pytest

from federated.errors import LinkError
from federated.wire.links.mqtt import MqttLink

# CONNACK of MQTT 5 (section 3.2): no session, success, no properties
GREETING = bytes([0x20, 3, 0, 0, 0])
TAKEN_OVER = bytes([0xE0, 2, 0x8E, 0])  # DISCONNECT (section 3.14): session taken over


def heard(link: MqttLink) -> None:
    """Receive for long enough to see a reconnection, which would happen within 2 s."""
    for _ in range(3):
        link.receive(2.5)


def test_a_link_whose_session_was_taken_over_ends_without_reconnecting() -> None:
    came: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve() -> None:
            while True:
                try:
                    client, _ = door.accept()
                except OSError:
                    return
                came.append(client)
                client.recv(1000)
                client.sendall(GREETING)
                client.recv(1000)  # what the link publishes: only then is it thrown out
                client.sendall(TAKEN_OVER)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        link = MqttLink(f"127.0.0.1:{door.getsockname()[1]}", "a")
        link.publish("t", b"x", qos=0)
        with pytest.raises(
            LinkError,
            match="another client connected as 'a' and replaced this one",
        ):
            heard(link)
        link.close()
        door.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert len(came) == 1
    came[0].close()
