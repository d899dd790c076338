"""A broker and links within one process, for tests and simulation without a network.

It follows MQTT (retained messages, wildcards, last wills, sessions that queue while their link is
down). `MemoryBroker.tamper` can simulate a network that drops, repeats or corrupts deliveries.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable

from federated.errors import LinkError, UsageError
from federated.wire.delivery_queue import DeliveryQueue
from federated.wire.link import (
    CHUNK,
    LINK_DOWN,
    LINK_UP,
    Delivery,
    Payload,
    Probe,
    Will,
    chunk_within,
)
from federated.wire.topics import matches

__all__ = ["MemoryBroker", "MemoryLink", "open_memory_link"]

SCHEME = "memory://"
IN_MEMORY = 2 << 20  # bytes of data per chunk: no network limits it, and each message costs time
ROUTES = 10_000  # topics whose links a broker remembers

Tamper = Callable[[Delivery], Iterable[Delivery]]


class MemoryBroker:
    """Routes messages between its links. Thread-safe.

    max_payload: bytes of the largest payload.
    tamper: called for each delivery; the deliveries that it returns arrive instead.
    """

    def __init__(self, *, max_payload: int = 268_435_455, tamper: Tamper | None = None) -> None:
        self.max_payload = max_payload
        self.tamper = tamper
        self.retained: dict[str, bytes] = {}
        self._links: dict[str, MemoryLink] = {}
        # subscribed links by pattern; exact topics are found in constant time
        self._exact: dict[str, dict[MemoryLink, None]] = {}
        self._wild: dict[str, dict[MemoryLink, None]] = {}
        self._routes: dict[str, tuple[MemoryLink, ...]] = {}  # by topic, those that `_wild` finds
        self._lock = threading.RLock()

    def publish(self, topic: str, payload: bytes, *, retain: bool, qos: int = 1) -> None:
        """Deliver a message once to every subscribed link. retain: also retain it, or remove the
        retained message if the payload is empty.
        """
        with self._lock:
            if retain and payload:
                self.retained[topic] = payload
            elif retain:
                self.retained.pop(topic, None)
            found = self._routes.get(topic)
            if found is None:
                found = self._find_route(topic)
            for link in dict.fromkeys((*self._exact.get(topic, ()), *found)):
                self._deliver(link, Delivery(topic, payload), qos)

    def _find_route(self, topic: str) -> tuple[MemoryLink, ...]:
        """Return the links with a pattern that matches a topic, and remember them."""
        if len(self._routes) >= ROUTES:
            self._routes.clear()
        every = (links for pattern, links in self._wild.items() if matches(pattern, topic))
        found = self._routes[topic] = tuple(link for links in every for link in links)
        return found

    def subscribe(self, link: MemoryLink, pattern: str) -> None:
        """Subscribe a link to a pattern, and deliver the retained messages."""
        with self._lock:
            self._subscriptions(pattern).setdefault(pattern, {})[link] = None
            self._forget_routes(pattern)
            self.repeat(link, pattern)

    def unsubscribe(self, link: MemoryLink, pattern: str) -> None:
        with self._lock:
            subscriptions = self._subscriptions(pattern)
            subscriptions.get(pattern, {}).pop(link, None)
            if not subscriptions.get(pattern, True):
                del subscriptions[pattern]
            self._forget_routes(pattern)

    def _forget_routes(self, pattern: str) -> None:
        """Find routes again, now that a link subscribes to this pattern or no longer does."""
        if self._subscriptions(pattern) is self._wild:
            self._routes.clear()

    def _subscriptions(self, pattern: str) -> dict[str, dict[MemoryLink, None]]:
        return self._wild if "+" in pattern or "#" in pattern else self._exact

    def attach(self, link: MemoryLink) -> None:
        """Add a link. Another one with the same id is disconnected, as by a real broker, and its
        will is published.
        """
        with self._lock:
            old = self._links.get(link.client_id)
            if old is not None:
                old.kill()
            self._links[link.client_id] = link

    def detach(self, link: MemoryLink, *, abruptly: bool) -> None:
        with self._lock:
            if self._links.get(link.client_id) is link:
                del self._links[link.client_id]
                for pattern in link.patterns:
                    self.unsubscribe(link, pattern)
                if abruptly:
                    self.publish_will(link)

    def publish_will(self, link: MemoryLink) -> None:
        """Publish a link's last will, retained."""
        if link.will is not None:
            self.publish(*link.will, retain=True)

    def repeat(self, link: MemoryLink, pattern: str) -> None:
        """Deliver the retained messages of a pattern."""
        with self._lock:
            wild = self._subscriptions(pattern) is self._wild
            found = (
                [topic for topic in self.retained if matches(pattern, topic)]
                if wild
                else [pattern]
                if pattern in self.retained
                else []
            )
            for topic in found:
                self._deliver(link, Delivery(topic, self.retained[topic], retained=True), 1)

    def _deliver(self, link: MemoryLink, delivery: Delivery, qos: int) -> None:
        for arrived in [delivery] if self.tamper is None else self.tamper(delivery):
            link.arrive(arrived, qos)


