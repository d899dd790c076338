"""Find the address of a run's broker for other programs, with the coordinator's certificate."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from coordinator.access.certificate_registry import REGISTRY, Registry
from coordinator.access.configured_authority import find_default_folder
from coordinator.settings.service_tables import Broker
from federated.errors import ConfigError
from federated.wire.link import get_scheme
from federated.wire.mqtt_address import PORTS, add_credentials, format_url, parse_mqtt_address

__all__ = ["add_certificate", "find_broker", "name_entry"]

# name of the fact with the address of the coordinator's own listener, followed by the broker's port
ENTRY = "entry"


def add_certificate(broker: str, pki: str = "") -> str:
    """Return a broker's address with the coordinator's certificate, if the address requires one and
    this user has the authority in the folder `pki`. By default, ESPALIER_BROKER__PKI names it.
    """
    if get_scheme(broker) not in PORTS:
        return broker  # only MQTT brokers use certificates
    address = parse_mqtt_address(broker)
    folder = Path(pki or os.environ.get("ESPALIER_BROKER__PKI") or find_default_folder())
    pem = folder / "coordinator.pem"
    if not address.tls or address.cert is not None or address.user is not None or not pem.is_file():
        return broker
    return format_url(add_credentials(address, str(folder / "ca.pem"), str(pem)))


def find_broker(wanted: Broker) -> str:
    """Return the address of a run's broker, for other programs on the coordinator's machine. Raises
    ConfigError if the configuration does not tell it.
    """
    if wanted.url:
        return add_certificate(wanted.url, wanted.pki)
    if wanted.ca:
        return add_certificate(f"mqtts://{read_entry(wanted)}", wanted.pki)
    if wanted.passwords or wanted.port == 0:
        why = "requires a password" if wanted.passwords else "has a random port"
        raise ConfigError(
            f"the run's broker {why}: give its address, such as mqtt://USER:PASSWORD@HOST:PORT"
        )
    scheme = "mqtts" if wanted.tls else "mqtt"
    host = "127.0.0.1" if wanted.listen in ("0.0.0.0", "::") else wanted.listen  # noqa: S104
    place = f"[{host}]" if ":" in host else host
    port = PORTS[scheme] if wanted.port is None else wanted.port
    return add_certificate(f"{scheme}://{place}:{port}", wanted.pki)


def read_entry(wanted: Broker) -> str:
    """Return where the coordinator's own listener is, if another authority certifies the devices.
    Raises ConfigError if the broker was never started.
    """
    path, entry = Path(wanted.pki or find_default_folder()) / REGISTRY, ""
    if path.is_file():
        with closing(Registry(path)) as registry:
            entry = registry.get_fact(name_entry(wanted))
    if not entry:
        raise ConfigError(
            "the run's broker was never started: start the run first (coordinator start)"
        )
    return entry


def name_entry(wanted: Broker) -> str:
    """Return the name of the fact: runs with brokers of their own share an authority."""
    return f"{ENTRY} {PORTS['mqtts'] if wanted.port is None else wanted.port}"
