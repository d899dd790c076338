"""Connect an agent or the coordinator to the broker over MQTT: publish, subscribe, receive, and
reconnect.
"""

from __future__ import annotations

import contextlib
import logging
import math
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence

import paho.mqtt.client as mqtt
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from federated.errors import LinkError
from federated.wire import tls, topics
from federated.wire.delivery_queue import DeliveryQueue
from federated.wire.link import (
    LINK_DOWN,
    LINK_UP,
    OVERHEAD,
    PROBES,
    SENT_SHARE,
    Delivery,
    Payload,
    Probe,
    Will,
    chunk_within,
)
from federated.wire.links.disconnection_diagnosis import ConnectionHistory
from federated.wire.links.mqtt_client_setup import (
    MAX_PACKET,
    ClientSetup,
    Handlers,
    connect,
    disconnect,
    measure,
)
from federated.wire.mqtt_address import MqttAddress, parse_mqtt_address

__all__ = ["QUEUED_BYTES", "MqttLink"]

log = logging.getLogger(__name__)

# disconnections in a row without a successful connection, after which to look for a TLS error
SHUT = 3
# seconds that the network thread waits for room in a full queue before it drops a delivery; less
# than half the keep-alive
HOLD = 20.0
DROPS_LOGGED = 10.0  # seconds between warnings about dropped deliveries
QUEUED_BYTES = 16 << 20  # of messages that the broker has not acknowledged, at most
PATIENCE = 120.0  # seconds that `publish` waits for room in a full queue
ANSWER = 2.0  # seconds that a repeated subscription waits for the broker's answer
TOGETHER = 8  # subscriptions of one message: AWS IoT accepts no more
FAREWELL = 5.0  # seconds that `close` waits for acknowledgements


