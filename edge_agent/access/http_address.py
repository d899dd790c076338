"""Where an agent listens for questions, and the secret that askers beyond this machine must know.
Needs nothing but Python.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path

from federated.errors import ConfigError, UsageError
from federated.runtime.logs import conceal

__all__ = ["Address", "listening", "token_of"]

LEAST_TOKEN = 16  # characters


@dataclass(frozen=True)
class Address:
    """Where to listen. local: only this machine can reach it."""

    host: str
    port: int
    local: bool


def listening(text: str) -> Address:
    """HOST:PORT or PORT as an address; without a host, this machine only. Raises UsageError."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--serve: expected HOST:PORT, such as 127.0.0.1:8080, found '{text}'")
    try:
        found = {
            info[4][0] for info in socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        }
    except OSError as error:
        raise UsageError(
            f"--serve: expected an address of this machine, found '{host}': {error}"
        ) from error
    return Address(
        host,
        int(port),
        all(ipaddress.ip_address(str(one).split("%")[0]).is_loopback for one in found),
    )


def token_of(path: Path) -> str:
    """The secret that a file holds. Raises ConfigError."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file {path}: expected a secret in ASCII: {error}") from error
    if len(token) < LEAST_TOKEN or not token.isprintable() or " " in token:
        raise ConfigError(
            f"--token-file {path}: expected a secret of at least {LEAST_TOKEN} letters "
            f"or digits, found {len(token)} characters"
        )
    conceal(token)
    return token
