"""Find out whether a broker sends large messages slowly over WebSockets, as mosquitto 2.0 does: it
sends 4 KiB of a message every 0.1 s where its library lacks a poll of its own (its issue 2252).
"""

from __future__ import annotations

import secrets
import time

from federated.wire.checks import request_client
from federated.wire.checks.check_result import Check
from federated.wire.checks.request_client import Client

__all__ = ["check_websockets"]

LARGE, SMALL = 32 << 10, 2 << 10  # bytes of the messages whose times are compared
TRIES = 2  # measurements of each size; the faster one counts
SLOW = 1.5  # a broker is slow if the same bytes take this many times as long in a large message
LEAST = 0.3  # seconds; less is noise
CHUNK = 3000  # bytes per chunk that stay below 4 KiB with topic and envelope


def check_websockets(sender: Client, receiver: Client, topic: str) -> Check:
    """Compare the time of a large message with that of the same bytes in small ones. Raises
    LinkError.
    """
    receiver.subscribe(topic)
    large, small = (_measure_fastest(sender, receiver, topic, size) for size in (LARGE, SMALL))
    if large is None or small is None:
        return Check(
            "websockets",
            "warn",
            f"{LARGE} bytes do not arrive within {request_client.TIMEOUT:.0f} s",
            "use a faster network, or see the broker's log",
        )
    found = f"{LARGE} bytes arrive in {large:.2f} s, in small messages in {small:.2f} s"
    if large > max(LEAST, SLOW * small):
        return Check(
            "websockets",
            "warn",
            f"{found}: the broker is slow with large messages over WebSockets, as mosquitto 2.0 is",
            "use its port without WebSockets or another broker, or start the run with --set "
            f"wire.chunk={CHUNK}",
        )
    return Check("websockets", "ok", found)


def _measure_fastest(sender: Client, receiver: Client, topic: str, size: int) -> float | None:
    times = (_measure(sender, receiver, topic, size) for _ in range(TRIES))
    return min((one for one in times if one is not None), default=None)


def _measure(sender: Client, receiver: Client, topic: str, size: int) -> float | None:
    """Return the seconds until LARGE bytes arrive in messages of `size` bytes; None: too slow."""
    word = secrets.token_bytes(8)
    messages, start = LARGE // size, time.perf_counter()
    sender.publish(topic, *messages * [word + bytes(size - len(word))])
    while messages:
        payload = receiver.receive(topic)
        if payload is None:
            return None
        messages -= payload.startswith(word)
    return time.perf_counter() - start
