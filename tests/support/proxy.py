"""Proxies to a broker: one that can be slow, and whose connections can be cut, and one for HTTP."""

from __future__ import annotations

import base64
import contextlib
import math
import socket
import threading
import time

__all__ = ["ConnectProxy", "Proxy"]

PIECE = 16 << 10


class Proxy:
    """port, host: of the broker.

    rate: bytes per second toward the broker, over all connections; the other direction is not
        limited.
    passed: bytes that went towards the broker; may be set.
    returned: bytes that came from it.
    """

    def __init__(self, port: int, rate: float = math.inf, host: str = "127.0.0.1") -> None:
        self.rate, self.passed, self.returned = rate, 0, 0
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
                else:
                    with self._lock:
                        self.returned += len(data)
                b.sendall(data)
        shut(a)
        shut(b)

    def _wait(self, size: int) -> None:
        with self._lock:
            self._free = max(self._free, time.monotonic()) + size / self.rate
            self.passed += size
            until = self._free
        time.sleep(max(0.0, until - time.monotonic()))


class ConnectProxy(Proxy):
    """An HTTP proxy, through which every name leads to the same port of this machine.

    asked: targets of the requests that it granted.
    """

    def __init__(self, port: int, user: str = "", status: str = "") -> None:
        """user: USER:PASSWORD that it requires. status: of its answers; empty: those of a proxy
        that works.
        """
        self.asked, self._status = list[str](), status
        self._login = base64.b64encode(user.encode()).decode()
        super().__init__(port)

    def _pump(self, a: socket.socket, b: socket.socket, slowly: bool) -> None:
        if slowly:  # from the client
            with contextlib.suppress(OSError):
                granted = self._answer(a)
                if not granted:
                    shut(a)
        super()._pump(a, b, slowly)

    def _answer(self, client: socket.socket) -> bool:
        request = b""
        while not request.endswith(b"\r\n\r\n") and (more := client.recv(1)):
            request += more
        line, *headers = request.decode().splitlines()
        method, target = line.split()[:2]
        authorized = not self._login or f"Proxy-Authorization: Basic {self._login}" in headers
        status = self._status or ("200 OK" if authorized else "407 Proxy Authentication Required")
        # in pieces, as a network may deliver it
        for piece in (f"HTTP/1.1 {status}\r\n", "Via: test\r\n", "\r\n"):
            client.sendall(piece.encode())
            time.sleep(0.02)
        if granted := method == "CONNECT" and status == "200 OK":
            self.asked.append(target)
        return granted


def shut(end: socket.socket) -> None:
    """End a connection for both sides. Closing would not: the kernel keeps it while another thread
    reads from it.
    """
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
