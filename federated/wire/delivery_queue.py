"""A bounded queue of deliveries between the network's thread and the one that handles them."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

__all__ = ["LINK_DOWN", "LINK_UP", "Delivery", "DeliveryQueue"]

LINK_UP = "$link/up"
LINK_DOWN = "$link/down"


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
    """

    def __init__(self, *, deliveries: float = 10_000, size: float = 64 << 20) -> None:
        self._queue: deque[Delivery] = deque()
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
        with self._changed:
            room = force or self._changed.wait_for(
                lambda: self._closed or self._has_room(len(delivery.payload)), timeout
            )
            if not room or self._closed:
                return False
            self._queue.append(delivery)
            self._held += len(delivery.payload)
            self._changed.notify_all()
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
            self._held -= len(delivery.payload)
            self._changed.notify_all()
            return delivery

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
