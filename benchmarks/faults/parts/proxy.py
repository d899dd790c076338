"""Forward connections to a broker, delay their data, and cut them after a number of bytes."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass, field

__all__ = ["Proxy"]

PIECE = 16 << 10
POLL = 0.005  # seconds between checks for data to pass
ROOM = 4 << 20  # maximum number of bytes buffered in one direction


@dataclass
class Way:
    """One direction of a connection.

    near, far: sockets of the sending and the receiving end
    up: True for the direction from the client
    waiting: buffered data, each with the time when it may be forwarded
    held: number of buffered bytes
    ended: True once the sender closed the connection
    """

    near: socket.socket
    far: socket.socket
    up: bool
    waiting: deque[tuple[float, bytes]] = field(default_factory=deque)
    held: int = 0
    ended: bool = False


class Proxy:
    """Forwarder of connections from 127.0.0.1:port to the first of `targets` that listens; every
    byte arrives `delay` seconds later.

    cut_up, cut_down: byte counts of a direction (up: from the client); all connections are cut
        once when a count is reached
    away: True to cut all connections, and to accept no others
    hold_up, hold_down: times (monotonic, seconds) until which a direction forwards nothing
    cut: number of cuts so far
    """

    def __init__(self, *targets: tuple[str, int], delay: float = 0.0) -> None:
        self.targets, self.delay = targets, delay
        self.cut_up: list[int] = []
        self.cut_down: list[int] = []
        self.cut, self.away = 0, False
        self.hold_up = self.hold_down = 0.0
        self._selector = selectors.DefaultSelector()
        self._ways: list[Way] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.setblocking(False)
        self.port = int(self._server.getsockname()[1])
        self._selector.register(self._server, selectors.EVENT_READ, None)
        self._open = True
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._open = False
        self._thread.join()
        self._cut_all()
        self._server.close()
        self._selector.close()

    def _run(self) -> None:
        while self._open:
            for key, _ in self._selector.select(
                POLL if any(way.waiting for way in self._ways) else 0.05
            ):
                if key.data is None:
                    self._accept()
                else:
                    self._read(key.data)
            if self.away:
                self._cut_all()
            self._pass()

    def _accept(self) -> None:
        near, _ = self._server.accept()
        far = None if self.away else self._connect()
        if far is None:  # the broker is down, or the way to it
            near.close()
            return
        for end in (near, far):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for way in (Way(near, far, True), Way(far, near, False)):
            self._ways.append(way)
            self._selector.register(way.near, selectors.EVENT_READ, way)

    def _connect(self) -> socket.socket | None:
        for target in self.targets:
            with contextlib.suppress(OSError):
                return socket.create_connection(target, timeout=5)
        return None

    def _read(self, way: Way) -> None:
        if way.held > ROOM:
            time.sleep(POLL)
            return
        try:
            data = way.near.recv(PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end(way)
            return
        way.waiting.append((time.monotonic() + self.delay, data))
        way.held += len(data)
        if self._count_down(self.cut_up if way.up else self.cut_down, len(data)):
            self.cut += 1
            self._cut_all()

    def _count_down(self, cuts: list[int], size: int) -> bool:
        """Return True if the next cut is due."""
        if not cuts:
            return False
        cuts[0] -= size
        if cuts[0] <= 0:
            cuts.pop(0)
            return True
        return False

    def _pass(self) -> None:
        now = time.monotonic()
        for way in list(self._ways):
            if now < (self.hold_up if way.up else self.hold_down):
                continue
            while way.waiting and way.waiting[0][0] <= now and way in self._ways:
                due, data = way.waiting.popleft()
                try:
                    sent = way.far.send(data)
                except BlockingIOError:
                    sent = 0
                except OSError:
                    self._end(way)
                    break
                way.held -= sent
                if sent < len(data):
                    way.waiting.appendleft((due, data[sent:]))
                    break

    def _end(self, way: Way) -> None:
        """End the connection of a way."""
        for one in [one for one in self._ways if {one.near, one.far} == {way.near, way.far}]:
            self._ways.remove(one)
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(one.near)
            one.near.close()

    def _cut_all(self) -> None:
        """Cut all connections, and drop buffered data."""
        while self._ways:
            self._end(self._ways[0])
