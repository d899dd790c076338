"""What an agent or a coordinator holds of the network: publish, subscribe, receive."""

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

# bytes of data per chunk: large enough to be fast, small enough for slow links and careful brokers
CHUNK = 256 << 10
OVERHEAD = 4 << 10  # bytes that a packet holds beside a chunk's data: topic, envelope, MQTT itself
# payloads to try: ours, one for brokers that stop at 128 KB, a last resort
PROBES = (CHUNK + OVERHEAD, 96 << 10, 32 << 10)

Payload: TypeAlias = bytes | bytearray | memoryview
Will: TypeAlias = tuple[str, bytes]
Probe: TypeAlias = tuple[int, float]


class Link(Protocol):
    """A connection that mends itself. Thread-safe; nothing calls back: everything comes through
    `receive`.

    QoS 1 means that the broker has a message, not that anyone received it: whatever matters is
    acknowledged by messages.
    """

    max_payload: int  # bytes of the largest payload that the broker takes
    max_chunk: int  # bytes of data to put into one chunk
    sent_bytes: int  # topics and payloads published since the link was made
    received_bytes: int

    @property
    def backlog(self) -> int:
        """Deliveries that came and wait for `receive`."""

    def publish(self, topic: str, payload: Payload, *, retain: bool = False, qos: int = 1) -> None:
        """Sends a message, or queues it while the link is down. Raises LinkError if it is too
        large, or the queue stays full.
        """

    def subscribe(self, pattern: str) -> None:
        """Hears a pattern, across reconnections, from before what this link publishes next; what is
        retained comes (again).
        """

    def unsubscribe(self, pattern: str) -> None:
        """No longer hears a pattern."""

    def receive(self, timeout: float) -> Delivery | None:
        """The next delivery or link event, waiting up to `timeout` seconds. Raises LinkError once
        the link is beyond mending.
        """

    def flush(self, timeout: float) -> bool:
        """Wait until the broker has acknowledged everything published so far, across reconnections;
        False if it has not after `timeout` seconds.
        """

    def probe(self, topic: str, sizes: tuple[int, ...] = ...) -> Probe:
        """Sends itself payloads of these sizes (bytes), largest first: the largest that passed, and
        bytes per second on the way up.
        """

    def close(self) -> None:
        """Signs off without the last will. Closing twice is fine."""


def chunk_within(max_payload: int, chunk: int = CHUNK) -> int:
    """Bytes of data per chunk so that its message fits `max_payload`."""
    return max(1 << 10, min(chunk, max_payload - OVERHEAD))
