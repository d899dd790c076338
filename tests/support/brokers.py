"""Which brokers tests want, and where one listens."""

from __future__ import annotations

import pytest

from coordinator.broker import Broker
from coordinator.mosquitto import find_mosquitto

__all__ = ["BOTH", "needs_mosquitto", "port_of"]

needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
BOTH = [pytest.param("mosquitto", marks=needs_mosquitto), "amqtt"]


def port_of(broker: Broker) -> int:
    return int(broker.address.rsplit(":", 1)[1])
