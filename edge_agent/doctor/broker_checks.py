"""Check the broker and the coordinator over MQTT: credentials, run, rights, packet size, and an
echo from the coordinator.

What the checks publish reaches only this device, except the request for an echo.
"""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol

from edge_agent.doctor.check_result import Check
from edge_agent.doctor.device_checks import check_skew
from federated.errors import LinkError, ProtocolMismatch, WireError
from federated.runtime.listen_address import is_loopback
from federated.wire import envelope, messages, topics
from federated.wire.link import CHUNK, OVERHEAD, PROBES
from federated.wire.links import mqtt_client_setup as mqtt
from federated.wire.mqtt_address import MqttAddress

__all__ = [
    "TIMEOUT",
    "Client",
    "check_coordinator",
    "check_credentials",
    "check_isolation",
    "check_packets",
    "check_rights",
    "find_card",
    "format_elapsed",
    "is_local",
    "report_packets",
]

TIMEOUT = 5.0  # seconds per answer
PACKET = "raise the broker's packet limit (mosquitto: max_packet_size)"
RIGHTS = (
    "the broker must authenticate this device by its agent's name: connect with the user or "
    "certificate of that name (--name), and use %u in the broker's rights"
)
NO_RIGHTS = (
    "let the broker authenticate its clients: coordinator start --tls, or a broker with the rights "
    "of deploy/mosquitto"
)


class Requester(Protocol):
    """A connection that waits for each answer; see Client."""

    def publish(self, topic: str, payload: bytes) -> str: ...
    def subscribe(self, pattern: str) -> str: ...
    def receive(self, topic: str, timeout: float | None = None) -> bytes | None: ...


class Client:
    """A connection to the broker that waits for each answer."""

    def __init__(self, address: MqttAddress, client_id: str) -> None:
        """Raises LinkError, ConfigError."""
        self._messages = queue.SimpleQueue[tuple[str, bytes]]()
        self._published = queue.SimpleQueue[str]()
        self._subscribed = queue.SimpleQueue[str]()
        self._connected = queue.SimpleQueue[bool]()  # for each connection: session kept
        self._lost = threading.Event()
        handlers = mqtt.Handlers(
            lambda c, kept: self._connected.put(kept),
            self._lose,
            lambda message: self._messages.put((message.topic, bytes(message.payload))),
            lambda reason: self._published.put(str(reason) if reason.is_failure else ""),
            lambda mid, reasons: self._subscribed.put(
                next((str(reason) for reason in reasons if reason.is_failure), "")
            ),
        )
        start = time.perf_counter()
        setup = mqtt.ClientSetup(address, client_id, handlers=handlers)
        greeting = mqtt.connect(setup, timeout=2 * TIMEOUT)
        self.connect_seconds = time.perf_counter() - start
        self._client, self.protocol = greeting.client, greeting.protocol
        self.max_packet = greeting.max_packet
        self._connected.get()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        mqtt.disconnect(self._client, self.protocol)

    def publish(self, topic: str, payload: bytes) -> str:
        """Publish, and return the broker's reason for a refusal, or an empty text. This method and
        the next two raise LinkError if the broker restarts.
        """
        self._client.publish(topic, payload, qos=1)
        return self._wait(self._published)

    def subscribe(self, pattern: str) -> str:
        """Subscribe, and return the broker's reason for a refusal, or an empty text."""
        self._client.subscribe(pattern, qos=1)
        return self._wait(self._subscribed)

    def receive(self, topic: str, timeout: float | None = None) -> bytes | None:
        """Return the next payload on a topic, or on any topic if it is empty; None at the
        timeout.
        """
        deadline = time.monotonic() + (TIMEOUT if timeout is None else timeout)
        while (left := deadline - time.monotonic()) > 0:
            try:
                source, payload = self._messages.get(timeout=left)
            except queue.Empty:
                break
            if topic in ("", source):
                return payload
        self._check_restart()
        return None

    def _wait(self, results: queue.SimpleQueue[str]) -> str:
        try:
            refusal = results.get(timeout=TIMEOUT)
        except queue.Empty:
            refusal = f"no answer within {TIMEOUT:.0f} s"
        if refusal:
            self._check_restart()
        return refusal

    def _lose(self, client: object, reason: object) -> None:
        self._lost.set()
        for results in (self._published, self._subscribed):
            results.put(f"the broker closed the connection ({reason})")

    def _check_restart(self) -> None:
        """Raise LinkError if the connection was lost and the broker does not know this client's
        session any more: the broker restarted. A broker that refuses a message keeps the session.
        """
        if not self._lost.is_set():
            return
        try:
            kept = self._connected.get(timeout=TIMEOUT)
        except queue.Empty:
            kept = False
        self._lost.clear()
        if not kept:
            raise LinkError(
                "the broker closed the connection and lost this client's session: it probably "
                "restarts; read its log, and check its limits (memory, packets)"
            )


def check_credentials(address: MqttAddress, client: Client) -> Check:
    """Report how the broker authenticated this device."""
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


