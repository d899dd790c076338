"""Check the address of a broker without connecting, before anything slow."""

from __future__ import annotations

from federated.wire.link import get_scheme
from federated.wire.links.catalogue import find_opener
from federated.wire.mqtt_address import PORTS, parse_mqtt_address
from federated.wire.tls import make_context

__all__ = ["check_address"]


def check_address(address: str) -> None:
    """Check the scheme of an address, and for MQTT its form and TLS files. Raises UsageError and
    ConfigError as `federated.wire.links.catalogue.open_link`.
    """
    find_opener(address)
    if get_scheme(address) in PORTS:
        mqtt = parse_mqtt_address(address)
        if mqtt.tls:
            make_context(mqtt)
