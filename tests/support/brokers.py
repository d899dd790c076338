"""Parameters and helpers for tests with real brokers."""

from __future__ import annotations

import socket

import pytest

from coordinator.broker.local_broker import Broker
from coordinator.broker.mosquitto import find_mosquitto

__all__ = ["BOTH", "is_listening", "needs_mosquitto", "read_port"]

needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
BOTH = [pytest.param("mosquitto", marks=needs_mosquitto), "embedded"]


def read_port(broker: Broker) -> int:
    return int(broker.address.rsplit(":", 1)[1])


def is_listening(address: str) -> bool:
    """Return True if a process is_listening at HOST:PORT."""
    host, port = address.rsplit(":", 1)
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
