"""What a device and a coordinator say to each other when a device is let in: the token, and JSON
over HTTPS.

    pi-kitchen@192.168.1.5:8884/1-SECRET-FINGERPRINT-CHECK

The token names the device, where its coordinator enrols, a secret that works once, and the sha256
of the certificate of the authority: so the device trusts nobody before it has seen that very
authority. Base32 in small letters, which can be read out and typed.
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
    "ENROL",
    "LARGEST",
    "PORT",
    "RENEW",
    "SECRET",
    "Answer",
    "Ask",
    "Renewal",
    "Token",
    "parse_token",
]

PORT = 8884
AUTHORITY, ENROL, RENEW = "/authority", "/enrol", "/renew"  # paths
LARGEST = 16 << 10  # bytes of anything that is said
VERSION = "1"
SECRET, FINGERPRINT, CHECK = 16, 32, 4  # bytes

_Pem = Annotated[str, Meta(max_length=8 << 10)]


class Ask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """To ENROL: the token's secret, hexadecimal, and a request for a certificate (PKCS #10, PEM) of
    the token's name.
    """

    secret: Annotated[str, Meta(pattern=rf"^[0-9a-f]{{{2 * SECRET}}}\Z")]
    request: _Pem


class Renewal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """To RENEW, by who shows the certificate that is to be followed by another."""

    request: _Pem


class Answer(msgspec.Struct, frozen=True):
    """certificate: PEM. broker: the port of the coordinator's broker at the same host, or the
    address of another.
    """

    certificate: _Pem
    broker: Annotated[str, Meta(max_length=512)]


@dataclass(frozen=True)
class Token:
    """What `coordinator enroll` prints. secret: 16 bytes; fingerprint: 32, the sha256 of the
    authority's certificate (DER).
    """

    name: str
    host: str
    port: int
    secret: bytes = field(repr=False)
    fingerprint: bytes

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        secrets = f"{_letters(self.secret)}-{_letters(self.fingerprint)}"
        text = f"{self.name}@{host}:{self.port}/{VERSION}-{secrets}"
        return f"{text}-{_letters(_check(text))}"


def parse_token(text: str) -> Token:
    """Reads a token, in whatever case and with blanks around it. Raises UsageError, which does not
    repeat the secret.
    """
    text = "".join(text.split())
    found = re.fullmatch(
        r"([^@/]+)@(\[[^\]/]+\]|[^:/@]+):([0-9]{1,5})/([0-9]+)-(\w+)-(\w+)-(\w+)", text
    )
    if found is None:
        raise UsageError(
            "token: expected NAME@HOST:PORT/1-... as coordinator enroll prints it, "
            f"found {len(text)} characters of another form"
        )
    name, host, port, version, *letters = found.groups()
    conceal(letters[0])
    if version != VERSION:
        raise UsageError(
            f"token: expected version {VERSION}, found {version}: install the same "
            "version here and at the coordinator"
        )
    try:
        secret, fingerprint, check = (
            base64.b32decode(part.upper() + "=" * (-len(part) % 8)) for part in letters
        )
    except ValueError:  # binascii's, and that of letters beyond ASCII
        raise UsageError(
            "token: expected letters and the digits 2 to 7 after the '/': is it whole?"
        ) from None
    token = Token(name, host.strip("[]"), int(port), secret, fingerprint)
    whole = (len(secret), len(fingerprint), len(check)) == (SECRET, FINGERPRINT, CHECK) and str(
        token
    ).lower() == text.lower()
    if not whole or not re.match(topics.AGENT, name) or not 0 < token.port < 65536:
        raise UsageError("token: its check does not fit the rest: a character is missing or wrong")
    return token


def _letters(raw: bytes) -> str:
    return base64.b32encode(raw).decode().rstrip("=").lower()


def _check(text: str) -> bytes:
    return zlib.crc32(text.encode()).to_bytes(CHECK, "big")