class MemoryLink:
    """A `Link` to a MemoryBroker. `kill` simulates a crash; `drop` and `restore` an interruption.

    arrived: called in the publisher's thread after each delivery that can be received.
    """

    def __init__(
        self,
        broker: MemoryBroker,
        client_id: str,
        will: Will | None = None,
        *,
        chunk: int = IN_MEMORY,
        arrived: Callable[[], None] = lambda: None,
    ) -> None:
        self.client_id, self.will, self.arrived = client_id, will, arrived
        self.max_payload, self.max_chunk = (
            broker.max_payload,
            chunk_within(broker.max_payload, chunk),
        )
        self.sent_bytes = self.received_bytes = 0
        self.patterns: set[str] = set()
        # always filled with `force`: sender and receiver may share a thread, which must not wait
        self._deliveries = DeliveryQueue()
        self._broker = broker
        self._down = self._closed = False
        # messages that wait while the link is down
        self._outgoing: list[tuple[str, bytes, bool]] = []
        self._incoming: list[Delivery] = []
        broker.attach(self)

    def arrive(self, delivery: Delivery, qos: int) -> None:
        """Take a delivery from the broker, and queue it while the link is down (QoS 1)."""
        if not self._down:
            self._deliveries.put(delivery, force=True)
            self.arrived()
        elif qos > 0:
            self._incoming.append(delivery)

    def publish(self, topic: str, payload: Payload, *, retain: bool = False, qos: int = 1) -> None:
        self._check_open()
        if len(payload) > self.max_payload:
            raise LinkError(
                f"{topic}: a payload of {len(payload)} bytes is over the broker's limit "
                f"of {self.max_payload}: lower wire.chunk"
            )
        self.sent_bytes += len(topic) + len(payload)
        if not self._down:
            self._broker.publish(topic, bytes(payload), retain=retain, qos=qos)
        elif qos > 0:
            self._outgoing.append((topic, bytes(payload), retain))

    def subscribe(self, *patterns: str) -> None:
        self._check_open()
        for pattern in patterns:
            self.patterns.add(pattern)
            self._broker.subscribe(self, pattern)

    def unsubscribe(self, *patterns: str) -> None:
        for pattern in patterns:
            self.patterns.discard(pattern)
            self._broker.unsubscribe(self, pattern)

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
            self._check_open()
            return None
        self.received_bytes += len(delivery.topic) + len(delivery.payload)
        return delivery

    def flush(self, timeout: float) -> bool:
        return not self._outgoing

    def probe(self, topic: str, sizes: tuple[int, ...] = (CHUNK,)) -> Probe:
        """Return the largest of `sizes` within the broker's limit, and the rate of a copy."""
        passed = max((size for size in sizes if size <= self.max_payload), default=0)
        if not passed:
            raise LinkError(
                f"no payload of {sizes} bytes is within the broker's limit of {self.max_payload}"
            )
        start = time.perf_counter()
        self.publish(topic, bytearray(passed), qos=0)
        return passed, passed / max(time.perf_counter() - start, 1e-9)

    def close(self) -> None:
        self._end(abruptly=False)

    def kill(self) -> None:
        """End as a crash would: the broker publishes the will."""
        self._end(abruptly=True)

    def drop(self) -> None:
        """Interrupt the connection: the will is published, and messages in both directions wait."""
        self._check_open()
        if not self._down:
            self._deliveries.put(Delivery(LINK_DOWN, b"dropped"), force=True)
            self._down = True
            self._broker.publish_will(self)

    def restore(self) -> None:
        """Reconnect, and send and deliver the waiting messages."""
        self._down = False
        outgoing, incoming, self._outgoing, self._incoming = self._outgoing, self._incoming, [], []
        for delivery in (Delivery(LINK_UP, b""), *incoming):
            self._deliveries.put(delivery, force=True)
        for topic, payload, retain in outgoing:
            self._broker.publish(topic, payload, retain=retain)

    def _end(self, *, abruptly: bool) -> None:
        if not self._closed:
            self._closed = True
            self._broker.detach(self, abruptly=abruptly)
            self._deliveries.close()

    def _check_open(self) -> None:
        if self._closed:
            raise LinkError(f"the link of '{self.client_id}' is closed")


# brokers of `open_memory_link` by address; each exists as long as a link to it
BROKERS: weakref.WeakValueDictionary[str, MemoryBroker] = weakref.WeakValueDictionary()
OPENING = threading.Lock()


def open_memory_link(address: str, client_id: str, will: Will | None = None) -> MemoryLink:
    """Open a link to the broker `memory://NAME` of this process; the first link makes the broker.

    Raises UsageError for an address without a name.
    """
    if not address.removeprefix(SCHEME):
        raise UsageError(f"broker address '{address}': expected a name, as in memory://NAME")
    with OPENING:
        broker = BROKERS.setdefault(address, MemoryBroker())
        return MemoryLink(broker, client_id, will)
