"""A broker and links in one process: a whole federation without a network, for tests and
simulation.

It does what MQTT promises (retained messages, wildcards, last wills, sessions that queue while
their link is down)
and, on request, what networks do to it: `MemoryBroker.tamper` drops, repeats or corrupts
deliveries.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable

from federated.errors import LinkError, UsageError
from federated.wire.delivery_queue import LINK_DOWN, LINK_UP, Delivery, Inbox
from federated.wire.link import CHUNK, Payload, Probe, Will, chunk_within
from federated.wire.topics import matches

__all__ = ["MemoryBroker", "MemoryLink", "open_memory_link"]

SCHEME = "memory://"

Tamper = Callable[[Delivery], Iterable[Delivery]]


class MemoryBroker:
    """Routes messages between the links made on it. Thread-safe.

    tamper: called for each delivery on its way to a link; what it returns arrives instead.
    """

    def __init__(self, *, max_payload: int = 268_435_455, tamper: Tamper | None = None) -> None:
        self.max_payload = max_payload
        self.tamper = tamper
        self.retained: dict[str, bytes] = {}
        self._links: dict[str, MemoryLink] = {}
        # who hears a topic: found at once, however many links there are
        self._exact: dict[str, dict[MemoryLink, None]] = {}
        self._wild: dict[str, dict[MemoryLink, None]] = {}
        self._lock = threading.RLock()

    def publish(self, topic: str, payload: bytes, *, retain: bool, qos: int = 1) -> None:
        """Hands a message to every link that hears its topic, once each, and keeps it if asked;
        empty and retained, it forgets.
        """
        with self._lock:
            if retain and payload:
                self.retained[topic] = payload
            elif retain:
                self.retained.pop(topic, None)
            several = [
                self._exact.get(topic, {}),
                *(links for pattern, links in self._wild.items() if matches(pattern, topic)),
            ]
            for link in dict.fromkeys(link for links in several for link in links):
                self._deliver(link, Delivery(topic, payload), qos)

    def hear(self, link: MemoryLink, pattern: str) -> None:
        """From now on, a link hears a pattern; first what is retained under it."""
        with self._lock:
            self._hearing(pattern).setdefault(pattern, {})[link] = None
            self.repeat(link, pattern)

    def forget(self, link: MemoryLink, pattern: str) -> None:
        with self._lock:
            hearing = self._hearing(pattern)
            hearing.get(pattern, {}).pop(link, None)
            if not hearing.get(pattern, True):
                del hearing[pattern]

    def _hearing(self, pattern: str) -> dict[str, dict[MemoryLink, None]]:
        return self._wild if "+" in pattern or "#" in pattern else self._exact

    def attach(self, link: MemoryLink) -> None:
        """Takes a link in; one of the same name is thrown out, as a broker does, and its will
        published.
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
                    self.forget(link, pattern)
                if abruptly:
                    self.bury(link)

    def bury(self, link: MemoryLink) -> None:
        """Publishes a link's last will, retained."""
        if link.will is not None:
            self.publish(*link.will, retain=True)

    def repeat(self, link: MemoryLink, pattern: str) -> None:
        """Delivers what is retained under a pattern."""
        with self._lock:
            wild = self._hearing(pattern) is self._wild
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
    """A `Link` to a MemoryBroker. `kill` ends it as a crash would; `drop` and `mend` cut it for a
    while.

    arrived: called, by whoever publishes, after each delivery that can be received.
    """

    def __init__(
        self,
        broker: MemoryBroker,
        client_id: str,
        will: Will | None = None,
        *,
        chunk: int = CHUNK,
        arrived: Callable[[], None] = lambda: None,
    ) -> None:
        self.client_id, self.will, self.arrived = client_id, will, arrived
        self.max_payload, self.max_chunk = (
            broker.max_payload,
            chunk_within(broker.max_payload, chunk),
        )
        self.sent_bytes = self.received_bytes = 0
        self.patterns: set[str] = set()
        # only ever filled by force: sender and receiver may share a thread, and waiting would be
        # for ever
        self._inbox = Inbox()
        self._broker = broker
        self._down = self._closed = False
        # what waits for the link to mend, on either side of it
        self._going: list[tuple[str, bytes, bool]] = []
        self._coming: list[Delivery] = []
        broker.attach(self)

    def arrive(self, delivery: Delivery, qos: int) -> None:
        """Takes a delivery from the broker, which queues it while the link is down (QoS 1)."""
        if not self._down:
            self._inbox.put(delivery, force=True)
            self.arrived()
        elif qos > 0:
            self._coming.append(delivery)

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
            self._going.append((topic, bytes(payload), retain))

    def subscribe(self, pattern: str) -> None:
        self._check_open()
        self.patterns.add(pattern)
        self._broker.hear(self, pattern)

    def unsubscribe(self, pattern: str) -> None:
        self.patterns.discard(pattern)
        self._broker.forget(self, pattern)

    @property
    def backlog(self) -> int:
        return len(self._inbox)

    def receive(self, timeout: float) -> Delivery | None:
        delivery = self._inbox.get(timeout)
        if delivery is None:
            self._check_open()
            return None
        self.received_bytes += len(delivery.topic) + len(delivery.payload)
        return delivery

    def flush(self, timeout: float) -> bool:
        return not self._going

    def probe(self, topic: str, sizes: tuple[int, ...] = (CHUNK,)) -> Probe:
        """The largest of `sizes` within the broker's limit; the rate is that of one copy."""
        passed = max((size for size in sizes if size <= self.max_payload), default=0)
        if not passed:
            raise LinkError(
                f"no payload of {sizes} bytes passes the broker's limit of {self.max_payload}"
            )
        start = time.perf_counter()
        self.publish(topic, bytearray(passed), qos=0)
        return passed, passed / max(time.perf_counter() - start, 1e-9)

    def close(self) -> None:
        self._end(abruptly=False)

    def kill(self) -> None:
        """Ends as a crash would: the broker publishes the will."""
        self._end(abruptly=True)

    def drop(self) -> None:
        """Loses the connection for a while: the will is published, messages in both directions
        wait.
        """
        self._check_open()
        if not self._down:
            self._inbox.put(Delivery(LINK_DOWN, b"dropped"), force=True)
            self._down = True
            self._broker.bury(self)

    def mend(self) -> None:
        """Connects again: what waited is sent, and comes."""
        self._down = False
        going, coming, self._going, self._coming = self._going, self._coming, [], []
        for delivery in (Delivery(LINK_UP, b""), *coming):
            self._inbox.put(delivery, force=True)
        for topic, payload, retain in going:
            self._broker.publish(topic, payload, retain=retain)

    def _end(self, *, abruptly: bool) -> None:
        if not self._closed:
            self._closed = True
            self._broker.detach(self, abruptly=abruptly)
            self._inbox.close()

    def _check_open(self) -> None:
        if self._closed:
            raise LinkError(f"the link of '{self.client_id}' is closed")


# the brokers that `open_memory_link` made, by address; each lives as long as a link to it does
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
