"""Send states such as `READY=1` to a service manager (systemd's sd_notify protocol)."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

__all__ = ["NotifySocket"]


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
