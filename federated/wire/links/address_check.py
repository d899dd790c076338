"""Check the address of a broker without connecting, before anything slow."""

from __future__ import annotations

from federated.wire.links.catalogue import find_opener
from federated.wire.links.mqtt import MqttLink
from federated.wire.mqtt_address import parse_mqtt_address
from federated.wire.tls import make_context

__all__ = ["check_address"]


def check_address(address: str) -> None:
    """Check the scheme of an address, and for MQTT its form and TLS files. Raises UsageError and
    ConfigError as `federated.wire.links.catalogue.open_link`.
    """
    if find_opener(address) is MqttLink:
        mqtt = parse_mqtt_address(address)
        if mqtt.tls:
            make_context(mqtt)
