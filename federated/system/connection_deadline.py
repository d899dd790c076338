"""Limit the time of a connection attempt as a whole.

A timeout of a socket limits each wait for data: a server that sends a byte before each timeout
could hold an attempt for hours.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import TracebackType
from typing import Self

__all__ = ["ConnectionDeadline"]


class ConnectionDeadline:
    """A context that shuts the watched sockets down after `seconds`, and then ends with
    TimeoutError.
    """

    def __init__(self, seconds: float) -> None:
        self._end, self._expired = time.monotonic() + seconds, False
        self._lock, self._watched = threading.Lock(), list[socket.socket]()
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True

    @property
    def left(self) -> float:
        """Seconds until the deadline; not 0, which would make a socket not wait at all."""
        return max(0.01, self._end - time.monotonic())

    def watch(self, connection: socket.socket) -> None:
        """Shut a socket down at the deadline. TLS may wrap it, which takes its descriptor away."""
        with self._lock:
            self._watched.append(connection.dup())
        if self._expired:
            self._shut()

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        with self._lock:
            for connection in self._watched:
                connection.close()
            self._watched.clear()
        if self._expired and (error is None or isinstance(error, Exception)):
            raise TimeoutError("timed out") from error

    def _expire(self) -> None:
        self._expired = True
        self._shut()

    def _shut(self) -> None:
        with self._lock:
            for connection in self._watched:
                with contextlib.suppress(OSError):  # not connected any more
                    connection.shutdown(socket.SHUT_RDWR)
