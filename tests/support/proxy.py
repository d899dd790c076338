"""A proxy to a broker that can be slow, and whose connections can be cut."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time

__all__ = ["Proxy"]

PIECE = 16 << 10


class Proxy:
    """port, host: of the broker.

    rate: bytes per second toward the broker, over all connections; the other direction is not
        limited.
    passed: bytes that went towards the broker; may be set.
    """

    def __init__(self, port: int, rate: float = math.inf, host: str = "127.0.0.1") -> None:
        self.rate, self.passed = rate, 0
        self._target, self._open = (host, port), True
        self._free = 0.0  # when the next piece may pass
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self._server = socket.socket()
        if rate < math.inf:
            # else the kernel takes megabytes at once
            self._server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE)
        self._server.bind(("127.0.0.1", 0))
        self._server.listen()
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        """End all connections. Later ones are accepted and ended until `mend`."""
        self._open = False
        for end in self._ends:
            shut(end)

    def mend(self) -> None:
        self._open = True

    def close(self) -> None:
        self.cut()
        shut(self._server)
        for end in (self._server, *self._ends):
            end.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                try:
                    far = socket.create_connection(self._target) if self._open else None
                except OSError:  # the broker is away
                    far = None
                if far is None:
                    near.close()
                    continue
                self._ends += [near, far]
                for a, b, slowly in ((near, far, True), (far, near, False)):
                    threading.Thread(target=self._pump, args=(a, b, slowly), daemon=True).start()

    def _pump(self, a: socket.socket, b: socket.socket, slowly: bool) -> None:
        with contextlib.suppress(OSError):
            while data := a.recv(PIECE):
                if slowly:
                    self._wait(len(data))
                b.sendall(data)
        shut(a)
        shut(b)

    def _wait(self, size: int) -> None:
        with self._lock:
            self._free = max(self._free, time.monotonic()) + size / self.rate
            self.passed += size
            until = self._free
        time.sleep(max(0.0, until - time.monotonic()))


def shut(end: socket.socket) -> None:
    """End a connection for both sides. Closing would not: the kernel keeps it while another thread
    reads from it.
    """
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
