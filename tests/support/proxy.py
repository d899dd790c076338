"""A slow way to a broker: what clients send passes at a given rate, what they hear passes at once."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

PIECE = 16 << 10


class Slow:
    """rate: bytes per second of all connections together, towards the broker. passed: bytes that went that way; may be set."""

    def __init__(self, port: int, rate: float) -> None:
        self.rate, self.passed = rate, 0
        self._target = port
        self._free = 0.0  # when the next piece may pass
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self._server = socket.socket()
        self._server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE)  # else the kernel takes megabytes at once
        self._server.bind(("127.0.0.1", 0))
        self._server.listen()
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        for end in (self._server, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:  # the broker is away
                    near.close()
                    continue
                self._ends += [near, far]
                threading.Thread(target=self._pump, args=(near, far, True), daemon=True).start()
                threading.Thread(target=self._pump, args=(far, near, False), daemon=True).start()

    def _pump(self, a: socket.socket, b: socket.socket, slowly: bool) -> None:
        with contextlib.suppress(OSError):
            while data := a.recv(PIECE):
                if slowly:
                    self._wait(len(data))
                b.sendall(data)
        for end in (a, b):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _wait(self, size: int) -> None:
        with self._lock:
            self._free = max(self._free, time.monotonic()) + size / self.rate
            self.passed += size
            until = self._free
        time.sleep(max(0.0, until - time.monotonic()))
