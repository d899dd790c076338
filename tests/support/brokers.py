"""Parameters and helpers for tests with real brokers."""

from __future__ import annotations

import socket

import pytest

from coordinator.broker.local import Broker
from coordinator.broker.mosquitto import find_mosquitto

__all__ = ["BOTH", "listens", "needs_mosquitto", "port_of"]

needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
BOTH = [pytest.param("mosquitto", marks=needs_mosquitto), "embedded"]


def port_of(broker: Broker) -> int:
    return int(broker.address.rsplit(":", 1)[1])


def listens(address: str) -> bool:
    """Return True if a process listens at HOST:PORT."""
    host, port = address.rsplit(":", 1)
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
