"""The broker and the coordinator, asked over MQTT: credentials, the run, rights, sizes, and whether
the coordinator answers.

Each check has its line; what is published on the way reaches nobody but this device, and the
coordinator that is asked for an echo.
"""

from __future__ import annotations

import ipaddress
import queue
import secrets
import socket
import time
from collections.abc import Iterator
from types import TracebackType

from edge_agent.doctor.check import Check
from edge_agent.doctor.clock_check import skewed
from federated.errors import LinkError, ProtocolMismatch, WireError
from federated.wire import envelope, messages, topics
from federated.wire.address import Address
from federated.wire.link import CHUNK, OVERHEAD, PROBES
from federated.wire.links import paho_client as mqtt

__all__ = [
    "PATIENCE",
    "Client",
    "card_of",
    "coordinator",
    "credentials",
    "foreign_topics",
    "local",
    "own_topics",
    "packets",
    "took",
]

PATIENCE = 5.0  # seconds for each answer
PACKET = "raise the broker's packet limit (mosquitto: max_packet_size)"
RIGHTS = (
    "the broker must know this device by its agent's name: join as the user or certificate of "
    "that name (--name), and let its rights use %u"
)
NO_RIGHTS = (
    "let the broker know its clients: coordinator start --tls, or a broker with the rights of "
    "deploy/mosquitto"
)


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
            lambda mid, reasons: self._subscribed.put(
                next((str(reason) for reason in reasons if reason.is_failure), "")
            ),
        )
        self.start = time.perf_counter()
        setup = mqtt.ClientSetup(address, client_id, handlers=handlers)
        greeting = mqtt.connect(setup, timeout=2 * PATIENCE)
        self.took = time.perf_counter() - self.start
        self._client, self.protocol, self.max_packet = (
            greeting.client,
            greeting.protocol,
            greeting.max_packet,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
    how = (
        "its certificate"
        if address.cert
        else f"user {address.user}"
        if address.user is not None
        else ""
    )
    version = "MQTT 5" if client.protocol == 5 else "MQTT 3.1.1"
    told = (
        f"{version}, let in by {how} ({client.took * 1000:.0f} ms)"
        if how
        else f"{version}, let in without credentials"
    )
    if how or local(address.host):
        return Check("credentials", "ok", told)
    return Check("credentials", "warn", f"{told}, as anyone is", NO_RIGHTS)


def card_of(client: Client, run: str | None) -> tuple[messages.Run | None, Check]:
    """The card of the run to join, of those that the broker keeps."""
    refused = client.subscribe(topics.run(run) if run else topics.any_run())
    if refused:
        return None, Check(
            "run",
            "fail",
            f"the broker does not let this device hear of runs ({refused})",
            RIGHTS,
            5,
        )
    found: dict[str, messages.Run] = {}
    wait = PATIENCE / 2
    while (payload := client.hear("", wait)) is not None:
        try:
            message = envelope.decode(payload) if payload else None
        except ProtocolMismatch as error:
            return None, Check(
                "run",
                "fail",
                str(error),
                "install one version of espalier on the coordinator and here",
                6,
            )
        except WireError:
            continue
        if isinstance(message, messages.Run):
            found[message.run], wait = message, 0.5
    if not found:
        what = f"no run named '{run}' here" if run else "no run here"
        return None, Check(
            "run",
            "warn",
            what,
            "start a coordinator (coordinator start --broker ...); what needs one is not tried",
        )
    if len(found) > 1:
        return None, Check(
            "run", "fail", f"several: {', '.join(sorted(found))}", "choose one by --run", 6
        )
    card = next(iter(found.values()))
    return card, Check("run", "ok", f"'{card.run}': {card.method} of {card.model}")


def own_topics(client: Client, run: str, name: str) -> Check:
    """Whether this device is heard under its own name, and hears its commands."""
    own, word, start = topics.probe(run, name), secrets.token_bytes(8), time.perf_counter()
    refused = client.subscribe(own) or client.publish(own, word)
    if refused:
        return Check(
            "rights", "fail", f"'{name}' may not use its own topics ({refused})", RIGHTS, 5
        )
    if client.hear(own) != word:
        return Check(
            "rights",
            "fail",
            f"what '{name}' publishes on its own topics does not come back",
            RIGHTS,
            5,
        )
    if refused := client.subscribe(topics.command(run, name)):
        return Check("rights", "fail", f"'{name}' may not hear its commands ({refused})", RIGHTS, 5)
    return Check("rights", "ok", f"'{name}' publishes and hears on its own topics ({took(start)})")


def foreign_topics(client: Client, run: str, address: Address) -> Check:
    """Whether the broker keeps this device from speaking for another: nothing of what is tried
    reaches anyone but this device.
    """
    other, word = topics.probe(run, f"doctor-{secrets.token_hex(4)}"), secrets.token_bytes(8)
    client.subscribe(other)
    refused = client.publish(other, word)
    heard = None if refused else client.hear(other, PATIENCE / 2)
    if refused or (heard is None and client.protocol != 5):
        return Check(
            "strangers",
            "ok",
            f"the broker keeps agents from each other's topics ({refused or 'nothing arrived'})",
        )
    return Check("strangers", "warn", "any client may publish under another's name", NO_RIGHTS)


def packets(client: Client, address: Address, run: str, name: str) -> Check:
    """The largest payload that passes, of those that matter."""
    limit = client.max_packet - OVERHEAD
    said = (
        f"the broker says {client.max_packet} bytes; "
        if client.max_packet < mqtt.MAX_PACKET
        else ""
    )
    try:
        passed, rate = mqtt.measure(
            mqtt.ClientSetup(address, f"doctor-{name[:40]}-{secrets.token_hex(4)}"),
            topics.probe(run, name),
            PROBES,
            limit=limit,
            version=client.protocol,
            timeout=10.0,
        )
    except LinkError:
        return Check("packets", "fail", f"{said}not even {min(PROBES)} bytes pass", PACKET, 5)
    told = f"{said}{passed} bytes pass, {rate / 1e6:.3g} MB/s up"
    return (
        Check("packets", "ok", told)
        if passed >= CHUNK + OVERHEAD
        else Check("packets", "warn", told, f"it works, in small chunks; {PACKET}")
    )


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
            yield Check(
                "coordinator", "ok", f"it hears this device and is heard ({passed * 1000:.0f} ms)"
            )
            yield skewed(answer.time - (sent + passed / 2), passed)
            return
    yield Check(
        "coordinator",
        "warn",
        f"no answer within {PATIENCE:.0f} s",
        "it may be computing, or gone: coordinator status on its machine says",
    )


def local(host: str) -> bool:
    try:
        return all(
            ipaddress.ip_address(str(info[4][0]).split("%")[0]).is_loopback
            for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        )
    except OSError:
        return False


def took(start: float) -> str:
    return f"{(time.perf_counter() - start) * 1000:.0f} ms"
