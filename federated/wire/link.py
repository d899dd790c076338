"""The protocol of a connection to a broker: publish, subscribe, receive."""

from __future__ import annotations

from typing import Protocol, TypeAlias

from federated.wire.delivery_queue import Delivery

__all__ = [
    "CHUNK",
    "OVERHEAD",
    "PROBES",
    "Link",
    "Payload",
    "Probe",
    "Will",
    "chunk_within",
]

# bytes of data per chunk: fast, and small enough for slow links and brokers with low limits
CHUNK = 256 << 10
OVERHEAD = 4 << 10  # bytes of a packet beyond a chunk's data: topic, envelope, MQTT header
# payload sizes to probe: the default, one for brokers with a limit of 128 KB, a last resort
PROBES = (CHUNK + OVERHEAD, 96 << 10, 32 << 10)

Payload: TypeAlias = bytes | bytearray | memoryview
Will: TypeAlias = tuple[str, bytes]
Probe: TypeAlias = tuple[int, float]


class Link(Protocol):
    """A connection that reconnects by itself. Thread-safe, without callbacks: `receive` returns
    everything. `federated.wire.delivery_queue` has a queue for it, and
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

    def publish(self, topic: str, payload: Payload, *, retain: bool = False, qos: int = 1) -> None:
        """Send a message, or queue it while the link is down. Raises LinkError if it is too large,
        or the queue stays full.
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


def chunk_within(max_payload: int, chunk: int = CHUNK) -> int:
    """Return the bytes of data per chunk for messages of at most `max_payload` bytes."""
    return max(1 << 10, min(chunk, max_payload - OVERHEAD))
