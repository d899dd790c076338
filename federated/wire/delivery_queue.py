"""A bounded queue of deliveries between the thread that hears the network and the one that handles
them.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

__all__ = ["LINK_DOWN", "LINK_UP", "Delivery", "Inbox"]

LINK_UP = "$link/up"
LINK_DOWN = "$link/down"


@dataclass(frozen=True)
class Delivery:
    """A message that came, or an event of the link itself: LINK_DOWN with the reason as payload,
    LINK_UP when it is back (not at first).

    retained: it was kept by the broker and came because of a subscription.
    """

    topic: str
    payload: bytes
    retained: bool = False


class Inbox:
    """Deliveries in order; `put` waits for room, which slows the sender down instead of filling the
    memory.
    """

    def __init__(self, *, deliveries: float = 10_000, size: float = 64 << 20) -> None:
        self._queue: deque[Delivery] = deque()
        self._changed = threading.Condition()
        self._deliveries, self._size = deliveries, size
        self._held = 0
        self._closed = False

    def __len__(self) -> int:
        """Deliveries that wait."""
        return len(self._queue)

    def put(self, delivery: Delivery, timeout: float = 0.0, *, force: bool = False) -> bool:
        """Adds a delivery, waiting up to `timeout` seconds for room (`force`: regardless of room);
        False if there was none.
        """
        with self._changed:
            room = force or self._changed.wait_for(
                lambda: self._closed or self._room(len(delivery.payload)), timeout
            )
            if not room or self._closed:
                return False
            self._queue.append(delivery)
            self._held += len(delivery.payload)
            self._changed.notify_all()
            return True

    def get(self, timeout: float) -> Delivery | None:
        """The oldest delivery, waiting up to `timeout` seconds for one."""
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
        """Takes nothing more in; what is there can still be had."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _room(self, size: int) -> bool:
        """One delivery larger than the whole inbox passes alone: it has arrived already."""
        return not self._queue or (
            len(self._queue) < self._deliveries and self._held + size <= self._size
        )
