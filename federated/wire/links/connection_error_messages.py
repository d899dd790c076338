"""Explain why a client cannot connect to a broker, with the remedy."""

from __future__ import annotations

import errno
import socket
import ssl

from federated.system.proxies import ProxyError, find_proxy
from federated.wire import tls
from federated.wire.mqtt_address import MqttAddress

__all__ = ["describe", "explain"]


def explain(address: MqttAddress, error: Exception, timeout: float) -> str:
    """Explain an error of a connection that was attempted for `timeout` seconds."""
    match error:
        case ProxyError():
            why = str(error)
        case socket.gaierror():
            why = f"the name '{address.host}' does not resolve; check it, or use an IP address"
        case ConnectionRefusedError():
            why = (
                "connection refused; start a broker (mosquitto, or coordinator start), or check "
                "host and port"
            )
        case ssl.SSLError():
            why = tls.explain(address, error)
        case TimeoutError():
            why = (
                f"no answer within {timeout:.0f} s; check the address, and that no firewall blocks "
                "the port"
            )
        case OSError(errno=errno.ENETUNREACH | errno.EHOSTUNREACH):
            why = "no route to the host; check the network and the address"
        case OSError(errno=errno.ECONNRESET | errno.EPIPE) if address.tls:
            why = (
                "the connection was closed during the TLS handshake; if the port does not use TLS, "
                f"use {address.scheme.removesuffix('s')}://, otherwise check that an MQTT broker "
                "listens on it"
            )
        case OSError(errno=errno.ECONNRESET | errno.EPIPE):
            why = (
                f"the connection was closed; if the broker requires TLS, use {address.scheme}s://, "
                "otherwise check that an MQTT broker listens on the port"
            )
        case ConnectionError() if address.path is not None:
            why = (
                f"no MQTT broker answers to WebSockets at the path {address.path}; check port and "
                "path"
            )
        case _:
            why = f"{type(error).__name__}: {error}"
    return f"{describe(address)}: {why}"


def describe(address: MqttAddress) -> str:
    """Return the beginning of an error: the broker, and its IP addresses or the proxy."""
    proxy = find_proxy(address.scheme, address.host, address.port)
    way = _resolve(address) if proxy is None else f" through the {proxy}"
    return f"cannot connect to the broker at {address}{way}"


def _resolve(address: MqttAddress) -> str:
    """Return the IP addresses of a name as text."""
    try:
        found = sorted(
            {
                str(info[4][0])
                for info in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            }
        )
    except OSError:
        return ""
    return "" if found == [address.host] else f" ({', '.join(found)})"
