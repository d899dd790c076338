"""Find the proxy that the environment names for a connection, and connect through it.

Over TCP, `mqtt_proxy` counts; for WebSockets `http_proxy` and, with TLS, `https_proxy`. `all_proxy`
counts for all, and `no_proxy` names the hosts that are reached directly.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from federated.errors import ConfigError, require_extra

__all__ = ["Proxy", "find_proxy", "open_connection"]

# scheme of a broker's address -> variables before `_proxy`
VARIABLES = {"mqtt": "mqtt", "mqtts": "mqtt", "ws": "http", "wss": "https"}
KINDS = {  # scheme of a proxy -> name of its kind in the library
    "http": "HTTP",
    "socks4": "SOCKS4",
    "socks4a": "SOCKS4",
    "socks": "SOCKS5",
    "socks5": "SOCKS5",
    "socks5h": "SOCKS5",
}


@dataclass(frozen=True)
class Proxy:
    """A proxy, which also resolves the names of hosts.

    kind: name in the library.
    host, port: of the proxy; port None: the usual one of its kind.
    user, password: for the proxy; the password is never shown.
    variable: environment variable that names it.
    """

    kind: str
    host: str
    port: int | None
    user: str | None
    password: str | None = field(repr=False)
    variable: str

    def __str__(self) -> str:
        port = "" if self.port is None else f":{self.port}"
        return f"{self.kind} proxy {self.host}{port} ({self.variable})"

    @property
    def arguments(self) -> dict[str, Any]:
        """The library's arguments for this proxy. Raises MissingExtra."""
        with require_extra(f"the {self.variable} of the environment", "proxy", "pysocks"):
            import socks
        return {
            "proxy_type": getattr(socks, self.kind),
            "proxy_addr": self.host,
            "proxy_port": self.port,
            "proxy_rdns": True,
            "proxy_username": self.user,
            "proxy_password": self.password,
        }


def find_proxy(scheme: str, host: str, port: int) -> Proxy | None:
    """Return the proxy for a broker at an address; None: connect directly, as to this machine.

    Raises ConfigError for a proxy of an unknown kind.
    """
    if _is_this_machine(host) or proxy_bypass(f"{host}:{port}"):
        return None
    proxies = getproxies()
    for name in (VARIABLES[scheme], "all"):
        if text := proxies.get(name):
            return _parse(f"{name}_proxy", text)
    return None


def open_connection(scheme: str, host: str, port: int, timeout: float) -> socket.socket:
    """Open a TCP connection to a broker, through the proxy if there is one. Raises OSError,
    ConfigError, MissingExtra.
    """
    proxy = find_proxy(scheme, host, port)
    if proxy is None:
        return socket.create_connection((host, port), timeout)
    arguments = proxy.arguments
    import socks

    made: socket.socket = socks.create_connection((host, port), timeout, **arguments)
    return made


def _parse(variable: str, text: str) -> Proxy:
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port, kind = parts.hostname, parts.port, KINDS.get(parts.scheme)
    except ValueError:
        host = port = kind = None
    if not host or kind is None:
        raise ConfigError(
            f"{variable}: expected http://[user:password@]host:port, socks5://... or socks4://...: "
            "correct this environment variable, or name the broker's host in no_proxy"
        )
    user, password = (None if x is None else unquote(x) for x in (parts.username, parts.password))
    return Proxy(kind, host, port, user, password, variable)


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
