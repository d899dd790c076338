"""Find the credentials that this device uses at a broker: select an enrolment, obtain one with a
token, and renew certificates before they expire. Enrolling and renewing need the extra `secure`.
"""

from __future__ import annotations

import hashlib
import logging
import random
import re
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

from edge_agent.access.enrolment_files import (
    Credentials,
    hold_lock,
    load_credentials,
    locate_enrolment,
)
from federated.errors import (
    ConfigError,
    EspalierError,
    UsageError,
    describe_os_error,
    require_extra,
)
from federated.runtime.console import Say
from federated.wire import topics
from federated.wire.enrolment_token import HOW_TO_ENROL, Token, parse_token
from federated.wire.link import get_scheme
from federated.wire.mqtt_address import (
    PORTS,
    MqttAddress,
    add_credentials,
    format_url,
    parse_mqtt_address,
)

__all__ = ["read_token", "renew_if_due", "resolve_broker"]

log = logging.getLogger(__name__)

CHECK_INTERVAL = 3600.0  # seconds between two checks whether a certificate is due for renewal
MAX_TOKEN_LENGTH = 4096  # characters read from a token file


def resolve_broker(
    broker: str | None,
    name: str | None,
    token: str | None = None,
    *,
    enrol: bool = True,
    keep_renewing: bool = False,
    say: Say = lambda text: None,
) -> tuple[str | None, str | None]:
    """Check the broker's address; return it with this device's credentials, and the agent's name
    there.

    The name is the given one, else that of the certificate, else the broker's user.
    token: enrol with it first, unless this device already did.
    enrol: False: only read the agent's name from a token that this device did not enrol with.
    keep_renewing: renew the certificate whenever it is due, as long as this process lives.
    say: prints a line about a new enrolment.
    Raises UsageError, ConfigError, LinkError, MissingExtra.
    """
    credentials = None
    if broker is not None:
        from federated.wire.links.address_check import check_address  # loads the MQTT library

        check_address(broker)
    if token is not None:
        parsed = parse_token(token)
        if name is not None and parsed.claim:
            raise UsageError(
                f"--name {name}: the operator's list names this device: omit --name, and identify "
                "it with --serial"
            )
        if name not in (None, parsed.name):
            raise UsageError(
                f"--name {name}: expected the token's name '{parsed.name}': omit --name, or "
                f"request a token for this name (coordinator enroll {name})"
            )
        credentials = load_or_enrol(parsed, say) if enrol else load_enrolment(parsed)
        name = None if parsed.claim else parsed.name
        name = credentials.name if credentials is not None else name
        if broker is None and credentials is not None:
            broker = format_url(credentials.broker_address)
    if broker is None or get_scheme(broker) not in PORTS:
        return broker, name  # only MQTT brokers ask for certificates
    address = parse_mqtt_address(broker)
    if address.tls and address.cert is None and address.user is None:
        credentials = credentials or find_credentials(address, name)
        if credentials is not None:
            address = add_credentials(address, str(credentials.ca), str(credentials.pem))
            name = credentials.name
    elif name is None and address.cert is not None:
        name = read_name(Path(address.cert))
    if name is None and address.user is not None and re.match(topics.AGENT, address.user):
        # with the access rules of deploy/mosquitto, a user may publish only as this agent
        name = address.user
    if credentials is not None and keep_renewing:
        threading.Thread(
            target=renew_periodically, args=(credentials,), name="renewal", daemon=True
        ).start()
    return format_url(address) if address.tls else broker, name


def read_name(pem: Path) -> str | None:
    """Return the agent's name in a certificate of another authority than the coordinator's; None if
    it has no valid one, or the package `cryptography` is missing.
    """
    if find_spec("cryptography") is None:
        return None
    from edge_agent.access import enrolment

    found = enrolment.load_certificate(pem).subject
    return enrolment.find_agent_name(found) or None


def find_credentials(address: MqttAddress, name: str | None) -> Credentials | None:
    """Find the enrolment for a broker, and for a name if one is given. Raises UsageError if several
    match.
    """
    matching = [
        one
        for one in load_credentials()
        if (one.broker_address.host, one.broker_address.port) == (address.host, address.port)
        and name in (None, one.name)
    ]
    if len(matching) > 1:
        raise UsageError(
            f"this device is enrolled at {address} under several names "
            f"({', '.join(one.name for one in matching)}): choose one with --name"
        )
    return matching[0] if matching else None


def load_enrolment(token: Token) -> Credentials | None:
    """Return the enrolment made earlier with this token, or None."""
    made = (locate_enrolment(token), hashlib.sha256(token.secret).hexdigest())
    return next((one for one in load_credentials() if (one.folder, one.token) == made), None)


def load_or_enrol(token: Token, say: Say) -> Credentials:
    """Return the enrolment made earlier with this token, or enrol now, and say so."""
    if (known := load_enrolment(token)) is not None:
        return known
    with require_extra("edge-agent join --token", "secure"):
        from edge_agent.access import enrolment  # needs cryptography

        new = enrolment.enrol(token, locate_enrolment(token))
        expiry = enrolment.load_certificate(new.pem).not_valid_after_utc
        say(f"enrolled as '{new.name}'; the certificate is valid until {expiry:%Y-%m-%d}")
        return new


def read_token(text: str | None, file: Path | None, serial: str | None = None) -> str | None:
    """Read a token from a flag's text, from a file, or from standard input (`-`).

    serial: of this device, to add to a claim.

    Raises UsageError, ConfigError.
    """
    if text is not None and file is not None:
        raise UsageError("--token and --token-file cannot be combined: use one of them")
    if file is not None:
        text = read_file(file)
    elif text is None and serial is not None:
        raise UsageError("--serial is for a claim: add --token-file FILE (coordinator claim)")
    return text if text is None or serial is None else f"{text.strip()}#{serial}"


def read_file(file: Path) -> str:
    try:
        if str(file) == "-":
            return sys.stdin.readline(MAX_TOKEN_LENGTH)
        return file.read_text(encoding="ascii")[:MAX_TOKEN_LENGTH]
    except (OSError, UnicodeDecodeError) as error:
        reason = describe_os_error(error) if isinstance(error, OSError) else "it is not ASCII"
        raise ConfigError(f"--token-file {file}: {reason}; {HOW_TO_ENROL}") from error


def renew_periodically(credentials: Credentials) -> None:
    """Check about every hour whether the certificate is due. The interval is random, so that a
    fleet does not renew at once.
    """
    while True:
        try:
            renew_if_due(credentials)
        except (EspalierError, OSError) as error:
            log.warning("%s", error)
        time.sleep(CHECK_INTERVAL * random.uniform(0.5, 1.0))  # noqa: S311  # not a secret


def renew_if_due(credentials: Credentials) -> bool:
    """Renew a certificate if less than a third of its life is left, and return True if so. On
    LinkError and MissingExtra the old one stays.
    """
    with require_extra("renewing this device's certificate", "secure"):
        from edge_agent.access import enrolment  # needs cryptography

        with hold_lock(credentials.folder):  # another process of this device may renew it now
            if due := enrolment.is_due(credentials.pem):
                enrolment.renew(credentials)
            return due
