"""The interface of a connection to a broker (publish, subscribe, receive), and the bounded queue of
deliveries between the network's thread and the one that handles them.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

__all__ = [
    "CHUNK",
    "FLOODED",
    "LINK_DOWN",
    "LINK_UP",
    "OVERHEAD",
    "PROBES",
    "Delivery",
    "DeliveryQueue",
    "Link",
    "LinkOpener",
    "Payload",
    "Probe",
    "Will",
    "chunk_within",
    "get_scheme",
]

LINK_UP = "$link/up"
LINK_DOWN = "$link/down"
# rejected deliveries of one sender that make it a flooder; a very large one counts as several
FLOODED = 1000
# bytes of data per chunk: fast, and small enough for slow links and brokers with low limits
CHUNK = 256 << 10


@dataclass(frozen=True)
class Delivery:
    """A message, or an event of the link itself: LINK_DOWN with the reason as payload, or LINK_UP
    after a reconnection.

    retained: whether the broker had retained the message.
    """

    topic: str
    payload: bytes
    retained: bool = False


class DeliveryQueue:
    """Deliveries in order. `put` waits for room, which slows the sender down and bounds the memory.

    deliveries: largest number of deliveries.
    size: largest number of bytes of their payloads.
    share: largest number of deliveries of one sender. Further ones are rejected at once, so that a
        flood of one sender neither fills the queue nor holds up others. An agent sends at most 32
        chunks ahead, and heartbeats.
    size_share: the same in bytes. A single delivery may be larger.
    find_sender: returns the sender of a topic; empty if it has no limit of its own.
    """

    def __init__(
        self,
        *,
        deliveries: float = 10_000,
        size: float = 64 << 20,
        share: int = 500,
        size_share: int = 16 << 20,
        find_sender: Callable[[str], str] = lambda topic: "",
    ) -> None:
        self._queue: deque[Delivery] = deque()
        self._share, self._size_share, self._find_sender = share, size_share, find_sender
        self._blocked = frozenset[str]()
        self._waiting = Counter[str]()  # number of deliveries in the queue, by sender
        self._sizes = Counter[str]()  # bytes of them, by sender
        self._rejected = Counter[str]()  # since its queue was empty, by sender
        self._changed = threading.Condition()
        self._deliveries, self._size = deliveries, size
        self._held = 0
        self._closed = False

    def __len__(self) -> int:
        """Number of deliveries."""
        return len(self._queue)

    def put(self, delivery: Delivery, timeout: float = 0.0, *, force: bool = False) -> bool:
        """Add a delivery, waiting up to `timeout` seconds for room, and return whether there was
        room. force: add it even without room.
        """
        sender = self._find_sender(delivery.topic)
        with self._changed:
            size = len(delivery.payload)
            if sender and not force and self._is_over_share(sender, size):
                self._rejected[sender] += max(1, size // CHUNK)
                return False
            room = force or self._changed.wait_for(
                lambda: self._closed or self._has_room(size), timeout
            )
            if not room or self._closed:
                return False
            if sender:
                self._waiting[sender] += 1
                self._sizes[sender] += size
            self._append(delivery)
            return True

    def get(self, timeout: float) -> Delivery | None:
        """Remove and return the oldest delivery, waiting up to `timeout` seconds for one."""
        with self._changed:
            if (
                not self._changed.wait_for(lambda: self._queue or self._closed, max(0.0, timeout))
                or not self._queue
            ):
                return None
            delivery = self._queue.popleft()
            if sender := self._find_sender(delivery.topic):
                self._waiting[sender] -= 1
                self._sizes[sender] -= len(delivery.payload)
                if not self._waiting[sender]:
                    del self._waiting[sender], self._sizes[sender], self._rejected[sender]
            self._held -= len(delivery.payload)
            self._changed.notify_all()
            return delivery

    def take_flooders(self) -> frozenset[str]:
        """Return the senders with FLOODED rejected deliveries, whose count then starts again."""
        with self._changed:
            found = frozenset(name for name, count in self._rejected.items() if count >= FLOODED)
            for name in found:
                del self._rejected[name]
        return found

    def block(self, senders: frozenset[str]) -> None:
        """See `Link.block`."""
        self._blocked = senders

    def blocks(self, topic: str) -> bool:
        """Return True if a topic belongs to a blocked sender, whose deliveries are dropped."""
        return bool(self._blocked) and self._find_sender(topic) in self._blocked

    def _is_over_share(self, sender: str, size: int) -> bool:
        waiting = self._waiting[sender]
        return waiting >= self._share or (
            waiting > 0 and self._sizes[sender] + size > self._size_share
        )

    def _append(self, delivery: Delivery) -> None:
        self._queue.append(delivery)
        self._held += len(delivery.payload)
        self._changed.notify_all()

    def close(self) -> None:
        """Reject further deliveries. Those in the queue can still be read."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        """A single delivery may be larger than the whole queue, since it has already arrived."""
        return not self._queue or (
            len(self._queue) < self._deliveries and self._held + size <= self._size
        )


OVERHEAD = 4 << 10  # bytes of a packet beyond a chunk's data: topic, envelope, MQTT header
# payload sizes to probe: the default, one for brokers with a limit of 128 KB, a last resort
PROBES = (CHUNK + OVERHEAD, 96 << 10, 32 << 10)

Payload: TypeAlias = bytes | bytearray | memoryview
Will: TypeAlias = tuple[str, bytes]
Probe: TypeAlias = tuple[int, float]


class Link(Protocol):
    """A connection that reconnects by itself. Thread-safe, without callbacks: `receive` returns
    everything. `DeliveryQueue` is a queue for it: make it with
    `find_sender=federated.wire.topics.find_sender`, so that no sender can fill it alone, add
    LINK_DOWN and LINK_UP with `force`, and drop a message for which there is no room in time, or
    whose topic the queue `blocks`.
    `federated.wire.topics.matches` compares topics with patterns.

    When the connection is lost, `receive` returns a delivery LINK_DOWN, and LINK_UP after the link
    has reconnected and subscribed again: agents and coordinator then repeat what may be lost. A
    second link with the same client id disconnects the first.

    QoS 1 means that the broker has a message, not that anyone received it, so important messages
    are acknowledged by other messages.
    """

    max_payload: int  # bytes of the largest payload that the broker accepts
    max_chunk: int  # bytes of data to put into one chunk
    sent_bytes: int  # topics and payloads published since the link was made
    received_bytes: int

    @property
    def backlog(self) -> int:
        """Number of deliveries that wait for `receive`."""

    def take_flooders(self) -> frozenset[str]:
        """Return the senders that fill their share of the queue and go on, once each time. Any
        thread may ask, also while another one waits in `publish`.
        """

    def block(self, senders: frozenset[str]) -> None:
        """Drop further messages of these senders, and no longer those of others. The broker may
        still hold thousands of a flooder, which delay all others. Any thread may call. A link
        that gives senders no shares may ignore it.
        """

    def publish(self, topic: str, payload: Payload, *, retain: bool = False, qos: int = 1) -> None:
        """Send a message, or queue it while the link is down: at least 64 messages of QoS 1. A
        message of QoS 0 may be dropped then. Raises LinkError if the message is too large, or the
        queue stays full.
        """

    def subscribe(self, pattern: str) -> None:
        """Subscribe to a pattern, across reconnections, before this link publishes anything else.
        Retained messages are delivered, also if the link had subscribed before.
        """

    def unsubscribe(self, pattern: str) -> None:
        """Cancel the subscription to a pattern."""

    def receive(self, timeout: float) -> Delivery | None:
        """Return the next delivery, LINK_DOWN or LINK_UP, waiting up to `timeout` seconds; None if
        none came. Raises LinkError if the link has failed for good or is closed.
        """

    def flush(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds until the broker has acknowledged all published messages,
        across reconnections, and return whether it has.
        """

    def probe(self, topic: str, sizes: tuple[int, ...] = ...) -> Probe:
        """Publish payloads of these sizes (bytes), largest first. Return the largest that the
        broker accepted, and the bytes per second.
        """

    def close(self) -> None:
        """Disconnect without the last will. Closing twice is fine."""


class LinkOpener(Protocol):
    """Connects to the broker at an address.

    Raises UsageError for an invalid address, LinkError if it cannot connect.
    """

    def __call__(self, address: str, client_id: str, will: Will | None = None, /) -> Link: ...


def get_scheme(text: str) -> str:
    """Return the scheme of a broker's address; `mqtt` by default."""
    scheme, separator, _ = text.partition("://")
    return scheme if separator else "mqtt"


def chunk_within(max_payload: int, chunk: int = CHUNK) -> int:
    """Return the bytes of data per chunk for messages of at most `max_payload` bytes."""
    return max(1 << 10, min(chunk, max_payload - OVERHEAD))
