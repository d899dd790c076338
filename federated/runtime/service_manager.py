"""Tell a service manager (systemd's sd_notify) or a container's health check that a long-running
command still works.

The loop that does the work calls `ping`, so that a loop that hangs is noticed and restarted.
Without a service manager, nothing is sent. A health check reads the age of the file that
ESPALIER_ALIVE names, which `ping` touches.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

__all__ = ["NotifySocket", "ServiceManager"]


class NotifySocket:
    """A datagram socket to the service manager. Sending never fails: the protocol is best-effort,
    and a service must not end because its manager is restarting.
    """

    def __init__(self, address: str) -> None:
        """address: the value of NOTIFY_SOCKET: a path, or `@name` in Linux's abstract namespace."""
        # The kernel marks an abstract address with a leading zero byte; `@` stands for that byte.
        self._address = os.fsencode(address)
        if address.startswith("@"):
            self._address = b"\0" + self._address[1:]
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def send(self, state: str) -> None:
        """Send one assignment, or several separated by newlines. Does nothing after `close`."""
        with suppress(OSError):  # no manager listens, or the address is not a socket
            self._socket.sendto(state.encode("utf-8", "replace"), self._address)

    def close(self) -> None:
        self._socket.close()


PARTS = 4  # pings per watchdog timeout
TOUCH = 10.0  # seconds between touches of the health check's file
LONGEST = 200  # largest number of characters of a status
STATUS = 1.0  # seconds between updates of the status


class ServiceManager:
    """The connection to the service manager, from environment variables. They are removed, so that
    child processes do not inherit them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        address = os.environ.get("NOTIFY_SOCKET")
        local = hasattr(socket, "AF_UNIX")  # not on Windows
        self._socket = NotifySocket(address) if address and local else None
        self._period = (
            read_watchdog(os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", ""))
            / PARTS
        )
        self._file = (
            Path(os.environ["ESPALIER_ALIVE"]) if os.environ.get("ESPALIER_ALIVE") else None
        )
        self._next_ping = self._next_status = self._next_touch = -math.inf
        self._status = ""
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "ESPALIER_ALIVE"):
            os.environ.pop(name, None)

    def __enter__(self) -> ServiceManager:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._send("STOPPING=1")
        if self._socket is not None:
            self._socket.close()

    def ready(self, status: str = "") -> None:
        """Report that the command has started. From now on the manager expects pings."""
        self._send("READY=1")
        self.ping(lambda: status)

    def ping(self, status: Callable[[], str]) -> None:
        """Report a sign of life, and a changed status. Cheap: it sends a few times per watchdog
        timeout, and calls `status` once a second.
        """
        if self._socket is None and self._file is None:
            return
        now = self._clock()
        if self._file is not None and now >= self._next_touch:
            self._next_touch = now + TOUCH
            with suppress(OSError):  # a file that stays old fails the check
                self._file.touch()
        if self._period and now >= self._next_ping:
            self._next_ping = now + self._period
            self._send("WATCHDOG=1")
        if now >= self._next_status:
            self._next_status = now + STATUS
            if (text := to_line(status())) != self._status:
                self._status = text
                self._send(f"STATUS={text}")

    def _send(self, state: str) -> None:
        if self._socket is not None:
            self._socket.send(state)


def read_watchdog(microseconds: str, pid: str) -> float:
    """Return the watchdog timeout in seconds; 0 if the manager does not watch this process."""
    with suppress(ValueError):
        if not pid or int(pid) == os.getpid():
            return max(0.0, int(microseconds) / 1e6)
    return 0.0


def to_line(text: str) -> str:
    """Return the text on one line, since a newline separates the assignments of a message."""
    return " ".join(text.split())[:LONGEST]
