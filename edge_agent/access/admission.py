"""The credentials that this device uses at a broker: chosen among its enrolments, obtained with a
token, and renewed before they end. Enrolling and renewing need the extra `secure`.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import random
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from edge_agent.access.credentials import Credentials, alone, folder_of, stored
from federated.errors import ConfigError, EspalierError, MissingExtra, UsageError
from federated.wire import topics
from federated.wire.address import PORTS, Address, identified, parse_address, scheme_of, url
from federated.wire.enrolment_token import Token, parse_token

__all__ = ["admitted", "read_token", "renew_when_due"]

log = logging.getLogger(__name__)

LOOK = 3600.0  # seconds between two checks whether a certificate is due
MOST = 4096  # characters of a token's file


def admitted(
    broker: str | None, name: str | None, token: str | None = None, *, lasting: bool = False
) -> tuple[str | None, str | None]:
    """Find the broker's address with this device's credentials, and the agent's name there.

    The name is the one given, else that of the certificate, else the broker's user.
    token: enrol with it first, unless this device already did.
    lasting: renew the certificate when it is due, as long as this process lives.
    Raises UsageError, ConfigError, LinkError, MissingExtra.
    """
    found = None
    if token is not None:
        asked = parse_token(token)
        if name is not None and name != asked.name:
            raise UsageError(
                f"--name {name}: expected the token's name '{asked.name}': leave --name out, or "
                f"ask for a token of this name (coordinator enroll {name})"
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
        # with the access rules of deploy/mosquitto, a user may publish only as this agent
        name = address.user
    if found is not None and lasting:
        threading.Thread(target=renew_for_ever, args=(found,), name="renewal", daemon=True).start()
    return url(address) if address.tls else broker, name


def known(address: Address, name: str | None) -> Credentials | None:
    """Find the enrolment for a broker, and for a name if one is given. Raises UsageError if there
    are several.
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
            f"{', '.join(one.name for one in fitting)}: choose one with --name"
        )
    return fitting[0] if fitting else None


def enrolled(token: Token) -> Credentials:
    """Return the enrolment made with this token earlier, or enrol now."""
    folder, used = folder_of(token), hashlib.sha256(token.secret).hexdigest()
    before = [one for one in stored() if (one.folder, one.token) == (folder, used)]
    if before:
        return before[0]
    with needing_library("edge-agent join --token"):
        from edge_agent.access import enrol  # needs cryptography

        return enrol.enrol(token, folder)


@contextlib.contextmanager
def needing_library(command: str) -> Iterator[None]:
    """Raise MissingExtra in place of the error for a missing module."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(command, "secure", error.name or "cryptography") from error


def read_token(text: str | None, file: Path | None) -> str | None:
    """Read a token: the one given, from a file, or from standard input (`-`). Raises UsageError,
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
    """Check every hour whether the certificate is due. The minute differs between devices."""
    while True:
        try:
            renew_when_due(credentials)
        except (EspalierError, OSError) as error:
            log.warning("%s", error)
        time.sleep(LOOK * random.uniform(0.5, 1.0))  # noqa: S311  # not a secret


def renew_when_due(credentials: Credentials) -> bool:
    """Renew a certificate if less than a third of its life is left; return whether it was
    renewed. The old one stays on LinkError and MissingExtra.
    """
    with needing_library("renewing this device's certificate"):
        from edge_agent.access import enrol  # needs cryptography

        with alone(credentials.folder):  # another process of this device may renew it now
            if not enrol.due(credentials.pem):
                return False
            enrol.renew(credentials)
            return True
