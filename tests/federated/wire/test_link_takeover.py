"""A broker that reports that another client with the same id has connected."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from federated.errors import LinkError
from federated.wire.links.mqtt import MqttLink

# CONNACK of MQTT 5 (section 3.2): no session, success, no properties
GREETING = bytes([0x20, 3, 0, 0, 0])
TAKEN_OVER = bytes([0xE0, 2, 0x8E, 0])  # DISCONNECT (section 3.14): session taken over


def receive_all(link: MqttLink) -> None:
    """Receive for up to a minute."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        link.receive(0.1)


def test_a_link_reconnects_after_one_takeover_and_ends_at_the_second() -> None:
    """So of two clients of one name the later one stays, whichever of them connected last."""
    came: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                came.append(client)
                client.recv(1000)
                client.sendall(GREETING)
                if len(came) == 1:
                    client.recv(1000)  # what the link publishes
                client.sendall(TAKEN_OVER)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        link = MqttLink(f"127.0.0.1:{listener.getsockname()[1]}", "a")
        link.publish("t", b"x", qos=0)
        with pytest.raises(
            LinkError,
            match="another client connected as 'a' and replaced this one",
        ):
            receive_all(link)
        link.close()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert len(came) == 2
    for client in came:
        client.close()
