"""The link that speaks MQTT."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter

import paho.mqtt.client as mqtt
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from federated.errors import LinkError
from federated.wire import tls, topics
from federated.wire.address import Address, parse_address
from federated.wire.delivery_queue import LINK_DOWN, LINK_UP, Delivery, Inbox
from federated.wire.link import OVERHEAD, PROBES, Payload, Probe, Will, chunk_within
from federated.wire.links.paho_client import (
    MAX_PACKET,
    ClientSetup,
    Handlers,
    connect,
    measure,
    part,
)

__all__ = ["MqttLink"]

log = logging.getLogger(__name__)

STRIKES = 3  # connections lost in a row, each with a message under way and none acknowledged
SHORT, SHORTS = 5.0, 5  # connections in a row that lasted less than so many seconds
# connections in a row without a greeting (the first is the one that was lost), after which TLS is
# asked why
SHUT = 3
# seconds that a full inbox holds the network up (less than half the keep-alive) before a delivery
# is dropped
HOLD = 20.0
PATIENCE = 120.0  # seconds that `publish` waits for room in a full queue
ANSWER = 2.0  # seconds that a repeated subscription waits for the broker's answer
FAREWELL = 5.0  # seconds that closing waits for what is still to be sent


class MqttLink:
    """A `Link` over MQTT, 5 or else 3.1.1. `protocol` is the version that the broker took.

    The network has a thread of its own, which only fills the inbox; when nobody empties it, the
    network slows down.
    """

    def __init__(
        self,
        address: str | Address,
        client_id: str,
        will: Will | None = None,
        *,
        timeout: float = 10.0,
        version: int | None = None,
    ) -> None:
        """Connect to a broker.

        will: topic and payload that the broker publishes, retained, when this link vanishes.
        timeout: seconds to connect. version: an MQTT protocol number; None: the newest that
        the broker takes.
        Raises UsageError for an invalid address, ConfigError for an unusable CA file, LinkError.
        """
        self.address = parse_address(address) if isinstance(address, str) else address
        self.client_id, self.sent_bytes, self.received_bytes = client_id, 0, 0
        self._inbox = Inbox()
        self._patterns: dict[str, None] = {}
        self._asked: dict[int, str] = {}  # subscriptions by message id, until the broker answers
        # published, perhaps not acknowledged: topic, bytes
        self._flying: list[tuple[mqtt.MQTTMessageInfo, str, int]] = []
        # never taken in the network's thread: it holds locks of its own when it calls
        self._lock = threading.Lock()
        self._revival = threading.Lock()
        self._acknowledged = threading.Event()
        self._fatal, self._closed, self._greeted, self._up = "", False, False, False
        self._strikes, self._shorts, self._acks, self._since = 0, 0, 0, time.monotonic()
        self._shut = 0  # connections in a row that the broker cut before it greeted
        handlers = Handlers(
            self._on_connected,
            self._on_disconnected,
            self._on_message,
            self._on_published,
            self._on_subscribed,
        )
        own = tls.private_name(self.address, client_id)
        setup = ClientSetup(self.address, own, will, handlers)
        greeting = connect(setup, timeout=timeout, version=version)
        self._client, self.protocol = greeting.client, greeting.protocol
        self._limit(min(MAX_PACKET, greeting.max_packet) - OVERHEAD)

    def publish(self, topic: str, payload: Payload, *, retain: bool = False, qos: int = 1) -> None:
        self._check()
        if len(payload) > self.max_payload:
            raise LinkError(
                f"{topic}: a payload of {len(payload)} bytes is over the broker's limit "
                f"of {self.max_payload}: lower wire.chunk"
            )
        data = payload if isinstance(payload, bytes) else bytes(payload)
        until = time.monotonic() + PATIENCE
        with self._lock:
            while True:
                self._acknowledged.clear()
                info = self._client.publish(topic, data, qos=qos, retain=retain)
                if info.rc != mqtt.MQTT_ERR_QUEUE_SIZE:
                    if info.rc == mqtt.MQTT_ERR_NO_CONN and qos > 0:
                        # it is queued all the same, and could not be asked about otherwise
                        info.rc = mqtt.MQTT_ERR_SUCCESS
                    break
                if time.monotonic() > until:
                    raise LinkError(
                        f"{self.address}: the broker acknowledged nothing for "
                        f"{PATIENCE:.0f} s; {topic} was not sent"
                    )
                self._acknowledged.wait(0.05)
                self._check()
            self.sent_bytes += len(topic) + len(data)
            if qos > 0:
                self._flying = [flight for flight in self._flying if not flight[0].is_published()]
                self._flying.append((info, topic, len(data)))

    def subscribe(self, pattern: str) -> None:
        self._check()
        again = pattern in self._patterns and self.protocol != mqtt.MQTTv5
        with self._lock:
            if again:
                # rumqttd repeats what is retained only for a new subscription
                self._client.unsubscribe(pattern)
            self._patterns[pattern] = None
            mid = self._ask(pattern, SubscribeOptions.RETAIN_SEND_ON_SUBSCRIBE)
        until = time.monotonic() + ANSWER
        while (
            again
            and mid in self._asked
            and self._client.is_connected()
            and time.monotonic() < until
        ):
            # it reads what is retained only afterwards: what this link publishes next must not take
            # its place
            time.sleep(0.002)

    def unsubscribe(self, pattern: str) -> None:
        with self._lock:
            if self._patterns.pop(pattern, "") is None:
                self._client.unsubscribe(pattern)

    @property
    def backlog(self) -> int:
        return len(self._inbox)

    def receive(self, timeout: float) -> Delivery | None:
        delivery = self._inbox.get(timeout)
        if delivery is None:
            self._check()
        return delivery

    def flush(self, timeout: float) -> bool:
        until = time.monotonic() + timeout
        with contextlib.suppress(LinkError):  # beyond mending: nothing more will be acknowledged
            while self._under_way() and time.monotonic() < until:
                self._check()
                self._acknowledged.clear()
                self._acknowledged.wait(0.02)
        return not self._under_way()

    def probe(self, topic: str, sizes: tuple[int, ...] = PROBES) -> Probe:
        """Also lowers `max_payload` and `max_chunk` to what passed, where more did not."""
        own = tls.private_name(self.address, f"{self.client_id}-probe")
        setup = ClientSetup(self.address, own)
        passed, rate = measure(
            setup, topic, sizes, limit=self.max_payload, version=self.protocol, timeout=30.0
        )
        if passed < max(sizes):
            self._limit(passed)
        return passed, rate

    def close(self) -> None:
        """Wait up to FAREWELL seconds for acknowledgements, unless the link is down; log by kind
        what the broker has not acknowledged by then.
        """
        if self._closed:
            return
        if self._client.is_connected():
            self.flush(FAREWELL)
        self._closed = True
        if lost := self._under_way():
            log.warning(
                "%s: the link of '%s' closed before the broker acknowledged %s",
                self.address,
                self.client_id,
                _counted(lost),
            )
        if self.protocol != mqtt.MQTTv5 and self._patterns and self._client.is_connected():
            # a session of 3.1.1 outlives us: let it queue nothing
            self._client.unsubscribe(list(self._patterns))
        part(self._client, self.protocol)
        self._inbox.close()

    def _limit(self, payload: int) -> None:
        self.max_payload, self.max_chunk = payload, chunk_within(payload)

    def _under_way(self) -> list[tuple[str, int]]:
        return [
            (topic, size) for info, topic, size in list(self._flying) if not info.is_published()
        ]

    def _check(self) -> None:
        """Raises LinkError where the link is beyond mending; revives a network thread that died."""
        if self._closed:
            raise LinkError(f"the link of '{self.client_id}' is closed")
        if self._shut >= SHUT and self.address.tls:
            self._inquire()
        if self._fatal:
            raise LinkError(self._fatal)
        if self._client._thread is None:
            self._revive()

    def _inquire(self) -> None:
        """Asks a broker's TLS why it does not let this client in again. Who was revoked need not
        come back; whatever else it is may pass.
        """
        self._shut = 0
        why = tls.refusal(self.address)
        if why == tls.REVOKED:
            self._end(f"{self.address}: {why}")
        elif why:
            log.warning("%s: no way back to the broker so far: %s", self.address, why)

    def _revive(self) -> None:
        """Starts the network's thread again. It ends by itself only where something in it raised,
        and then says nothing.
        """
        with self._revival:
            if self._client._thread is not None or self._closed:
                return
            log.error("the network thread of '%s' died; starting another", self.client_id)
            try:
                self._client._reset_sockets(sockpair_only=True)
                self._client.reconnect()
            except OSError as error:
                log.warning("%s: %s; trying again", self.address, error)
                time.sleep(1.0)
            else:
                self._client.loop_start()

    def _ask(self, pattern: str, retained: int) -> int | None:
        """Send a subscription; its message id."""
        if self.protocol == mqtt.MQTTv5:
            _, mid = self._client.subscribe(
                pattern, options=SubscribeOptions(qos=1, retainHandling=retained)
            )
        else:
            _, mid = self._client.subscribe(pattern, qos=1)
        if mid is not None:
            self._asked[mid] = pattern
        return mid

    # ---- in the network's thread -----------------------------------------------------------------

    def _on_connected(self, client: mqtt.Client, resumed: bool) -> None:
        self._acks, self._since, self._shut, self._up = 0, time.monotonic(), 0, True
        if not self._greeted:
            self._greeted = True
            return
        for pattern in list(self._patterns):
            self._ask(pattern, SubscribeOptions.RETAIN_SEND_IF_NEW_SUB)
        # then: rumqttd ignores a client that unsubscribes first
        self._inbox.put(Delivery(LINK_UP, b"resumed" if resumed else b""), force=True)

    def _on_disconnected(self, client: mqtt.Client, reason: ReasonCode) -> None:
        if self._closed or not self._greeted:
            return
        self._inbox.put(Delivery(LINK_DOWN, str(reason).encode()), force=True)
        self._shut += 1
        # an attempt that came to nothing says nothing of the broker's limits, nor of others of this
        # name
        if not self._up:
            return
        self._up = False
        self._shorts = self._shorts + 1 if time.monotonic() - self._since < SHORT else 0
        if reason.getName() == "Session taken over":
            self._end(
                f"{self.address}: another client connected as '{self.client_id}' and "
                "took its place: each needs a name of its own (--name)"
            )
        elif self._shorts >= SHORTS:
            who = (
                f"is another client connected as '{self.client_id}'? Each needs a name of its own "
                "(--name)"
            )
            self._end(f"{self.address}: the broker keeps hanging up; {who}")
        flights = self._under_way()
        self._strikes = self._strikes + 1 if flights and not self._acks else 0
        if self._strikes >= STRIKES:
            topic, size = max(flights, key=lambda flight: flight[1])
            self._end(
                f"{self.address}: the broker hung up {STRIKES} times over a packet of "
                f"{size} bytes ({topic}): it may take no packets of that size; "
                "lower wire.chunk, or raise the broker's limit (mosquitto: max_packet_size)"
            )

    def _end(self, why: str) -> None:
        self._fatal = why
        self._client.disconnect()
        # else the library would connect once more, and throw out who took over
        self._client.loop_stop()

    def _on_message(self, message: mqtt.MQTTMessage) -> None:
        topic = message.topic  # decoded at each access
        self.received_bytes += len(topic) + len(message.payload)
        if not self._subscribed(topic):
            return
        if not self._inbox.put(Delivery(topic, bytes(message.payload), message.retain), HOLD):
            log.warning(
                "dropped a delivery of %d bytes on %s: nobody took it for %.0f s",
                len(message.payload),
                topic,
                HOLD,
            )

    def _subscribed(self, topic: str) -> bool:
        """Whether a subscription covers a topic. A broker may deliver others: of an earlier
        session, just unsubscribed, or (amqtt 0.12) anybody's.
        """
        return topic in self._patterns or any(
            topics.matches(pattern, topic) for pattern in list(self._patterns)
        )

    def _on_published(self, reason: ReasonCode) -> None:
        self._acks += 1
        self._strikes = 0
        if reason.is_failure:
            self._shut = SHUT  # it may have been revoked meanwhile: the next call asks
            self._fatal = (
                f"{self.address}: the broker refuses to take a message: {reason}; check what this "
                "user may publish (its own topics?)"
            )
        self._acknowledged.set()

    def _on_subscribed(self, mid: int, reasons: list[ReasonCode]) -> None:
        pattern = self._asked.pop(mid, "")
        if any(reason.is_failure for reason in reasons):
            self._fatal = (
                f"{self.address}: the broker refuses a subscription to '{pattern}': {reasons[0]}; "
                "check what this user may hear"
            )


def _counted(flights: list[tuple[str, int]]) -> str:
    """How many messages, and to which kinds of topic: '3 messages (2 chunk, 1 status)'."""
    places = [topics.parse(topic) for topic, _ in flights]
    kinds = Counter("other" if place is None else place.kind for place in places)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    return f"{len(flights)} message{'s' * (len(flights) != 1)} ({listed})"
