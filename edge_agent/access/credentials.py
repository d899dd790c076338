"""The files of this device's enrolments, where a broker asks for certificates.

    STATE/credentials/NAME@HOST:PORT/agent.pem     the certificate and its key
                                     ca.pem        the authority that this device trusts
                                     about.json    where it was enrolled

The key never leaves this device. A renewed certificate replaces the file, and a link reads the file
whenever it connects.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import msgspec

from edge_agent.device import state_folder
from federated.errors import ConfigError, EspalierError
from federated.wire.address import Address, identified, parse_address, url
from federated.wire.enrolment_token import Token

__all__ = ["About", "Credentials", "alone", "folder_of", "stored"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Credentials:
    """One enrolment of this device.

    folder: where its files are.
    name: the agent's name, as in its certificate.
    host, port: of the coordinator's authority, which issued and renews the certificate.
    broker: the broker's port or URL, as in `federated.wire.enrolment_token.Answer`.
    token: sha256 of the token's secret, hexadecimal.
    """

    folder: Path
    name: str
    host: str
    port: int
    broker: str
    token: str

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def pem(self) -> Path:
        return self.folder / "agent.pem"

    @property
    def door(self) -> Address:
        """The broker's address, with this device's certificate."""
        plain = (
            Address(self.host, int(self.broker), tls=True)
            if self.broker.isdecimal()
            else parse_address(self.broker)
        )
        return identified(plain, str(self.ca), str(self.pem))

    @property
    def office(self) -> Address:
        """The address of the authority, which renews certificates."""
        return Address(self.host, self.port, tls=True, ca=str(self.ca), cert=str(self.pem))


class About(msgspec.Struct, frozen=True):
    """The content of about.json: `Credentials` without the folder."""

    name: str
    host: str
    port: int
    broker: str
    token: str

    def at(self, folder: Path) -> Credentials:
        return Credentials(folder, self.name, self.host, self.port, self.broker, self.token)


def folder_of(token: Token) -> Path:
    """The folder for the enrolment of a token."""
    host = f"[{token.host}]" if ":" in token.host else token.host
    return (
        state_folder.folder()
        / "credentials"
        / f"{token.name}@{quote(host, safe='[]:')}:{token.port}"
    )


def stored() -> list[Credentials]:
    """Read all enrolments of this device, sorted by folder name. Damaged ones are skipped and
    logged. Raises ConfigError if other users may read a key.
    """
    found = []
    for about in sorted((state_folder.folder() / "credentials").glob("*/about.json")):
        try:
            one = msgspec.json.decode(about.read_bytes(), type=About).at(about.parent)
            if not one.pem.is_file() or not one.ca.is_file():
                continue
            parse_address(url(one.door))
        except (OSError, ValueError, EspalierError) as error:
            log.warning("skipped %s: %s", about, error)
            continue
        if (mode := one.pem.stat().st_mode & 0o777) & 0o077:
            raise ConfigError(
                f"{one.pem}: expected a file that only this user may open, found mode "
                f"{mode:04o}: chmod go= {one.pem}"
            )
        found.append(one)
    return found


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock of an enrolment, so that one process at a time changes it."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
