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
from federated.wire.delivery_queue import DeliveryQueue
from federated.wire.link import CHUNK, LINK_DOWN, LINK_UP, Delivery, Payload, Probe, Will
from federated.wire.topics import matches

__all__ = ["TcpHub", "TcpLink", "open_tcp_link"]

RETRY = 0.1  # seconds between attempts to connect again


def frames(there: socket.socket) -> Iterator[list[Any]]:
    """Yield messages until the connection ends."""
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
        self._sockets: dict[str, socket.socket] = {}  # the last one of each client
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
                        name, will, patterns = rest
                        self.clients.append(name)
                        if (twin := self._sockets.get(name)) is not None:
                            self._patterns.pop(twin, None)
                            with contextlib.suppress(OSError):  # it may have ended
                                twin.shutdown(socket.SHUT_RDWR)
                        self._sockets[name], self._patterns[there] = there, {}
                        self._send(there, "welcome")
                        for pattern in patterns:
                            self._subscribe(there, pattern)
                    case "publish":
                        number, *message = rest
                        self._publish(*message)
                        self._send(there, "acknowledged", number)
                    case "subscribe":
                        self._subscribe(there, rest[0])
                    case "unsubscribe":
                        self._patterns[there].pop(rest[0], None)
                    case "bye":
                        parted = True
        with self._lock:
            self._patterns.pop(there, None)
            if will is not None and not parted:
                self._publish(*will, True)
        there.close()

    def _subscribe(self, there: socket.socket, pattern: str) -> None:
        self._patterns[there][pattern] = None
        for topic, payload in self.retained.items():
            if matches(pattern, topic):
                self._send(there, "delivery", topic, payload, True)

    def _publish(self, topic: str, payload: bytes, retain: bool) -> None:
        if retain and payload:
            self.retained[topic] = payload
        elif retain:
            self.retained.pop(topic, None)
        for there, patterns in self._patterns.items():
            if any(matches(pattern, topic) for pattern in patterns):
                self._send(there, "delivery", topic, payload, False)

    def _send(self, there: socket.socket, *message: object) -> None:
        with contextlib.suppress(OSError):
            there.sendall(msgpack.packb(message))


class TcpLink:
    """A `Link` with a thread that reads from the hub and reconnects. What the hub did not
    acknowledge is sent again after a reconnection.
    """

    max_payload, max_chunk = 1 << 24, CHUNK

    def __init__(self, host: str, port: int, client_id: str, will: Will | None) -> None:
        self.sent_bytes = self.received_bytes = 0
        self._hub, self._client_id, self._will = (host, port), client_id, will
        self._deliveries, self._closed = DeliveryQueue(), threading.Event()
        self._changed = threading.Condition()  # guards the three fields below
        self._patterns = dict[str, None]()
        self._waiting = dict[int, tuple[str, bytes, bool]]()  # not acknowledged, by number
        self._last = 0  # number of the last published message
        try:
            self._connect()
        except OSError as error:
            raise LinkError(f"no hub at {host}:{port}: {error}") from error
        self._thread = threading.Thread(target=self._hear, daemon=True)
        self._thread.start()

    @property
    def backlog(self) -> int:
        return len(self._deliveries)

    def take_flooders(self) -> frozenset[str]:
        return self._deliveries.take_flooders()

    def block(self, senders: frozenset[str]) -> None:
        self._deliveries.block(senders)

    def publish(self, topic: str, payload: Payload, *, retain: bool = False, qos: int = 1) -> None:
        if len(payload) > self.max_payload:
            raise LinkError(f"{topic}: the hub accepts {self.max_payload} bytes: lower wire.chunk")
        message = (topic, bytes(payload), retain)
        with self._changed:
            self.sent_bytes += len(topic) + len(payload)
            self._last += 1
            self._waiting[self._last] = message
            self._tell("publish", self._last, *message)

    def subscribe(self, *patterns: str) -> None:
        with self._changed:
            for pattern in patterns:
                self._patterns[pattern] = None
                self._tell("subscribe", pattern)

    def unsubscribe(self, *patterns: str) -> None:
        with self._changed:
            for pattern in patterns:
                self._patterns.pop(pattern, None)
                self._tell("unsubscribe", pattern)

    def receive(self, timeout: float) -> Delivery | None:
        delivery = self._deliveries.get(timeout)
        if delivery is None and self._closed.is_set():
            raise LinkError("the link is closed")
        return delivery

    def flush(self, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, timeout)

    def probe(self, topic: str, sizes: tuple[int, ...] = (CHUNK,)) -> Probe:
        start = time.perf_counter()
        self.publish(topic, bytes(max(sizes)))
        return max(sizes), max(sizes) / (time.perf_counter() - start)

    def close(self) -> None:
        with self._changed:
            self._closed.set()
            self._tell("bye")
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _connect(self) -> None:
        """Connect and subscribe. The hub's first answer shows that it is there: a proxy also
        accepts connections to a hub that is gone.
        """
        self._socket = socket.create_connection(self._hub, timeout=10)
        hello = ("hello", self._client_id, self._will, list(self._patterns))
        self._socket.sendall(msgpack.packb(hello))
        self._coming = frames(self._socket)
        if next(self._coming, None) is None:
            self._socket.close()
            raise ConnectionError("the hub closed the connection")
        self._socket.settimeout(None)

    def _tell(self, *message: object) -> None:
        """Send a message. If the connection is lost, `_reconnect` repeats what matters."""
        with contextlib.suppress(OSError):
            self._socket.sendall(msgpack.packb(message))

    def _hear(self) -> None:
        while True:
            for kind, *rest in self._coming:
                if kind == "delivery":
                    self.received_bytes += len(rest[0]) + len(rest[1])
                    self._deliveries.put(Delivery(*rest), force=True)
                else:
                    with self._changed:
                        self._waiting.pop(rest[0], None)
                        self._changed.notify_all()
            self._socket.close()
            if not self._closed.is_set():
                self._deliveries.put(Delivery(LINK_DOWN, b"the hub is gone"), force=True)
            if not self._reconnect():
                break
            self._deliveries.put(Delivery(LINK_UP, b""), force=True)
        self._deliveries.close()

    def _reconnect(self) -> bool:
        """Connect, and send what was not acknowledged. Return False once the link is closed."""
        while not self._closed.wait(RETRY):
            with contextlib.suppress(OSError), self._changed:
                if self._closed.is_set():
                    break
                self._connect()
                for number, message in self._waiting.items():
                    self._tell("publish", number, *message)
                return True
        return False


def open_tcp_link(address: str, client_id: str, will: Will | None = None) -> TcpLink:
    """Open a link to the hub at SCHEME://HOST:PORT, for any scheme."""
    host, _, port = address.partition("://")[2].partition(":")
    return TcpLink(host, int(port), client_id, will)