class MqttLink:
    """A `Link` over MQTT 5, or 3.1.1 if the broker does not support 5.

    A thread of its own reads the network into a queue. When the queue is full, the network slows
    down.

    address: of the broker.
    client_id: name of this client.
    protocol: MQTT protocol number in use.
    """

    def __init__(
        self,
        address: str | MqttAddress,
        client_id: str,
        will: Will | None = None,
        *,
        timeout: float = 10.0,
        version: int | None = None,
    ) -> None:
        """Connect to a broker.

        will: topic and payload that the broker publishes, retained, if this link ends without
            `close`.
        timeout: seconds to connect.
        version: MQTT protocol number; None: the newest that the broker supports.
        Raises UsageError for an invalid address, ConfigError for an unusable CA file, LinkError.
        """
        self.address = parse_mqtt_address(address) if isinstance(address, str) else address
        self.client_id, self.sent_bytes, self.received_bytes = client_id, 0, 0
        self._deliveries = DeliveryQueue(find_sender=topics.find_sender)
        self._patterns: dict[str, None] = {}
        # subscriptions by message id, until the broker answers
        self._asked: dict[int, Sequence[str]] = {}
        # published messages that may not be acknowledged yet: topic, bytes
        self._in_flight = deque[tuple[mqtt.MQTTMessageInfo, str, int]]()
        self._in_flight_bytes = 0
        # never acquired in the network thread: paho holds its own locks when it calls a handler
        self._lock = threading.Lock()
        self._restarting = threading.Lock()
        self._acknowledged = threading.Event()
        self._fatal, self._closed, self._greeted, self._up = "", False, False, False
        # A coordinator, whose will concerns no agent, finds another one of its run by its epoch.
        coordinates = will is not None and not topics.find_sender(will[0])
        self._history = ConnectionHistory(
            str(self.address), client_id, time.monotonic(), tolerant=coordinates
        )
        # whether a caller waits for acknowledgements, which the network's thread must read: it does
        # not wait for room in the queue meanwhile
        self._blocked = False
        self._dropped, self._logged = 0, -math.inf  # deliveries without room; when it was logged
        self._shut = 0  # disconnections in a row without a successful connection
        handlers = Handlers(
            self._on_connect,
            self._on_disconnect,
            self._on_message,
            self._on_publish,
            self._on_subscribe,
            self._on_connect_fail,
        )
        own = tls.make_private_name(self.address, client_id)
        setup = ClientSetup(self.address, own, will, handlers)
        greeting = connect(setup, timeout=timeout, version=version)
        self._client, self.protocol = greeting.client, greeting.protocol
        self._interval, self._turn = 0.0, 0.0  # seconds between messages; instant of the next one
        self.max_payload = self.max_chunk = MAX_PACKET
        self._limit(min(MAX_PACKET, greeting.max_packet) - OVERHEAD)

    def limit(self, payload: int | None, messages: int | None) -> None:
        if payload is not None:
            self._limit(payload)
        if messages is not None:
            self._interval = 1 / (SENT_SHARE * messages)

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
            self._wait_for_turn()
            while True:
                self._acknowledged.clear()
                if self._has_room(len(data)):
                    info = self._client.publish(topic, data, qos=qos, retain=retain)
                    if info.rc != mqtt.MQTT_ERR_QUEUE_SIZE:
                        break
                if time.monotonic() > until:
                    raise LinkError(
                        f"{self.address}: the broker acknowledged nothing for "
                        f"{PATIENCE:.0f} s; {topic} was not sent"
                    )
                self._blocked = True
                self._acknowledged.wait(0.05)
                self._check()
            self._blocked = False
            self.sent_bytes += len(topic) + len(data)
            if qos > 0:
                if info.rc == mqtt.MQTT_ERR_NO_CONN:
                    # the message is queued, but `is_published` raises with this code
                    info.rc = mqtt.MQTT_ERR_SUCCESS
                self._in_flight.append((info, topic, len(data)))
                self._in_flight_bytes += len(data)

    def subscribe(self, *patterns: str) -> None:
        self._check()
        known = [] if self.protocol == mqtt.MQTTv5 else [p for p in patterns if p in self._patterns]
        with self._lock:
            if known:
                # rumqttd repeats retained messages only for a new subscription
                self._client.unsubscribe(known)
            self._patterns |= dict.fromkeys(patterns)
            asked = self._ask(patterns, SubscribeOptions.RETAIN_SEND_ON_SUBSCRIBE)
        until = time.monotonic() + ANSWER
        while (
            known
            and not self._asked.keys().isdisjoint(asked)
            and self._client.is_connected()
            and time.monotonic() < until
        ):
            # Wait until the broker has answered, so that messages which this link publishes next do
            # not replace the retained ones before the broker reads them.
            time.sleep(0.002)

    def unsubscribe(self, *patterns: str) -> None:
        with self._lock:
            if known := [p for p in patterns if self._patterns.pop(p, "") is None]:
                self._client.unsubscribe(known)

    @property
    def backlog(self) -> int:
        return len(self._deliveries)

    def take_flooders(self) -> frozenset[str]:
        return self._deliveries.take_flooders()

    def block(self, senders: frozenset[str]) -> None:
        self._deliveries.block(senders)

    def receive(self, timeout: float) -> Delivery | None:
        delivery = self._deliveries.get(timeout)
        if delivery is None:
            self._check()
        return delivery

    def flush(self, timeout: float) -> bool:
        until = time.monotonic() + timeout
        self._blocked = True
        with contextlib.suppress(LinkError):  # failed for good: no more acknowledgements
            while self._list_unacknowledged() and time.monotonic() < until:
                self._check()
                self._acknowledged.clear()
                self._acknowledged.wait(0.02)
        self._blocked = False
        return not self._list_unacknowledged()

    def probe(self, topic: str, sizes: tuple[int, ...] = PROBES) -> Probe:
        """Also lower `max_payload` and `max_chunk` if the broker accepted less than the largest."""
        own = tls.make_private_name(self.address, f"{self.client_id}-probe")
        setup = ClientSetup(self.address, own)
        accepted, rate = measure(
            setup, topic, sizes, limit=self.max_payload, version=self.protocol, timeout=30.0
        )
        if accepted < max(sizes):
            self._limit(accepted)
        return accepted, rate

    def close(self) -> None:
        """Wait up to FAREWELL seconds for acknowledgements, unless the link is down. Log the
        messages that the broker has not acknowledged by then.
        """
        if self._closed:
            return
        self._deliveries.close()  # a full queue would hold up the network's thread
        if self._client.is_connected():
            self.flush(FAREWELL)
        self._closed = True
        if lost := self._list_unacknowledged():
            log.warning(
                "%s: the link of '%s' closed before the broker acknowledged %s",
                self.address,
                self.client_id,
                _describe(lost),
            )
        if self.protocol != mqtt.MQTTv5 and self._patterns and self._client.is_connected():
            # a session of 3.1.1 outlives the link: let it queue nothing
            self._client.unsubscribe(list(self._patterns))
        disconnect(self._client, self.protocol)

    def _limit(self, payload: int) -> None:
        self.max_payload = min(payload, self.max_payload)
        self.max_chunk = chunk_within(self.max_payload)

    def _has_room(self, size: int) -> bool:
        """Return True if another message may wait for its acknowledgement."""
        while self._in_flight and self._in_flight[0][0].is_published():
            self._in_flight_bytes -= self._in_flight.popleft()[2]  # brokers acknowledge in order
        return not self._in_flight or self._in_flight_bytes + size <= QUEUED_BYTES

    def _wait_for_turn(self) -> None:
        """Wait until the next message is due at the broker's limit of messages per second."""
        if self._interval:
            now = time.monotonic()
            time.sleep(max(0.0, self._turn - now))
            self._turn = max(self._turn, now) + self._interval

    def _list_unacknowledged(self) -> list[tuple[str, int]]:
        return [
            (topic, size) for info, topic, size in self._in_flight.copy() if not info.is_published()
        ]

    def _check(self) -> None:
        """Raise LinkError if the link has failed for good. Restart a network thread that died."""
        if self._closed:
            raise LinkError(f"the link of '{self.client_id}' is closed")
        if self._shut >= SHUT and self.address.tls:
            self._check_tls()
        if self._fatal:
            raise LinkError(self._fatal)
        if self._client._thread is None:
            self._restart()

    def _check_tls(self) -> None:
        """Find out why the broker's TLS rejects this client. Only a revoked certificate ends the
        link; other reasons may pass.
        """
        self._shut = 0
        why = tls.find_refusal(self.address)
        if why == tls.REVOKED:
            self._fail(f"{self.address}: {why}")
        elif why:
            log.warning("%s: cannot reconnect to the broker: %s", self.address, why)

    def _restart(self) -> None:
        """Restart the network's thread, which ends silently if something in it raised."""
        with self._restarting:
            if self._client._thread is not None or self._closed:
                return
            log.error("the network thread of '%s' died; restarting it", self.client_id)
            try:
                self._client._reset_sockets(sockpair_only=True)
                self._client.reconnect()
            except OSError as error:
                log.warning("%s: %s; retrying", self.address, error)
                time.sleep(1.0)
            else:
                self._client.loop_start()

    def _ask(self, patterns: Sequence[str], retained: int) -> list[int]:
        """Send subscriptions, and return the ids of their messages."""
        options = SubscribeOptions(qos=1, retainHandling=retained)
        asked = list[int]()
        for start in range(0, len(patterns), TOGETHER):
            some = patterns[start : start + TOGETHER]
            if self.protocol == mqtt.MQTTv5:
                _, mid = self._client.subscribe([(pattern, options) for pattern in some])
            else:
                _, mid = self._client.subscribe([(pattern, 1) for pattern in some])
            if mid is not None:
                self._asked[mid] = some
                asked.append(mid)
        return asked

    # ---- in the network's thread -----------------------------------------------------------------

    def _on_connect(self, client: mqtt.Client, resumed: bool) -> None:
        self._shut, self._up = 0, True
        if warning := self._history.record_connection(
            resumed or not self._greeted, time.monotonic()
        ):
            log.warning("%s", warning)
        if not self._greeted:
            self._greeted = True
            return
        self._ask(list(self._patterns), SubscribeOptions.RETAIN_SEND_IF_NEW_SUB)
        # last, since rumqttd ignores a client that unsubscribes first
        self._deliveries.put(Delivery(LINK_UP, b"resumed" if resumed else b""), force=True)

    def _on_disconnect(self, client: mqtt.Client, reason: ReasonCode) -> None:
        if self._closed:
            return
        self._deliveries.put(Delivery(LINK_DOWN, str(reason).encode()), force=True)
        self._shut += 1
        if not self._up:
            self._history.record_failure()
            return
        self._up = False
        taken_over = reason.getName() == "Session taken over"
        in_flight = self._list_unacknowledged()
        if error := self._history.record_end(taken_over, in_flight, time.monotonic()):
            self._fail(error)

    def _on_connect_fail(self, error: BaseException | None) -> None:
        """Count a broker whose certificate this client rejects. That it does not answer is usual
        while it restarts.
        """
        if isinstance(error, ssl.SSLError):
            self._shut += 1

    def _fail(self, why: str) -> None:
        self._fatal = why
        self._client.disconnect()
        # otherwise the library would reconnect, and disconnect the client that took over
        self._client.loop_stop()

    def _on_message(self, message: mqtt.MQTTMessage) -> None:
        topic = message.topic  # decoded at each access
        self.received_bytes += len(topic) + len(message.payload)
        # checked first: it is fast, and a flooder's messages may be thousands
        if self._deliveries.blocks(topic):
            return
        if not self._is_subscribed(topic):
            self._check_spelling(topic)
            return
        delivery = Delivery(topic, bytes(message.payload), message.retain)
        room = self._deliveries.put(delivery, 0.0 if self._blocked else HOLD)
        if not room and not self._deliveries.closed:
            self._count_dropped(topic)

    def _count_dropped(self, topic: str) -> None:
        """Count a delivery that found no room, and log at most one in ten seconds."""
        self._dropped += 1
        if time.monotonic() - self._logged > DROPS_LOGGED:
            log.warning(
                "dropped %d deliveries, the last on %s: the queue is full", self._dropped, topic
            )
            self._logged, self._dropped = time.monotonic(), 0

    def _is_subscribed(self, topic: str) -> bool:
        """Return True if a subscription covers a topic. A broker may deliver others: of an earlier
        session, just unsubscribed, or (amqtt 0.12) of other clients.
        """
        return topic in self._patterns or any(
            topics.matches(pattern, topic) for pattern in list(self._patterns)
        )

    def _check_spelling(self, topic: str) -> None:
        """Fail if a topic was subscribed to with dots, and came with slashes: what this client
        waits for would never come.
        """
        if any(
            "." in pattern and topics.matches(pattern.replace(".", "/"), topic)
            for pattern in list(self._patterns)
        ):
            self._fatal = (
                f"{self.address}: the broker turns '.' in topics into '/', as RabbitMQ does: "
                "choose names of runs and agents without '.' (--name)"
            )

    def _on_publish(self, reason: ReasonCode) -> None:
        self._history.record_acknowledgement()
        if reason.is_failure:
            self._shut = SHUT  # the certificate may have been revoked: the next call checks
            self._fatal = (
                f"{self.address}: the broker refuses a message: {reason}; check this user's rights "
                "to publish (its own topics?)"
            )
        self._acknowledged.set()

    def _on_subscribe(self, mid: int, reasons: list[ReasonCode]) -> None:
        for pattern, reason in zip(self._asked.pop(mid, ()), reasons, strict=False):
            if reason.is_failure:
                self._fatal = (
                    f"{self.address}: the broker refuses a subscription to '{pattern}': {reason}; "
                    "check this user's rights to subscribe"
                )


def _describe(lost: list[tuple[str, int]]) -> str:
    """Return the number of messages by kind of topic: '3 messages (2 chunk, 1 status)'."""
    places = [topics.parse(topic) for topic, _ in lost]
    kinds = Counter("other" if place is None else place.kind for place in places)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    return f"{len(lost)} message{'s' * (len(lost) != 1)} ({listed})"
