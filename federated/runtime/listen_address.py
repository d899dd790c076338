"""Parse the address that an HTTP server listens on."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from federated.errors import UsageError

__all__ = ["ListenAddress", "is_loopback", "parse_listen_address"]


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


def is_loopback(host: str) -> bool:
    """Return True if all addresses of a host are loopback addresses. Raises OSError if the name
    does not resolve.
    """
    return all(
        ipaddress.ip_address(str(info[4][0]).split("%")[0]).is_loopback
        for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    )
