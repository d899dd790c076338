"""Parse the address that an HTTP server listens on, and check that at which others reach it."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from federated.errors import ConfigError, UsageError

__all__ = ["ListenAddress", "check_public_url", "is_loopback", "parse_listen_address"]


@dataclass(frozen=True)
class ListenAddress:
    """An address to listen on. local: only this machine can reach it."""

    host: str
    port: int
    local: bool


def parse_listen_address(text: str, setting: str, example: str) -> ListenAddress:
    """Parse HOST:PORT or PORT; without a host, listen on 127.0.0.1 only. Raises UsageError.

    setting, example: name and sample value for error messages.
    """
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{setting}: expected HOST:PORT, such as {example}, found '{text}'")
    try:
        return ListenAddress(host, int(port), is_loopback(host))
    except OSError as error:
        raise UsageError(
            f"{setting}: expected an address of this machine, found '{host}': {error}"
        ) from error


def check_public_url(url: str, setting: str) -> None:
    """Check the address of a server that clients are told. Raises ConfigError.

    setting: its name, for the error message.
    """
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigError(f"{setting}: expected http(s)://HOST[:PORT][/PATH], found '{url}'")


def is_loopback(host: str) -> bool:
    """Return True if all addresses of a host are loopback addresses. Raises OSError if the name
    does not resolve.
    """
    return all(
        ipaddress.ip_address(str(info[4][0]).split("%")[0]).is_loopback
        for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    )
