"""Find the proxy that the environment names for a connection, and connect through it.

Over TCP, `mqtt_proxy` counts; for WebSockets and HTTP `http_proxy` and, with TLS, `https_proxy`,
which also counts for enrolment and for MQTT on port 443. `all_proxy` counts for all, and `no_proxy`
names the hosts that are reached directly.
"""

from __future__ import annotations

import base64
import ipaddress
import socket
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from federated.errors import ConfigError, require_extra
from federated.safe_text import make_safe
from federated.system.connection_deadline import ConnectionDeadline

__all__ = ["Proxy", "ProxyError", "find_proxy", "open_connection"]

# scheme of an address -> variable before `_proxy`
VARIABLES = {
    "mqtt": "mqtt",
    "mqtts": "mqtt",
    "ws": "http",
    "wss": "https",
    "http": "http",
    "https": "https",
}
HTTP, HTTPS = 80, 443
AUTHENTICATION = "407"  # status of a proxy that requires a user
KINDS = {  # scheme of a proxy -> its kind, for SOCKS as named in the library
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

    kind: HTTP, SOCKS4 or SOCKS5.
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


class ProxyError(OSError):
    """A connection that a proxy does not make.

    reason: what happened, after the name of the proxy.
    remedy: what to do about it.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason, self.remedy = reason, remedy
        super().__init__(f"{reason}; {remedy}")


def find_proxy(scheme: str, host: str, port: int) -> Proxy | None:
    """Return the proxy for a connection; None: connect directly, as to this machine.

    scheme: of the address, one of VARIABLES. Raises ConfigError for a proxy of an unknown kind.
    """
    if _is_this_machine(host) or proxy_bypass(f"{host}:{port}"):
        return None
    proxies = getproxies()
    web = ["https"] if scheme == "mqtts" and port == HTTPS else []
    for name in (VARIABLES[scheme], *web, "all"):
        if text := proxies.get(name):
            return _parse(f"{name}_proxy", text)
    return None


def open_connection(scheme: str, host: str, port: int, timeout: float) -> socket.socket:
    """Open a TCP connection, through the proxy if there is one. Raises OSError, ConfigError,
    MissingExtra.
    """
    proxy = find_proxy(scheme, host, port)
    if proxy is None:
        return socket.create_connection((host, port), timeout)
    connect = _open_tunnel if proxy.kind == "HTTP" else _open_socks
    made = None
    try:
        with ConnectionDeadline(timeout) as deadline:
            made = connect(proxy, host, port, deadline)
    except (OSError, HTTPException) as error:
        if made is not None:  # the deadline came just after the connection
            made.close()
        raise _explain(proxy, f"{host}:{port}", error) from error
    made.settimeout(timeout)
    return made


def _open_tunnel(proxy: Proxy, host: str, port: int, deadline: ConnectionDeadline) -> socket.socket:
    """Connect by CONNECT (RFC 9110, section 9.3.6)."""
    # not by the library: before Python 3.11.8, it sends an IPv6 address without its brackets
    name = f"[{host}]" if ":" in host else host.encode("idna").decode()
    lines = [f"CONNECT {name}:{port} HTTP/1.1", f"Host: {name}:{port}"]
    if proxy.user is not None:
        user = f"{proxy.user}:{proxy.password or ''}".encode()
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(user).decode()}")
    at = proxy.host, HTTP if proxy.port is None else proxy.port
    made = socket.create_connection(at, deadline.left)
    try:
        deadline.watch(made)
        made.sendall("\r\n".join([*lines, "", ""]).encode())
        answer = HTTPResponse(made, method="CONNECT")
        answer.begin()
        answer.close()
        if answer.status != HTTPStatus.OK:
            raise OSError(f"Tunnel connection failed: {answer.status} {answer.reason}")
    except BaseException:
        made.close()
        raise
    return made


def _open_socks(proxy: Proxy, host: str, port: int, deadline: ConnectionDeadline) -> socket.socket:
    with require_extra(f"the {proxy.variable} of the environment", "proxy", "pysocks"):
        import socks
    kind = getattr(socks, proxy.kind)
    at = proxy.host, proxy.port or socks.DEFAULT_PORTS[kind]
    failure = OSError("its name has no address")
    for *types, _, _ in socket.getaddrinfo(*at, type=socket.SOCK_STREAM):
        client = socks.socksocket(*types)
        client.set_proxy(kind, *at, True, proxy.user, proxy.password)
        made: socket.socket = client
        made.settimeout(deadline.left)
        deadline.watch(made)
        try:
            made.connect((host, port))
        except OSError as error:
            made.close()
            failure = error
        else:
            return made
    raise failure


def _explain(proxy: Proxy, target: str, error: OSError | HTTPException) -> ProxyError:
    cause = getattr(error, "socket_err", None) or error  # of the library for SOCKS
    text = make_safe(str(error).strip()) or type(error).__name__
    if f" {AUTHENTICATION}" in text:
        remedy = (
            f"{proxy.variable} must name a user: http://USER:PASSWORD@HOST:PORT"
            if proxy.user is None
            else f"check user and password in {proxy.variable}"
        )
    elif isinstance(cause, ConnectionRefusedError | TimeoutError | socket.gaierror):
        remedy = f"check {proxy.variable}, or name the broker's host in no_proxy"
    else:
        remedy = (
            f"check that the proxy reaches {target} and allows connections to this port (many "
            "allow only 443)"
        )
    return ProxyError(text, remedy)


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
