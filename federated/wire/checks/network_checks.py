"""Check the way to a broker step by step: DNS, TCP, TLS, and the broker's answer to credentials."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any

from federated.errors import EspalierError
from federated.runtime.listen_address import is_loopback
from federated.system.proxies import ProxyError, find_proxy
from federated.wire import tls
from federated.wire.checks import request_client
from federated.wire.checks.check_result import Check, report_error
from federated.wire.checks.request_client import Client
from federated.wire.mqtt_address import MqttAddress

__all__ = [
    "NO_RIGHTS",
    "SOON",
    "check_credentials",
    "check_network",
    "check_tls",
    "format_elapsed",
]

SOON = 14  # days left of a certificate that lead to a warning
NO_RIGHTS = (
    "let the broker authenticate its clients: coordinator start --tls, or a broker with the rights "
    "of deploy/mosquitto"
)


def check_network(address: MqttAddress) -> Iterator[Check]:
    """Yield the checks up to the first that fails. Raises ConfigError for an invalid proxy."""
    for step in (check_dns, check_tcp, check_tls):
        check = step(address)
        yield check
        if check.state == "fail":
            return


def check_dns(address: MqttAddress) -> Check:
    """Resolve the broker's host name."""
    host, start = address.host, time.perf_counter()
    if (proxy := find_proxy(address.scheme, host, address.port)) is not None:
        return Check("dns", "ok", f"the {proxy} resolves {host}")
    try:
        ipaddress.ip_address(host)
        return Check("dns", "ok", f"{host} is an IP address")
    except ValueError:
        pass
    try:
        resolved = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return Check(
            "dns",
            "fail",
            f"'{host}' does not resolve ({reason})",
            "check the name and this device's name server, or use an IP address",
            5,
        )
    addresses = ", ".join(sorted({str(info[4][0]) for info in resolved}))
    return Check("dns", "ok", f"{host} is {addresses} ({format_elapsed(start)})")


def check_tcp(address: MqttAddress) -> Check:
    """Open a TCP connection to the broker."""
    start, where = time.perf_counter(), f"{address.host} port {address.port}"
    try:
        tls.dial(address, request_client.TIMEOUT).close()
    except EspalierError as error:
        return report_error("tcp", error)
    except ProxyError as error:
        reason, remedy = error.reason, error.remedy
    except ConnectionRefusedError:
        reason = "connection refused"
        remedy = "start a broker there (coordinator start), or check host and port"
    except TimeoutError:
        reason = f"no answer within {request_client.TIMEOUT:.0f} s"
        remedy = (
            "check the address, and that no firewall blocks the port; if only port 443 is open, "
            "use wss://, or mqtts:// with port 443"
        )
    except OSError as error:
        reason = error.strerror or str(error)
        remedy = "check that the network is up, and the address"
    else:
        return Check("tcp", "ok", f"{where} answers ({format_elapsed(start)})")
    return Check("tcp", "fail", f"{where}: {reason}", remedy, 5)


def check_tls(address: MqttAddress) -> Check:
    """Perform a TLS handshake and check the broker's certificate."""
    if not address.tls:
        if is_local(address.host):
            return Check("tls", "ok", "not used; the broker is on this machine")
        return Check(
            "tls",
            "warn",
            "not used: anyone on the network path can read and change everything",
            f"use {address.scheme}s:// (coordinator start --tls)",
        )
    try:
        with (
            tls.dial(address, request_client.TIMEOUT) as plain,
            tls.make_context(address).wrap_socket(plain, server_hostname=address.host) as secured,
        ):
            certificate: dict[str, Any] = dict(secured.getpeercert() or {})
            version, cipher = secured.version(), secured.cipher()
    except ssl.SSLError as error:
        reason = (
            error.verify_message
            if isinstance(error, ssl.SSLCertVerificationError)
            else error.reason or str(error)
        )
        return Check("tls", "fail", reason.lower(), tls.explain(address, error), 5)
    except EspalierError as error:
        return Check(
            "tls",
            "fail",
            str(error),
            "set ?ca=FILE&cert=FILE of this device's enrolment, or enrol it "
            "(edge-agent join --token)",
            error.exit_code,
        )
    except OSError as error:
        return Check(
            "tls",
            "fail",
            f"the handshake failed ({error.strerror or error})",
            "check that this port uses TLS",
            5,
        )
    return _describe_handshake(version, cipher[0] if cipher else "unknown cipher", certificate)


def _describe_handshake(version: str | None, cipher: str, certificate: dict[str, Any]) -> Check:
    names = ", ".join(str(pair[1]) for pair in certificate.get("subjectAltName", ()))
    days = (ssl.cert_time_to_seconds(certificate["notAfter"]) - time.time()) / 86400
    found = f"{version}, {cipher}; trusted, for {names}, {days:.0f} days left"
    if days < SOON:
        return Check(
            "tls",
            "warn",
            found,
            "the broker's certificate expires soon: restart the coordinator, which renews it",
        )
    return Check("tls", "ok", found)


def check_credentials(address: MqttAddress, client: Client) -> Check:
    """Report how the broker authenticated this client."""
    version = "MQTT 5" if client.protocol == 5 else "MQTT 3.1.1"
    if address.cert or address.user is not None:
        credential = "certificate" if address.cert else f"user {address.user}"
        return Check(
            "credentials",
            "ok",
            f"{version}, accepted by {credential} ({client.connect_seconds * 1000:.0f} ms)",
        )
    found = f"{version}, accepted without credentials"
    if is_local(address.host):
        return Check("credentials", "ok", found)
    return Check("credentials", "warn", f"{found}, like any client", NO_RIGHTS)


def is_local(host: str) -> bool:
    """Return True if a host is this machine; False if its name does not resolve."""
    try:
        return is_loopback(host)
    except OSError:
        return False


def format_elapsed(start: float) -> str:
    return f"{(time.perf_counter() - start) * 1000:.0f} ms"
