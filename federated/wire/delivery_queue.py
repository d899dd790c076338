"""The bounded queue of deliveries between the network's thread and the one that handles them."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable

from federated.wire.link import Delivery

__all__ = ["FLOODED", "LARGE", "DeliveryQueue"]

# rejected deliveries from which a sender counts as a flooder, and bytes of a delivery that count as
# one more
FLOODED, LARGE = 1000, 64 << 10


class DeliveryQueue:
    """Deliveries in order. `put` waits for room, which slows the sender down and bounds the memory.
    Once full, the queue takes deliveries again when half of it is free, so that the two threads do
    not take turns at each delivery.

    deliveries: largest number of deliveries.
    size: largest number of bytes of their payloads.
    share: largest number of deliveries of one sender. Further ones are rejected at once, so that a
        flood of one sender neither fills the queue nor holds up others. An agent sends at most 32
        chunks ahead, and heartbeats.
    size_share: the same in bytes. A single delivery may be larger.
    find_sender: returns the sender of a topic; empty if it has no limit of its own.
    closed: whether it rejects further deliveries.
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
        lock = threading.Lock()
        self._filled, self._emptied = threading.Condition(lock), threading.Condition(lock)
        self._deliveries, self._size = deliveries, size
        self._held = 0
        self.closed = False

    def __len__(self) -> int:
        """Number of deliveries."""
        return len(self._queue)

    def put(self, delivery: Delivery, timeout: float = 0.0, *, force: bool = False) -> bool:
        """Add a delivery, waiting up to `timeout` seconds for room, and return whether there was
        room. force: add it even without room.
        """
        sender = self._find_sender(delivery.topic)
        with self._emptied:
            size = len(delivery.payload)
            if sender and not force and self._is_over_share(sender, size):
                self._rejected[sender] += 1 + size // LARGE
                return False
            room = force or self._emptied.wait_for(
                lambda: self.closed or self._has_room(size), timeout
            )
            if not room or self.closed:
                return False
            if sender:
                self._waiting[sender] += 1
                self._sizes[sender] += size
            self._append(delivery)
            return True

    def get(self, timeout: float) -> Delivery | None:
        """Remove and return the oldest delivery, waiting up to `timeout` seconds for one."""
        with self._filled:
            if (
                not self._filled.wait_for(lambda: self._queue or self.closed, max(0.0, timeout))
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
            if 2 * len(self._queue) <= self._deliveries and 2 * self._held <= self._size:
                self._emptied.notify_all()
            return delivery

    def take_flooders(self) -> frozenset[str]:
        """Return the senders with FLOODED rejected deliveries, whose count then starts again."""
        if not self._rejected:
            return frozenset()
        with self._filled:
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
        self._filled.notify()

    def close(self) -> None:
        """Reject further deliveries. Those in the queue can still be read."""
        with self._filled:
            self.closed = True
            self._filled.notify_all()
            self._emptied.notify_all()

    def _has_room(self, size: int) -> bool:
        """A single delivery may be larger than the whole queue, since it has already arrived."""
        return not self._queue or (
            len(self._queue) < self._deliveries and self._held + size <= self._size
        )