def find_card(client: Requester, run: str | None) -> tuple[messages.Run | None, Check]:
    """Find the card of the run to join among the broker's retained messages."""
    if refusal := client.subscribe(topics.run(run) if run else topics.any_run()):
        return None, Check(
            "run", "fail", f"the broker denies this device the topic of runs ({refusal})", RIGHTS, 5
        )
    cards: dict[str, messages.Run] = {}
    wait = TIMEOUT / 2
    while (payload := client.receive("", wait)) is not None:
        try:
            message = envelope.decode(payload) if payload else None
        except ProtocolMismatch as error:
            return None, Check(
                "run",
                "fail",
                str(error),
                "install the same version of espalier here and on the coordinator",
                6,
            )
        except WireError:
            continue
        if isinstance(message, messages.Run):
            cards[message.run], wait = message, 0.5
    if not cards:
        return None, Check(
            "run",
            "warn",
            f"no run named '{run}'" if run else "no run",
            "start a coordinator (coordinator start --broker ...); checks that need a run are "
            "skipped",
        )
    if len(cards) > 1:
        return None, Check(
            "run", "fail", f"several runs: {', '.join(sorted(cards))}", "choose one with --run", 6
        )
    card = next(iter(cards.values()))
    return card, Check("run", "ok", f"'{card.run}': {card.method}, {card.model}")


def check_rights(client: Requester, run: str, name: str) -> Check:
    """Check that this device can publish on its own topics and receive its commands."""
    own, word, start = topics.probe(run, name), secrets.token_bytes(8), time.perf_counter()
    if refusal := client.subscribe(own) or client.publish(own, word):
        problem = f"'{name}' may not use its own topics ({refusal})"
    elif client.receive(own) != word:
        problem = f"messages that '{name}' publishes on its own topics do not arrive"
    elif refusal := client.subscribe(topics.command(run, name)):
        problem = f"'{name}' may not receive its commands ({refusal})"
    else:
        return Check(
            "rights",
            "ok",
            f"'{name}' publishes and receives on its own topics ({format_elapsed(start)})",
        )
    return Check("rights", "fail", problem, RIGHTS, 5)


def check_isolation(client: Client, run: str) -> Check:
    """Check that the broker prevents this device from publishing for another agent. The messages
    reach only this device.
    """
    other, word = topics.probe(run, f"doctor-{secrets.token_hex(4)}"), secrets.token_bytes(8)
    client.subscribe(other)
    refusal = client.publish(other, word)
    arrived = not refusal and client.receive(other, TIMEOUT / 2) is not None
    if refusal or not (arrived or client.protocol == 5):
        return Check(
            "strangers",
            "ok",
            f"the broker separates the topics of agents ({refusal or 'nothing arrived'})",
        )
    return Check("strangers", "warn", "any client may publish under another's name", NO_RIGHTS)


def check_packets(client: Client, address: MqttAddress, run: str, name: str) -> Check:
    """Measure the largest relevant payload that the broker accepts."""
    limit = client.max_packet
    stated = f"the broker states {limit} bytes; " if limit < mqtt.MAX_PACKET else ""
    try:
        passed, rate = mqtt.measure(
            mqtt.ClientSetup(address, f"doctor-{name[:40]}-{secrets.token_hex(4)}"),
            topics.probe(run, name),
            PROBES,
            limit=limit - OVERHEAD,
            version=client.protocol,
            timeout=10.0,
        )
    except LinkError as error:
        found, _, remedy = str(error).removeprefix(f"{address}: ").partition(": ")
        return Check("packets", "fail", stated + found, remedy, 5)
    return report_packets(passed, rate, stated)


def report_packets(passed: int, rate: float, stated: str = "") -> Check:
    """Report the largest payload that the broker accepted (bytes), and bytes per second. stated:
    limit that the broker states.
    """
    found = f"{stated}{passed} bytes accepted, uplink {rate / 1e6:.3g} MB/s"
    if passed >= CHUNK + OVERHEAD:
        return Check("packets", "ok", found)
    return Check("packets", "warn", found, f"transfers work, in small chunks; {PACKET}")


def check_coordinator(client: Requester, run: str, name: str) -> Iterator[Check]:
    """Check that the coordinator answers this device, and compare the clocks."""
    sent, start = time.time(), time.perf_counter()
    echo = envelope.encode(messages.Echo(name, sent))
    if refusal := client.publish(topics.say(run, name), echo):
        yield Check(
            "coordinator",
            "fail",
            f"'{name}' may not publish to the coordinator ({refusal})",
            RIGHTS,
            5,
        )
        return
    deadline, command = time.monotonic() + TIMEOUT, topics.command(run, name)
    while (payload := client.receive(command, deadline - time.monotonic())) is not None:
        try:
            answer = envelope.decode(payload)
        except WireError:
            continue
        if isinstance(answer, messages.Echo) and answer.sent == sent:
            round_trip = time.perf_counter() - start
            yield Check("coordinator", "ok", f"it answers ({round_trip * 1000:.0f} ms)")
            yield check_skew(answer.time - (sent + round_trip / 2), round_trip)
            return
    yield Check(
        "coordinator",
        "warn",
        f"no answer within {TIMEOUT:.0f} s",
        "it may be busy or stopped: run coordinator status on its machine",
    )


def is_local(host: str) -> bool:
    """Return True if a host is this machine; False if its name does not resolve."""
    try:
        return is_loopback(host)
    except OSError:
        return False


def format_elapsed(start: float) -> str:
    return f"{(time.perf_counter() - start) * 1000:.0f} ms"
