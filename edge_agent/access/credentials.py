"""What lets this device in where a broker asks for certificates: made here, signed by the
coordinator's authority, renewed before it ends.

    STATE/credentials/NAME@HOST:PORT/agent.pem     the certificate and its key
                                     ca.pem        whom this device trusts
                                     about.json    where it was enrolled

The key never leaves this device.

The renewed file takes the place of the old one, and a link shows whatever lies there when it
connects. Renewing needs the extra `secure`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import random
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import msgspec

from edge_agent.device import state_folder
from federated.errors import ConfigError, EspalierError, MissingExtra, UsageError
from federated.wire import topics
from federated.wire.address import PORTS, Address, identified, parse_address, scheme_of, url
from federated.wire.enrolment_token import Token, parse_token

__all__ = [
    "About",
    "Credentials",
    "admitted",
    "alone",
    "folder_of",
    "read_token",
    "renew_when_due",
    "stored",
]

log = logging.getLogger(__name__)

LOOK = 3600.0  # seconds between two looks at whether it is time to renew
MOST = 4096  # characters of a token's file


@dataclass(frozen=True)
class Credentials:
    """One enrolment. host, port: where; broker: as `federated.wire.enrolment_token.Answer` says it;
    token: sha256 of the secret that it took.
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
        """The broker, and what this device shows there."""
        plain = (
            Address(self.host, int(self.broker), tls=True)
            if self.broker.isdecimal()
            else parse_address(self.broker)
        )
        return identified(plain, str(self.ca), str(self.pem))

    @property
    def office(self) -> Address:
        """Where certificates are renewed."""
        return Address(self.host, self.port, tls=True, ca=str(self.ca), cert=str(self.pem))


class About(msgspec.Struct, frozen=True):
    """What about.json holds."""

    name: str
    host: str
    port: int
    broker: str
    token: str

    def at(self, folder: Path) -> Credentials:
        return Credentials(folder, self.name, self.host, self.port, self.broker, self.token)


def folder_of(token: Token) -> Path:
    host = f"[{token.host}]" if ":" in token.host else token.host
    return (
        state_folder.folder()
        / "credentials"
        / f"{token.name}@{quote(host, safe='[]:')}:{token.port}"
    )


def stored() -> list[Credentials]:
    """All enrolments of this device, by folder name; damaged ones are passed over with a word in
    the log. Raises ConfigError for loose modes.
    """
    found = []
    for about in sorted((state_folder.folder() / "credentials").glob("*/about.json")):
        try:
            one = msgspec.json.decode(about.read_bytes(), type=About).at(about.parent)
            if not one.pem.is_file() or not one.ca.is_file():
                continue
            parse_address(url(one.door))
        except (OSError, ValueError, EspalierError) as error:
            log.warning("passed over %s: %s", about, error)
            continue
        if (mode := one.pem.stat().st_mode & 0o777) & 0o077:
            raise ConfigError(
                f"{one.pem}: expected a file that only this user may open, found mode "
                f"{mode:04o}: chmod go= {one.pem}"
            )
        found.append(one)
    return found


def admitted(
    broker: str | None, name: str | None, token: str | None = None, *, lasting: bool = False
) -> tuple[str | None, str | None]:
    """The broker's address with what lets this device in there, and this device's name there: as
    given, enrolled, or the user's.

    token: enrols first, where that was not done before. lasting: renews certificates for as long as
    this process lives.
    Raises UsageError, ConfigError, LinkError, MissingExtra.
    """
    found = None
    if token is not None:
        asked = parse_token(token)
        if name is not None and name != asked.name:
            raise UsageError(
                f"--name {name}: the token is for '{asked.name}'; its certificate will "
                "say so, and the broker knows no other name"
            )
        found = enrolled(asked)
        name = found.name
        if broker is None:
            broker = url(found.door)
    if broker is None or scheme_of(broker) not in PORTS:
        return broker, name  # only MQTT brokers ask for certificates
    address = parse_address(broker)
    if address.tls and address.cert is None and address.user is None:
        found = found or known(address, name)
        if found is not None:
            address, name = identified(address, str(found.ca), str(found.pem)), found.name
    if name is None and address.user is not None and re.match(topics.AGENT, address.user):
        # brokers with our rights let a user speak for the agent of that name alone
        name = address.user
    if found is not None and lasting:
        threading.Thread(target=renew_for_ever, args=(found,), name="renewal", daemon=True).start()
    return url(address) if address.tls else broker, name


def known(address: Address, name: str | None) -> Credentials | None:
    """The enrolment for a broker, of a name where one is given. Raises UsageError where there are
    several.
    """
    fitting = [
        one
        for one in stored()
        if (one.door.host, one.door.port) == (address.host, address.port)
        and name in (None, one.name)
    ]
    if len(fitting) > 1:
        raise UsageError(
            f"this device is enrolled at {address} as "
            f"{', '.join(one.name for one in fitting)}: choose by --name"
        )
    return fitting[0] if fitting else None


def enrolled(token: Token) -> Credentials:
    """The enrolment that a token stands for: of an earlier start of this device, or made now."""
    folder, used = folder_of(token), hashlib.sha256(token.secret).hexdigest()
    before = [one for one in stored() if (one.folder, one.token) == (folder, used)]
    if before:
        return before[0]
    with needing_library("edge-agent join --token"):
        from edge_agent.access import enrol

        return enrol.enrol(token, folder)


@contextlib.contextmanager
def needing_library(command: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(command, "secure", error.name or "cryptography") from error


def read_token(text: str | None, file: Path | None) -> str | None:
    """A token as given, from a file, or from standard input (`-`). Raises UsageError,
    ConfigError.
    """
    if text is not None and file is not None:
        raise UsageError("--token and --token-file: give one of them")
    if file is None:
        return text
    try:
        return (
            sys.stdin.readline(MOST)
            if str(file) == "-"
            else file.read_text(encoding="ascii")[:MOST]
        )
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it holds no ASCII"
        raise ConfigError(f"--token-file {file}: expected a token: {why}") from error


def renew_for_ever(credentials: Credentials) -> None:
    """Looks every hour, at another minute on each device."""
    while True:
        try:
            renew_when_due(credentials)
        except (EspalierError, OSError) as error:
            log.warning("%s", error)
        time.sleep(LOOK * random.uniform(0.5, 1.0))  # noqa: S311  # any number will do


def renew_when_due(credentials: Credentials) -> bool:
    """Renews a certificate of which less than a third is left; whether it did. Raises LinkError,
    MissingExtra: the old one stays.
    """
    with needing_library("renewing this device's certificate"):
        from edge_agent.access import enrol

        with alone(credentials.folder):  # another process of this device may be at it
            if not enrol.due(credentials.pem):
                return False
            enrol.renew(credentials)
            return True


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One process at a time."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
