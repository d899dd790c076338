"""Derive how this device reaches servers over HTTP from its broker's address."""

from __future__ import annotations

from federated.http_transfers.http_client import HttpAccess
from federated.wire.link import get_scheme
from federated.wire.mqtt_address import PORTS, parse_mqtt_address

__all__ = ["describe_http_access"]


def describe_http_access(broker: str | None) -> HttpAccess:
    """Return how this device reaches servers: with TLS if it reaches the broker with TLS, and
    trusting the same authority.
    """
    if not broker or get_scheme(broker) not in PORTS:
        return HttpAccess()  # a link of another package
    address = parse_mqtt_address(broker)
    return HttpAccess(address.ca, address.tls)
