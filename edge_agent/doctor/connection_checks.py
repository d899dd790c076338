"""The way to the broker and the coordinator, step by step until one fails that the rest need:
names, TCP, TLS, credentials, rights, sizes, time.
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
    PATIENCE,
    Client,
    card_of,
    coordinator,
    credentials,
    foreign_topics,
    local,
    own_topics,
    packets,
    took,
)
from edge_agent.doctor.check import Check
from edge_agent.doctor.clock_check import clock
from federated.errors import EspalierError
from federated.wire import messages, tls, topics
from federated.wire.address import Address, parse_address

__all__ = ["wire"]

SOON = 14  # days left of a certificate that are worth a word
FOREIGN = "doctor"  # stands for a run in topics, where none is found

Found = Check | messages.Run


def wire(broker: str, run: str | None, name: str) -> Iterator[Found]:
    """The checks, and the run's card where there is one. Raises UsageError."""
    address = parse_address(broker)
    topics.probe(run or FOREIGN, name)  # names that are none are said at once
    for step in (resolved, connected, encrypted):
        found = step(address)
        yield found
        if found.state == "fail":
            return
    if address.cert is not None:
        yield own_certificate(address, name)
    try:
        client = Client(address, f"doctor-{name[:40]}-{secrets.token_hex(4)}")
    except EspalierError as error:
        what, _, remedy = str(error).partition(": ")
        yield Check("credentials", "fail", what, remedy, error.exit_code)
        return
    with client:
        yield credentials(address, client)
        card, said = card_of(client, run)
        yield said
        if card is not None:
            yield card
        where = card.run if card is not None else run or FOREIGN
        yield own_topics(client, where, name)
        yield foreign_topics(client, where, address)
        yield packets(client, address, where, name)
        if card is not None:
            yield from coordinator(client, card.run, name)
    yield clock()


# ---- before MQTT ---------------------------------------------------------------------------------


def resolved(address: Address) -> Check:
    try:
        ipaddress.ip_address(address.host)
        return Check("dns", "ok", f"{address.host} is an address, no name")
    except ValueError:
        start = time.perf_counter()
    try:
        found = sorted(
            {
                str(info[4][0])
                for info in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            }
        )
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return Check(
            "dns",
            "fail",
            f"'{address.host}' does not resolve ({why})",
            "check the name and this device's name server, or give an address",
            5,
        )
    return Check("dns", "ok", f"{address.host} is {', '.join(found)} ({took(start)})")


def connected(address: Address) -> Check:
    start, where = time.perf_counter(), f"{address.host} port {address.port}"
    try:
        socket.create_connection((address.host, address.port), PATIENCE).close()
    except ConnectionRefusedError:
        return Check(
            "tcp",
            "fail",
            f"{where}: refused",
            "nothing listens there: start a broker (coordinator start), or check host and port",
            5,
        )
    except TimeoutError:
        return Check(
            "tcp",
            "fail",
            f"{where}: no answer within {PATIENCE:.0f} s",
            "check the address, and any firewall between",
            5,
        )
    except OSError as error:
        return Check(
            "tcp",
            "fail",
            f"{where}: {error.strerror or error}",
            "check that the network is up, and the address",
            5,
        )
    return Check("tcp", "ok", f"{where} answers ({took(start)})")


def encrypted(address: Address) -> Check:
    if not address.tls:
        if local(address.host):
            return Check("tls", "ok", "none, and the broker is on this machine")
        return Check(
            "tls",
            "warn",
            "none: others on the way can read and change everything",
            "use mqtts:// (coordinator start --tls)",
        )
    try:
        with (
            socket.create_connection((address.host, address.port), PATIENCE) as plain,
            tls.context(address).wrap_socket(plain, server_hostname=address.host) as made,
        ):
            shown: dict[str, Any] = dict(made.getpeercert() or {})
            version, cipher = made.version(), made.cipher()
    except ssl.SSLError as error:
        what = (
            error.verify_message
            if isinstance(error, ssl.SSLCertVerificationError)
            else error.reason or str(error)
        )
        return Check("tls", "fail", what.lower(), tls.explain(address, error), 5)
    except EspalierError as error:
        return Check(
            "tls",
            "fail",
            str(error),
            "give ?ca=FILE&cert=FILE of this device's enrolment, or enrol it "
            "(edge-agent join --token)",
            error.exit_code,
        )
    except OSError as error:
        return Check(
            "tls",
            "fail",
            f"the handshake broke off ({error.strerror or error})",
            "is this the port that speaks TLS?",
            5,
        )
    names = ", ".join(str(pair[1]) for pair in shown.get("subjectAltName", ()))
    days = (ssl.cert_time_to_seconds(shown["notAfter"]) - time.time()) / 86400
    told = (
        f"{version}, {cipher[0] if cipher else 'unknown cipher'}; trusted, for {names}, "
        f"{days:.0f} days left"
    )
    return (
        Check(
            "tls",
            "warn",
            told,
            "the broker's certificate ends soon: start the coordinator anew, which renews it",
        )
        if days < SOON
        else Check("tls", "ok", told)
    )


def own_certificate(address: Address, name: str) -> Check:
    """What this device shows: whose it is, and how long it lasts."""
    assert address.cert is not None
    try:
        from cryptography import x509
    except ModuleNotFoundError:
        return Check(
            "certificate",
            "warn",
            f"{address.cert} is not looked into",
            "to see when it ends and to renew it: pip install 'espalier[secure]'",
        )
    try:
        mine = x509.load_pem_x509_certificate(Path(address.cert).read_bytes())
    except (OSError, ValueError) as error:
        return Check(
            "certificate",
            "fail",
            f"{address.cert} holds no certificate ({error})",
            "enrol this device (edge-agent join --token)",
            3,
        )
    owners = [
        str(one.value) for one in mine.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    ]
    days = (mine.not_valid_after_utc.timestamp() - time.time()) / 86400
    told = f"of {', '.join(owners) or 'nobody'}, {days:.0f} days left"
    if name not in owners:
        return Check(
            "certificate",
            "fail",
            told,
            f"this agent is called '{name}': choose by --name, or enrol it",
            3,
        )
    if days < 0:
        return Check(
            "certificate",
            "fail",
            told,
            "enrol this device anew (coordinator enroll, edge-agent join --token), or "
            "set its clock right",
            3,
        )
    return (
        Check("certificate", "warn", told, "it is renewed by edge-agent join while it runs")
        if days < SOON
        else Check("certificate", "ok", told)
    )
