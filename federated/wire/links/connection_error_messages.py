"""Explain why a client cannot connect to a broker, with the remedy."""

from __future__ import annotations

import base64
import contextlib
import errno
import socket
import ssl
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException

from federated.safe_text import make_safe
from federated.system.connection_deadline import ConnectionDeadline
from federated.system.proxies import ProxyError, find_proxy
from federated.wire import tls
from federated.wire.mqtt_address import MqttAddress

__all__ = ["describe", "explain", "explain_silence"]

OTHERS = {  # scheme of an address -> what else may serve MQTT at the same port
    "mqtt": "mqtts:// for a port with TLS, or ws:// or wss:// for WebSockets",
    "mqtts": "wss:// for WebSockets with TLS",
    "ws": "another path",
    "wss": "another path",
}
DENIALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


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
            why = _explain_websockets(address)
        case _:
            why = f"{type(error).__name__}: {error}"
    return f"{describe(address)}: {why}"


def explain_silence(address: MqttAddress) -> str:
    """Explain a server that accepts connections, and does not answer as an MQTT broker."""
    return (
        "the port is open, but no MQTT broker answers; try another port, or "
        f"{OTHERS[address.scheme]}"
    )


def _explain_websockets(address: MqttAddress) -> str:
    """Explain why a server does not offer WebSockets, by what it answers to another request."""
    try:
        status, phrase = _request_websockets(address)
    except (OSError, HTTPException):
        plain = "mqtts" if address.tls else "mqtt"
        secure = "" if address.tls else ", for a port with TLS wss://"
        return (
            "it closes the connection when asked for WebSockets; for a port without WebSockets use "
            f"{plain}://{secure}"
        )
    if status == HTTPStatus.SWITCHING_PROTOCOLS:
        return (
            f"it offers WebSockets at {address.path}, but its answer is invalid; try again, or "
            "check whether a proxy or firewall changes it"
        )
    if status in DENIALS:
        remedy = "check the path, and let its operator allow this device"
    elif status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        remedy = "the web server does not reach the broker behind it: tell its operator"
    else:
        secure = "" if address.tls else "; for a port with TLS use wss://"
        remedy = f"check port and path (most brokers use /mqtt){secure}"
    return f"it offers no WebSockets at {address.path} ({status} {make_safe(phrase)}); {remedy}"


def _request_websockets(address: MqttAddress) -> tuple[int, str]:
    """Return the status and the phrase of a server's answer. Raises OSError, HTTPException."""
    headers = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "mqtt",
    }
    with (
        contextlib.closing(HTTPConnection(address.host, address.port)) as link,
        ConnectionDeadline(tls.TIMEOUT) as deadline,
    ):
        plain = link.sock = tls.dial(address, deadline.left)
        deadline.watch(plain)
        if address.tls:
            link.sock = tls.make_context(address).wrap_socket(plain, server_hostname=address.host)
        link.request("GET", address.path or "/", headers=headers)
        answer = link.getresponse()
        return answer.status, answer.reason


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
