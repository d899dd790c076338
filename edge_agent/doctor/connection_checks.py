"""Check the connection to the broker and the coordinator step by step, from DNS, TCP and TLS to
the clock, up to the first failure that the next steps depend on. `examine` adds the checks of the
device: all of `edge-agent doctor`.

The device joins no run; it only requests an echo from the coordinator.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edge_agent.doctor.broker_checks import (
    TIMEOUT,
    Client,
    check_coordinator,
    check_credentials,
    check_isolation,
    check_packets,
    check_rights,
    find_card,
    format_elapsed,
    is_local,
)
from edge_agent.doctor.check_result import Check, report_error
from edge_agent.doctor.device_checks import check_clock, check_device
from edge_agent.doctor.non_mqtt_checks import check_link
from federated.errors import EspalierError, LinkError
from federated.install_command import pip_command
from federated.wire import messages, tls, topics
from federated.wire.link import get_scheme
from federated.wire.mqtt_address import PORTS, MqttAddress, parse_mqtt_address

__all__ = ["check_connection", "examine"]

SOON = 14  # days left of a certificate that lead to a warning
NO_RUN = "doctor"  # stands for a run in topics if none is found


def check_connection(broker: str, run: str | None, name: str) -> Iterator[Check | messages.Run]:
    """Yield the checks, and the run's card if there is one. Raises UsageError, ConfigError."""
    topics.probe(run or NO_RUN, name)  # rejects invalid names before the first check
    if get_scheme(broker) not in PORTS:
        yield from check_link(broker, run, name)
        return
    address = parse_mqtt_address(broker)
    for step in (check_dns, check_tcp, check_tls):
        check = step(address)
        yield check
        if check.state == "fail":
            return
    if address.cert is not None:
        yield check_certificate(Path(address.cert), name)
    try:
        client = Client(address, f"doctor-{name[:40]}-{secrets.token_hex(4)}")
    except EspalierError as error:
        yield report_error("credentials", error)
        return
    with client:
        yield check_credentials(address, client)
        try:
            yield from check_run(client, address, run, name)
        except LinkError as error:
            yield report_error("broker", error)
    yield check_clock()


def check_run(
    client: Client, address: MqttAddress, run: str | None, name: str
) -> Iterator[Check | messages.Run]:
    """Yield the checks that need a connection to the broker. Raises LinkError if it restarts."""
    card, check = find_card(client, run)
    yield check
    if card is not None:
        yield card
    topic_run = card.run if card is not None else run or NO_RUN
    yield check_rights(client, topic_run, name)
    yield check_isolation(client, topic_run)
    yield check_packets(client, address, topic_run, name)
    if card is not None:
        yield from check_coordinator(client, card.run, name)


# ---- before MQTT ---------------------------------------------------------------------------------


def check_dns(address: MqttAddress) -> Check:
    """Resolve the broker's host name."""
    host, start = address.host, time.perf_counter()
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
        socket.create_connection((address.host, address.port), TIMEOUT).close()
    except ConnectionRefusedError:
        reason = "connection refused"
        remedy = "start a broker there (coordinator start), or check host and port"
    except TimeoutError:
        reason = f"no answer within {TIMEOUT:.0f} s"
        remedy = "check the address, and that no firewall blocks the port"
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
            "use mqtts:// (coordinator start --tls)",
        )
    try:
        with (
            socket.create_connection((address.host, address.port), TIMEOUT) as plain,
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
    names = ", ".join(str(pair[1]) for pair in certificate.get("subjectAltName", ()))
    days = (ssl.cert_time_to_seconds(certificate["notAfter"]) - time.time()) / 86400
    found = (
        f"{version}, {cipher[0] if cipher else 'unknown cipher'}; trusted, for {names}, "
        f"{days:.0f} days left"
    )
    if days < SOON:
        return Check(
            "tls",
            "warn",
            found,
            "the broker's certificate expires soon: restart the coordinator, which renews it",
        )
    return Check("tls", "ok", found)


def check_certificate(path: Path, name: str) -> Check:
    """Check the owner and the expiry of this device's certificate."""
    try:
        from cryptography import x509
    except ModuleNotFoundError:
        return Check(
            "certificate",
            "warn",
            f"{path} is not checked",
            f"{pip_command('secure')} to check its expiry and renew it",
        )
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        return Check(
            "certificate",
            "fail",
            f"{path} contains no certificate ({error})",
            "enrol this device (coordinator enroll, edge-agent join --token-file)",
            3,
        )
    common_names = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    owners = [str(one.value) for one in common_names]
    days = (certificate.not_valid_after_utc.timestamp() - time.time()) / 86400
    found = f"of {', '.join(owners) or 'nobody'}, {days:.0f} days left"
    if name not in owners:
        return Check(
            "certificate",
            "fail",
            found,
            f"this agent's name is '{name}': set --name, or enrol this name",
            3,
        )
    if days < 0:
        return Check(
            "certificate",
            "fail",
            found,
            "enrol this device again (coordinator enroll, edge-agent join --token-file), or "
            "correct its clock",
            3,
        )
    if days < SOON:
        return Check("certificate", "warn", found, "edge-agent join renews it while it runs")
    return Check("certificate", "ok", found)


def examine(broker: str | None, run: str | None, name: str, store: Path) -> Iterator[Check]:
    """Run all checks and yield each result at once. Without a broker, check only the device.
    Raises UsageError for a malformed address or name, ConfigError for a link that cannot be loaded.
    """
    card: messages.Run | None = None
    if broker is not None:
        for result in check_connection(broker, run, name):
            if isinstance(result, messages.Run):
                card = result
            else:
                yield result
    yield from check_device(store, card)
