"""Connect to a broker to check it: each request waits for its answer."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from types import TracebackType

from federated.errors import LinkError
from federated.wire.link import Will
from federated.wire.links import mqtt_client_setup as mqtt
from federated.wire.mqtt_address import MqttAddress

__all__ = ["TIMEOUT", "Client"]

TIMEOUT = 5.0  # seconds per answer


class Client:
    """A connection to the broker that waits for each answer.

    connect_seconds: time until the broker accepted it.
    protocol: MQTT protocol number in use.
    max_packet: the broker's limit in bytes, if it announced one.
    """

    def __init__(self, address: MqttAddress, client_id: str, will: Will | None = None) -> None:
        """Raises LinkError, ConfigError, MissingExtra."""
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
        setup = mqtt.ClientSetup(address, client_id, will, handlers)
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

    def publish(self, topic: str, *payloads: bytes, retain: bool = False) -> str:
        """Publish, and return the broker's first reason for a refusal, or an empty text. This
        method and the next two raise LinkError if the broker restarts.
        """
        for payload in payloads:
            self._client.publish(topic, payload, qos=1, retain=retain)
        refusals = [self._wait(self._published) for _ in payloads]
        return next(filter(None, refusals), "")

    def subscribe(self, pattern: str) -> str:
        """Subscribe, and return the broker's reason for a refusal, or an empty text."""
        self._client.subscribe(pattern, qos=1)
        return self._wait(self._subscribed)

    def receive(self, topic: str, timeout: float | None = None) -> bytes | None:
        """Return the next payload on a topic, or on any topic if it is empty; None at the
        timeout.
        """
        deadline = time.monotonic() + (TIMEOUT if timeout is None else timeout)
        while (found := self.receive_any(deadline - time.monotonic())) is not None:
            if topic in ("", found[0]):
                return found[1]
        return None

    def receive_any(self, timeout: float) -> tuple[str, bytes] | None:
        """Return the topic and the payload of the next message; None at the timeout."""
        try:
            return self._messages.get(timeout=max(0.0, timeout))
        except queue.Empty:
            self._check_restart()
            return None

    def hears(self, payload: bytes, timeout: float) -> bool:
        """Return whether this payload comes before the timeout, on any topic and across
        reconnections.
        """
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                if self._messages.get(timeout=left)[1] == payload:
                    return True
        return False

    def interrupt(self) -> None:
        """Break the connection, as a failing network would. It comes back by itself."""
        mqtt.interrupt(self._client)

    def vanish(self) -> None:
        """End the connection for good, as a crash would: the broker publishes the will."""
        self._client.loop_stop()  # it would reconnect
        mqtt.interrupt(self._client)

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
