"""Define what a device needs to enrol: the token, and the JSON messages over HTTPS.

    pi-kitchen@192.168.1.5:8884/1-SECRET-FINGERPRINT-CHECK

The token contains the device's name, the address of the coordinator's enrolment, a secret for one
use, and the sha256 of the authority's certificate, so that the device trusts only that authority.
Its base32 in lower case can be read out and typed.

    summer-batch@192.168.1.5:8884/1c-SECRET-FINGERPRINT-CHECK[#SERIAL]

A claim is the same for many devices: each gets one certificate, by its serial number, which it adds
to the text or reads from its board.
"""

from __future__ import annotations

import base64
import re
import zlib
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from msgspec import Meta

from federated.errors import UsageError
from federated.runtime.logs import conceal
from federated.wire import topics

__all__ = [
    "AUTHORITY",
    "CLAIM",
    "ENROL",
    "HOW_TO_ENROL",
    "LARGEST",
    "PORT",
    "RENEW",
    "SECRET",
    "SERIAL",
    "Answer",
    "Ask",
    "Renewal",
    "Token",
    "parse_token",
]

PORT = 8884
AUTHORITY, CLAIM, ENROL, RENEW = "/authority", "/claim", "/enrol", "/renew"  # paths
LARGEST = 16 << 10  # bytes of the largest message
VERSION = "1"
SECRET, FINGERPRINT, CHECK = 16, 32, 4  # bytes

SERIAL = (
    "serial number: expected 1 to 64 letters, digits, '_', '.' or '-', as in the operator's list; "
    "set it with --serial"
)
HOW_TO_ENROL = (
    "run `coordinator enroll NAME` on the coordinator's machine, and copy the whole line that it "
    "prints"
)

_Pem = Annotated[str, Meta(max_length=8 << 10)]


class Ask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to ENROL or to CLAIM.

    secret: of the token, hexadecimal.
    request: for a certificate of the token's name or, of a claim, of the device with the serial
        number in the name's place (PKCS #10, PEM).
    """

    secret: Annotated[str, Meta(pattern=rf"^[0-9a-f]{{{2 * SECRET}}}\Z")]
    request: _Pem


class Renewal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to RENEW, over TLS with the certificate to renew.

    request: for the next certificate (PKCS #10, PEM).
    """

    request: _Pem


class Answer(msgspec.Struct, frozen=True):
    """The answer to all requests.

    certificate: PEM.
    broker: port of the coordinator's broker on the same host, or address of another broker.
    """

    certificate: _Pem
    broker: Annotated[str, Meta(max_length=512)]


@dataclass(frozen=True)
class Token:
    """A token, as `coordinator enroll` prints it.

    name: of the device or, of a claim, of the batch of devices.
    host, port: of the coordinator's enrolment.
    secret: 16 bytes.
    fingerprint: sha256 of the authority's certificate (DER), 32 bytes.
    claim: whether many devices share it.
    serial: number of this device, of a claim; empty: that of its board.
    """

    name: str
    host: str
    port: int
    secret: bytes = field(repr=False)
    fingerprint: bytes
    claim: bool = False
    serial: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        secrets = f"{_to_letters(self.secret)}-{_to_letters(self.fingerprint)}"
        kind = "c" if self.claim else ""
        text = f"{self.name}@{host}:{self.port}/{VERSION}{kind}-{secrets}"
        serial = f"#{self.serial}" if self.serial else ""
        return f"{text}-{_to_letters(_compute_check(text))}{serial}"


def parse_token(text: str, *, hide: bool = True) -> Token:
    """Parse a token, ignoring case and white space. Raises UsageError without the secret.

    hide: hide its secret in this process's log. Not on a server: strangers would fill its memory.
    """
    text = "".join(text.split())
    found = re.fullmatch(
        r"([^@/]+)@(\[[^\]/]+\]|[^:/@]+):([0-9]{1,5})/([0-9]+)([cC]?)-(\w+)-(\w+)-(\w+)(?:#(.+))?",
        text,
    )
    if found is None:
        shape = f"{len(text)} characters in another form" if text else "an empty text"
        raise UsageError(f"token: expected NAME@HOST:PORT/1-..., found {shape}; {HOW_TO_ENROL}")
    name, host, port, version, kind, *letters, serial = found.groups(default="")
    if hide:
        conceal(letters[0])
    if version != VERSION:
        raise UsageError(
            f"token: expected version {VERSION}, found {version}; install the same "
            "version here and on the coordinator"
        )
    try:
        secret, fingerprint, check = (
            base64.b32decode(part.upper() + "=" * (-len(part) % 8)) for part in letters
        )
    except ValueError:  # of binascii, or for letters beyond ASCII
        raise UsageError(
            "token: expected letters and the digits 2 to 7 after the '/'; copy the whole token"
        ) from None
    if serial and not (kind and re.match(topics.AGENT, serial)):
        raise UsageError(
            SERIAL if kind else "a token of one device needs no serial number (--serial)"
        )
    token = Token(name, host.strip("[]"), int(port), secret, fingerprint, bool(kind), serial)
    whole = (len(secret), len(fingerprint), len(check)) == (SECRET, FINGERPRINT, CHECK) and str(
        token
    ).lower() == text.lower()
    if not whole or not re.match(topics.AGENT, name) or not 0 < token.port < 65536:
        raise UsageError(
            "token: its checksum is wrong: a character is missing or mistyped; copy the whole token"
        )
    return token


def _to_letters(raw: bytes) -> str:
    return base64.b32encode(raw).decode().rstrip("=").lower()


def _compute_check(text: str) -> bytes:
    return zlib.crc32(text.encode()).to_bytes(CHECK, "big")
