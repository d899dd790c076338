"""A proxy that enforces a broker's documented rates, as AWS IoT Core does: it discards messages
beyond those of a second, and delays bytes.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter, defaultdict, deque

from coordinator.broker.broker_profiles import Profile
from coordinator.phones.mqtt_packets import Packet, PacketReader
from tests.support.proxy import PIECE, Proxy, shut

__all__ = ["RateProxy"]

PUBLISH = 3
PUBACK = b"\x40\x02"
LARGEST = 1 << 28  # bytes of a packet


class RateProxy(Proxy):
    """A proxy to a broker that enforces the rates of a profile on each connection.

    discarded: numbers of messages beyond the rate, by whether a client sent them.
    most: most messages that a client sent within a second.
    """

    def __init__(self, port: int, profile: Profile) -> None:
        assert profile.messages is not None
        assert profile.throughput is not None
        self._messages, self._throughput = profile.messages, profile.throughput
        self.most = 0
        self.discarded = Counter[bool]()
        # of each connection: when its next byte may pass; of each socket: held while writing to it
        self._due = defaultdict[frozenset[socket.socket], float](float)
        self._writing = defaultdict[socket.socket, threading.Lock](threading.Lock)
        super().__init__(port)

    def _pump(self, a: socket.socket, b: socket.socket, slowly: bool) -> None:
        """Pass the packets of one direction. slowly: it comes from a client."""
        reader, recent = PacketReader(LARGEST), deque[float]()
        with contextlib.suppress(OSError):
            while data := a.recv(PIECE):
                for packet in reader.read(data):
                    self._delay(frozenset((a, b)), len(packet.raw))
                    if packet.kind != PUBLISH or self._admit(recent, slowly):
                        with self._writing[b]:
                            b.sendall(packet.raw)
                    elif not slowly and (answer := acknowledge(packet)):
                        with self._writing[a]:  # else the broker would wait, and repeat it
                            a.sendall(answer)
        shut(a)
        shut(b)

    def _delay(self, connection: frozenset[socket.socket], size: int) -> None:
        """Wait until these bytes are within the connection's rate."""
        with self._lock:
            start = max(self._due[connection], time.monotonic())
            self._due[connection] = start + size / self._throughput
        time.sleep(max(0.0, start - time.monotonic()))

    def _admit(self, recent: deque[float], from_client: bool) -> bool:
        """Count a message, and return whether it is within the rate. recent: when the passed
        messages of this direction were counted.
        """
        now = time.monotonic()
        while recent and recent[0] <= now - 1:
            recent.popleft()
        with self._lock:
            if from_client:
                self.most = max(self.most, len(recent) + 1)
            if len(recent) == self._messages:
                self.discarded[from_client] += 1
                return False
        recent.append(now)
        return True


def acknowledge(packet: Packet) -> bytes:
    """Return a client's acknowledgement of a message; empty for QoS 0."""
    if not packet.flags & 0b110:
        return b""
    start = 2 + int.from_bytes(packet.body[:2], "big")
    return PUBACK + bytes(packet.body[start : start + 2])
