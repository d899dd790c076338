"""A link as another package might add: plain TCP to a hub, in one file that no package of the
project imports.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgpack

from federated.errors import LinkError
from federated.wire.link import CHUNK, Delivery, DeliveryQueue, Payload, Probe, Will
from federated.wire.topics import matches

__all__ = ["TcpHub", "TcpLink", "open_tcp_link"]


def frames(there: socket.socket) -> Iterator[list[Any]]:
    """Yield messages until the other end closes."""
    unpacker = msgpack.Unpacker(max_buffer_size=1 << 30)
    with contextlib.suppress(OSError):
        while data := there.recv(1 << 16):
            unpacker.feed(data)
            yield from unpacker


class TcpHub:
    """Routes messages between links. retained: the last retained payload by topic."""

    def __init__(self) -> None:
        self.retained: dict[str, bytes] = {}
        self._patterns: dict[socket.socket, dict[str, None]] = {}
        self._lock = threading.Lock()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = "toytcp://{}:{}".format(*self._server.getsockname())
        self.clients = list[str]()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # closing alone does not wake a thread that waits in accept
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                there, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(there,), daemon=True).start()

    def _serve(self, there: socket.socket) -> None:
        coming, will, parted = frames(there), None, False
        for kind, *rest in coming:
            with self._lock:
                match kind:
                    case "hello":
                        self._patterns[there], will = {}, rest[1]
                        self.clients.append(rest[0])
                    case "publish":
                        self._publish(*rest)
                    case "subscribe":
                        self._patterns[there][rest[0]] = None
                        for topic, payload in self.retained.items():
                            if matches(rest[0], topic):
                                self._send(there, topic, payload, retained=True)
                    case "unsubscribe":
                        self._patterns[there].pop(rest[0], None)
                    case "bye":
                        parted = True
        with self._lock:
            self._patterns.pop(there, None)
            if will is not None and not parted:
                self._publish(*will, True)
        there.close()

    def _publish(self, topic: str, payload: bytes, retain: bool) -> None:
        if retain and payload:
            self.retained[topic] = payload
        elif retain:
            self.retained.pop(topic, None)
        for there, patterns in self._patterns.items():
            if any(matches(pattern, topic) for pattern in patterns):
                self._send(there, topic, payload, retained=False)

    def _send(self, there: socket.socket, topic: str, payload: bytes, *, retained: bool) -> None:
        with contextlib.suppress(OSError):
            there.sendall(msgpack.packb([topic, payload, retained]))


class TcpLink:
    """A `Link` that a lost connection ends."""

    max_payload, max_chunk = 1 << 24, CHUNK

    def __init__(self, host: str, port: int, client_id: str, will: Will | None) -> None:
        self.sent_bytes = self.received_bytes = 0
        self._deliveries, self._lock = DeliveryQueue(), threading.Lock()
        try:
            self._socket = socket.create_connection((host, port), timeout=10)
        except OSError as error:
            raise LinkError(f"no hub at {host}:{port}: {error}") from error
        self._socket.settimeout(None)
        self._tell("hello", client_id, will)
        self._thread = threading.Thread(target=self._hear, daemon=True)
        self._thread.start()

    @property
    def backlog(self) -> int:
        return len(self._deliveries)

    def take_flooders(self) -> frozenset[str]:
        return self._deliveries.take_flooders()

    def publish(self, topic: str, payload: Payload, *, retain: bool = False, qos: int = 1) -> None:
        if len(payload) > self.max_payload:
            raise LinkError(f"{topic}: the hub accepts {self.max_payload} bytes: lower wire.chunk")
        self.sent_bytes += len(topic) + len(payload)
        self._tell("publish", topic, bytes(payload), retain)

    def subscribe(self, pattern: str) -> None:
        self._tell("subscribe", pattern)

    def unsubscribe(self, pattern: str) -> None:
        self._tell("unsubscribe", pattern)

    def receive(self, timeout: float) -> Delivery | None:
        delivery = self._deliveries.get(timeout)
        if delivery is None and not self._thread.is_alive():
            raise LinkError("the hub closed the connection")
        return delivery

    def flush(self, timeout: float) -> bool:
        return True

    def probe(self, topic: str, sizes: tuple[int, ...] = (CHUNK,)) -> Probe:
        start = time.perf_counter()
        self.publish(topic, bytes(max(sizes)))
        return max(sizes), max(sizes) / (time.perf_counter() - start)

    def close(self) -> None:
        with contextlib.suppress(LinkError, OSError):
            self._tell("bye")
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _tell(self, *message: object) -> None:
        with self._lock:
            try:
                self._socket.sendall(msgpack.packb(message))
            except OSError as error:
                raise LinkError(f"the connection to the hub is lost: {error}") from error

    def _hear(self) -> None:
        for topic, payload, retained in frames(self._socket):
            self.received_bytes += len(topic) + len(payload)
            self._deliveries.put(Delivery(topic, payload, retained), force=True)
        self._deliveries.close()


def open_tcp_link(address: str, client_id: str, will: Will | None = None) -> TcpLink:
    """Open a link to the hub at SCHEME://HOST:PORT, for any scheme."""
    host, _, port = address.partition("://")[2].partition(":")
    return TcpLink(host, int(port), client_id, will)
