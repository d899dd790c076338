"""The way to the broker and the coordinator, step by step until one fails that the rest need: names, TCP, TLS, credentials, rights, sizes, time."""

from __future__ import annotations

import ipaddress
import math
import queue
import secrets
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from edge_agent.doctor import Check, State
from federated.errors import EspalierError, LinkError, ProtocolMismatch, WireError
from federated.wire import envelope, messages, mqtt, secure, topics
from federated.wire.address import Address, parse_address
from federated.wire.link import CHUNK, OVERHEAD, PROBES

__all__ = ["wire"]

PATIENCE = 5.0  # seconds for each answer
SOON = 14  # days left of a certificate that are worth a word
SKEW = (5.0, 300.0)  # seconds that clocks may differ before a word, and before certificates and logs are of no use
FOREIGN = "doctor"  # stands for a run in topics, where none is found
PACKET = "raise the broker's packet limit (mosquitto: max_packet_size)"
RIGHTS = "the broker must know this device by its agent's name: join as the user or certificate of that name (--name), and let its rights use %u"
NO_RIGHTS = "let the broker know its clients: coordinator start --tls, or a broker with the rights of deploy/mosquitto"

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


# ---- before MQTT -------------------------------------------------------------------------------------------------------


def resolved(address: Address) -> Check:
    try:
        ipaddress.ip_address(address.host)
        return Check("dns", "ok", f"{address.host} is an address, no name")
    except ValueError:
        start = time.perf_counter()
    try:
        found = sorted({str(info[4][0]) for info in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)})
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return Check(
            "dns", "fail", f"'{address.host}' does not resolve ({why})", "check the name and this device's name server, or give an address", 5
        )
    return Check("dns", "ok", f"{address.host} is {', '.join(found)} ({took(start)})")


def connected(address: Address) -> Check:
    start, where = time.perf_counter(), f"{address.host} port {address.port}"
    try:
        socket.create_connection((address.host, address.port), PATIENCE).close()
    except ConnectionRefusedError:
        return Check("tcp", "fail", f"{where}: refused", "nothing listens there: start a broker (coordinator start), or check host and port", 5)
    except TimeoutError:
        return Check("tcp", "fail", f"{where}: no answer within {PATIENCE:.0f} s", "check the address, and any firewall between", 5)
    except OSError as error:
        return Check("tcp", "fail", f"{where}: {error.strerror or error}", "check that the network is up, and the address", 5)
    return Check("tcp", "ok", f"{where} answers ({took(start)})")


