"""Find and read the files of this device's enrolments at brokers that require certificates.

    STATE/credentials/NAME@HOST:PORT/agent.pem     the certificate and its key
                                     ca.pem        the authority that this device trusts
                                     about.json    where it was enrolled

The key never leaves this device. A renewed certificate replaces the file; a link reads the file
whenever it connects.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec

from edge_agent.device import state_folder
from federated.errors import ConfigError, EspalierError
from federated.system.file_locks import lock_file
from federated.system.file_modes import read_mode
from federated.system.file_names import make_file_name
from federated.wire.enrolment_token import Token
from federated.wire.mqtt_address import MqttAddress, add_credentials, format_url, parse_mqtt_address

__all__ = ["Credentials", "Enrolment", "hold_lock", "load_credentials", "locate_enrolment"]

log = logging.getLogger(__name__)


class Enrolment(msgspec.Struct, frozen=True):
    """The content of about.json.

    name: the agent's name, as in its certificate.
    host, port: of the coordinator's authority, which issues and renews the certificate.
    broker: the broker's port or URL, as in `federated.wire.enrolment_token.Answer`.
    token: sha256 of the token's secret, hexadecimal.
    """

    name: str
    host: str
    port: int
    broker: str
    token: str


class Credentials(Enrolment, frozen=True):
    """An enrolment and the folder of its files."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def pem(self) -> Path:
        return self.folder / "agent.pem"

    @property
    def broker_address(self) -> MqttAddress:
        """The broker's address, with this device's certificate."""
        plain = (
            MqttAddress(self.host, int(self.broker), tls=True)
            if self.broker.isdecimal()
            else parse_mqtt_address(self.broker)
        )
        return add_credentials(plain, str(self.ca), str(self.pem))

    @property
    def authority_address(self) -> MqttAddress:
        """The address of the authority, which renews certificates."""
        return MqttAddress(self.host, self.port, tls=True, ca=str(self.ca), cert=str(self.pem))


def locate_enrolment(token: Token) -> Path:
    """Return the folder for the enrolment of a token."""
    host = f"[{token.host}]" if ":" in token.host else token.host
    name = f"{token.name}@{quote(host, safe='[]:')}:{token.port}"
    return state_folder.locate_state() / "credentials" / make_file_name(name)


def load_credentials() -> list[Credentials]:
    """Read all enrolments of this device, sorted by folder name. Damaged ones are skipped and
    logged. Raises ConfigError if other users may read a key.
    """
    loaded = []
    for path in sorted((state_folder.locate_state() / "credentials").glob("*/about.json")):
        try:
            enrolment = msgspec.json.decode(path.read_bytes(), type=Enrolment)
            one = Credentials(**msgspec.structs.asdict(enrolment), folder=path.parent)
            if not one.pem.is_file() or not one.ca.is_file():
                continue
            parse_mqtt_address(format_url(one.broker_address))
        except (OSError, ValueError, EspalierError) as error:
            log.warning("skipped %s: %s", path, error)
            continue
        if (mode := read_mode(one.pem)) & 0o077:
            raise ConfigError(
                f"{one.pem}: expected a file that only its owner can read, found mode "
                f"{mode:04o}: run chmod go= {one.pem}"
            )
        loaded.append(one)
    return loaded


@contextlib.contextmanager
def hold_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of an enrolment, so that one process at a time changes it."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        lock_file(handle, wait=True)
        yield
    finally:
        os.close(handle)
