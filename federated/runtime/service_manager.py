"""What a long-running command tells whoever watches it: a service manager (systemd's sd_notify), or
a container's health check.

Who calls `alive` is the loop that does the work, never a thread of its own: a loop that hangs is
then seen to hang, and started anew. Where nobody listens, nothing is sent. A health check has the
file that ESPALIER_ALIVE names: it is touched while the loop turns.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from federated.runtime.notify_socket import NotifySocket

__all__ = ["Manager"]

PARTS = 4  # pings in the time after which silence counts as hanging
TOUCH = 10.0  # seconds between two touches of the file of a health check
LONGEST = 200  # characters of a status
TELL = 1.0  # seconds between two looks at the status


class Manager:
    """The end of the line to the service manager, from the environment that it gave this process
    and that its children do not inherit.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        address = os.environ.get("NOTIFY_SOCKET")
        self._socket = NotifySocket(address) if address else None
        self._period = (
            watchdog(os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", ""))
            / PARTS
        )
        self._file = (
            Path(os.environ["ESPALIER_ALIVE"]) if os.environ.get("ESPALIER_ALIVE") else None
        )
        self._ping = self._tell = self._touch = -math.inf  # when to, next
        self._told = ""
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "ESPALIER_ALIVE"):
            os.environ.pop(name, None)

    def __enter__(self) -> Manager:
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
        """The command began what it is for; from now on the manager expects to hear that it is
        alive.
        """
        self._send("READY=1")
        self.alive(lambda: status)

    def alive(self, status: Callable[[], str]) -> None:
        """The loop came round. Cheap: pings a few times in the manager's patience; asks for the
        status once a second, and tells another one.
        """
        if self._socket is None and self._file is None:
            return
        now = self._clock()
        if self._file is not None and now >= self._touch:
            self._touch = now + TOUCH
            with suppress(OSError):  # a file that cannot be written is old, and the check says so
                self._file.touch()
        if self._period and now >= self._ping:
            self._ping = now + self._period
            self._send("WATCHDOG=1")
        if now >= self._tell:
            self._tell = now + TELL
            if (told := line(status())) != self._told:
                self._told = told
                self._send(f"STATUS={told}")

    def _send(self, state: str) -> None:
        if self._socket is not None:
            self._socket.send(state)


def watchdog(microseconds: str, pid: str) -> float:
    """Seconds of silence that the manager takes for hanging; 0 where it does not watch, or watches
    another process.
    """
    with suppress(ValueError):
        if not pid or int(pid) == os.getpid():
            return max(0.0, int(microseconds) / 1e6)
    return 0.0


def line(text: str) -> str:
    """Return the text on one line, since a newline separates the assignments of a message."""
    return " ".join(text.split())[:LONGEST]