def encrypted(address: Address) -> Check:
    if not address.tls:
        if local(address.host):
            return Check("tls", "ok", "none, and the broker is on this machine")
        return Check("tls", "warn", "none: others on the way can read and change everything", "use mqtts:// (coordinator start --tls)")
    try:
        with (
            socket.create_connection((address.host, address.port), PATIENCE) as plain,
            secure.context(address).wrap_socket(plain, server_hostname=address.host) as made,
        ):
            shown: dict[str, Any] = dict(made.getpeercert() or {})
            version, cipher = made.version(), made.cipher()
    except ssl.SSLError as error:
        what = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error.reason or str(error)
        return Check("tls", "fail", what.lower(), secure.explain(address, error), 5)
    except EspalierError as error:
        return Check(
            "tls", "fail", str(error), "give ?ca=FILE&cert=FILE of this device's enrolment, or enrol it (edge-agent join --token)", error.exit_code
        )
    except OSError as error:
        return Check("tls", "fail", f"the handshake broke off ({error.strerror or error})", "is this the port that speaks TLS?", 5)
    names = ", ".join(str(pair[1]) for pair in shown.get("subjectAltName", ()))
    days = (ssl.cert_time_to_seconds(shown["notAfter"]) - time.time()) / 86400
    told = f"{version}, {cipher[0] if cipher else 'unknown cipher'}; trusted, for {names}, {days:.0f} days left"
    return (
        Check("tls", "warn", told, "the broker's certificate ends soon: start the coordinator anew, which renews it")
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
            "certificate", "warn", f"{address.cert} is not looked into", "to see when it ends and to renew it: pip install 'espalier[secure]'"
        )
    try:
        mine = x509.load_pem_x509_certificate(Path(address.cert).read_bytes())
    except (OSError, ValueError) as error:
        return Check("certificate", "fail", f"{address.cert} holds no certificate ({error})", "enrol this device (edge-agent join --token)", 3)
    owners = [str(one.value) for one in mine.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    days = (mine.not_valid_after_utc.timestamp() - time.time()) / 86400
    told = f"of {', '.join(owners) or 'nobody'}, {days:.0f} days left"
    if name not in owners:
        return Check("certificate", "fail", told, f"this agent is called '{name}': choose by --name, or enrol it", 3)
    if days < 0:
        return Check("certificate", "fail", told, "enrol this device anew (coordinator enroll, edge-agent join --token), or set its clock right", 3)
    return Check("certificate", "warn", told, "it is renewed by edge-agent join while it runs") if days < SOON else Check("certificate", "ok", told)


def local(host: str) -> bool:
    try:
        return all(
            ipaddress.ip_address(str(info[4][0]).split("%")[0]).is_loopback for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        )
    except OSError:
        return False


# ---- over MQTT ---------------------------------------------------------------------------------------------------------


class Client:
    """One connection, whose answers are waited for."""

    def __init__(self, address: Address, client_id: str) -> None:
        """Raises LinkError, ConfigError."""
        self._heard = queue.SimpleQueue[tuple[str, bytes]]()
        self._published = queue.SimpleQueue[str]()
        self._subscribed = queue.SimpleQueue[str]()
        handlers = mqtt.Handlers(
            lambda c, kept: None,
            lambda c, reason: self._published.put(f"the broker hung up ({reason})"),
            lambda message: self._heard.put((message.topic, bytes(message.payload))),
            lambda reason: self._published.put(str(reason) if reason.is_failure else ""),
            lambda mid, reasons: self._subscribed.put(next((str(reason) for reason in reasons if reason.is_failure), "")),
        )
        self.start = time.perf_counter()
        greeting = mqtt.connect(address, client_id, None, handlers, timeout=2 * PATIENCE)
        self.took = time.perf_counter() - self.start
        self._client, self.protocol, self.max_packet = greeting.client, greeting.protocol, greeting.max_packet

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        mqtt.part(self._client, self.protocol)

    def publish(self, topic: str, payload: bytes) -> str:
        """Why the broker does not take it; empty where it does."""
        self._client.publish(topic, payload, qos=1)
        return self._word(self._published)

    def subscribe(self, pattern: str) -> str:
        """Why the broker does not grant it; empty where it does, or says so."""
        self._client.subscribe(pattern, qos=1)
        return self._word(self._subscribed)

    def hear(self, topic: str, patience: float = PATIENCE) -> bytes | None:
        """The next payload on a topic; of any, for an empty one."""
        until = time.monotonic() + patience
        while (left := until - time.monotonic()) > 0:
            try:
                where, payload = self._heard.get(timeout=left)
            except queue.Empty:
                return None
            if not topic or where == topic:
                return payload
        return None

    def _word(self, words: queue.SimpleQueue[str]) -> str:
        try:
            return words.get(timeout=PATIENCE)
        except queue.Empty:
            return f"no answer within {PATIENCE:.0f} s"


def credentials(address: Address, client: Client) -> Check:
    how = "its certificate" if address.cert else f"user {address.user}" if address.user is not None else ""
    version = "MQTT 5" if client.protocol == 5 else "MQTT 3.1.1"
    told = f"{version}, let in by {how} ({client.took * 1000:.0f} ms)" if how else f"{version}, let in without credentials"
    if how or local(address.host):
        return Check("credentials", "ok", told)
    return Check("credentials", "warn", f"{told}, as anyone is", NO_RIGHTS)


def card_of(client: Client, run: str | None) -> tuple[messages.Run | None, Check]:
    """The card of the run to join, of those that the broker keeps."""
    refused = client.subscribe(topics.run(run) if run else topics.any_run())
    if refused:
        return None, Check("run", "fail", f"the broker does not let this device hear of runs ({refused})", RIGHTS, 5)
    found: dict[str, messages.Run] = {}
    wait = PATIENCE / 2
    while (payload := client.hear("", wait)) is not None:
        try:
            message = envelope.decode(payload) if payload else None
        except ProtocolMismatch as error:
            return None, Check("run", "fail", str(error), "install one version of espalier on the coordinator and here", 6)
        except WireError:
            continue
        if isinstance(message, messages.Run):
            found[message.run], wait = message, 0.5
    if not found:
        what = f"no run named '{run}' here" if run else "no run here"
        return None, Check("run", "warn", what, "start a coordinator (coordinator start --broker ...); what needs one is not tried")
    if len(found) > 1:
        return None, Check("run", "fail", f"several: {', '.join(sorted(found))}", "choose one by --run", 6)
    card = next(iter(found.values()))
    return card, Check("run", "ok", f"'{card.run}': {card.method} of {card.model}")


def own_topics(client: Client, run: str, name: str) -> Check:
    """Whether this device is heard under its own name, and hears its commands."""
    own, word, start = topics.probe(run, name), secrets.token_bytes(8), time.perf_counter()
    refused = client.subscribe(own) or client.publish(own, word)
    if refused:
        return Check("rights", "fail", f"'{name}' may not use its own topics ({refused})", RIGHTS, 5)
    if client.hear(own) != word:
        return Check("rights", "fail", f"what '{name}' publishes on its own topics does not come back", RIGHTS, 5)
    if refused := client.subscribe(topics.command(run, name)):
        return Check("rights", "fail", f"'{name}' may not hear its commands ({refused})", RIGHTS, 5)
    return Check("rights", "ok", f"'{name}' publishes and hears on its own topics ({took(start)})")


def foreign_topics(client: Client, run: str, address: Address) -> Check:
    """Whether the broker keeps this device from speaking for another: nothing of what is tried reaches anyone but this device."""
    other, word = topics.probe(run, f"doctor-{secrets.token_hex(4)}"), secrets.token_bytes(8)
    client.subscribe(other)
    refused = client.publish(other, word)
    heard = None if refused else client.hear(other, PATIENCE / 2)
    if refused or (heard is None and client.protocol != 5):
        return Check("strangers", "ok", f"the broker keeps agents from each other's topics ({refused or 'nothing arrived'})")
    return Check("strangers", "warn", "any client may publish under another's name", NO_RIGHTS)


def packets(client: Client, address: Address, run: str, name: str) -> Check:
    """The largest payload that passes, of those that matter."""
    limit = client.max_packet - OVERHEAD
    said = f"the broker says {client.max_packet} bytes; " if client.max_packet < mqtt.MAX_PACKET else ""
    try:
        passed, rate = mqtt.measure(
            address, f"doctor-{name[:40]}-{secrets.token_hex(4)}", topics.probe(run, name), PROBES, limit=limit, version=client.protocol, timeout=10.0
        )
    except LinkError:
        return Check("packets", "fail", f"{said}not even {min(PROBES)} bytes pass", PACKET, 5)
    told = f"{said}{passed} bytes pass, {rate / 1e6:.3g} MB/s up"
    return Check("packets", "ok", told) if passed >= CHUNK + OVERHEAD else Check("packets", "warn", told, f"it works, in small chunks; {PACKET}")


def coordinator(client: Client, run: str, name: str) -> Iterator[Check]:
    """Whether the coordinator hears this device and is heard, and what its clock says."""
    sent, start = time.time(), time.perf_counter()
    refused = client.publish(topics.say(run, name), envelope.encode(messages.Echo(name, sent)))
    if refused:
        yield Check("coordinator", "fail", f"'{name}' may not speak to it ({refused})", RIGHTS, 5)
        return
    until = time.monotonic() + PATIENCE
    while (payload := client.hear(topics.command(run, name), until - time.monotonic())) is not None:
        try:
            answer = envelope.decode(payload)
        except WireError:
            continue
        if isinstance(answer, messages.Echo) and answer.sent == sent:
            passed = time.perf_counter() - start
            yield Check("coordinator", "ok", f"it hears this device and is heard ({passed * 1000:.0f} ms)")
            yield skewed(answer.time - (sent + passed / 2), passed)
            return
    yield Check("coordinator", "warn", f"no answer within {PATIENCE:.0f} s", "it may be computing, or gone: coordinator status on its machine says")


def skewed(seconds: float, passed: float) -> Check:
    """seconds: how far the coordinator's clock is ahead; passed: seconds of the question, within which nothing can be told."""
    off, remedy = max(0.0, abs(seconds) - passed / 2), "set this device's clock by the network: timedatectl set-ntp true"
    if not math.isfinite(seconds):
        return Check("skew", "warn", "the coordinator gives no time")
    told = f"this device is {abs(seconds):.1f} s {'behind' if seconds > 0 else 'ahead of'} the coordinator (known to {passed / 2:.2f} s)"
    state: State = "ok" if off < SKEW[0] else "warn" if off < SKEW[1] else "fail"
    return Check("skew", state, told, "" if state == "ok" else remedy, 3)


def clock() -> Check:
    """Whether the clock can be right at all: it is not before this program was installed."""
    now, installed = time.time(), Path(__file__).stat().st_mtime
    told = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < installed - 86400:
        return Check(
            "clock", "fail", f"{told}, before this program was installed", "set it: timedatectl set-ntp true; a Pi forgets the time without power", 3
        )
    return Check("clock", "ok", told)


def took(start: float) -> str:
    return f"{(time.perf_counter() - start) * 1000:.0f} ms"
