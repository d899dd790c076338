"""The interface of a connection to a broker (publish, subscribe, receive), and the sizes of its
messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

__all__ = [
    "CHUNK",
    "LINK_DOWN",
    "LINK_UP",
    "OVERHEAD",
    "PROBES",
    "SENT_SHARE",
    "Delivery",
    "LimitableLink",
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


OVERHEAD = 4 << 10  # bytes of a packet beyond a chunk's data: topic, envelope, MQTT header
# payload sizes to probe: the default, one for brokers with a limit of 128 KB, a last resort
PROBES = (CHUNK + OVERHEAD, 96 << 10, 32 << 10)
SENT_SHARE = 0.8  # of a broker's limit of messages per second that a link sends: it receives, too

Payload: TypeAlias = bytes | bytearray | memoryview
Will: TypeAlias = tuple[str, bytes]
Probe: TypeAlias = tuple[int, float]


class Link(Protocol):
    """A connection that reconnects by itself. Thread-safe, without callbacks: `receive` returns
    everything. `federated.wire.delivery_queue.DeliveryQueue` is a queue for it: make it with
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

    def subscribe(self, *patterns: str) -> None:
        """Subscribe to patterns, across reconnections, before this link publishes anything else.
        Retained messages are delivered, also if the link had subscribed before.
        """

    def unsubscribe(self, *patterns: str) -> None:
        """Cancel the subscriptions to patterns."""

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


@runtime_checkable
class LimitableLink(Protocol):
    """A link that can obey limits of a broker."""

    def limit(self, payload: int | None, messages: int | None) -> None:
        """Send no payload of more bytes, and at most SENT_SHARE of the messages per second that
        the broker accepts; None: no limit.
        """


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
