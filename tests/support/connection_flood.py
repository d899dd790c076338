"""Strangers that flood a port of this machine."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["Flood", "count_descriptors", "open_silent", "resident", "start_flood"]

STRANGER = "127.0.0.2"  # where a flood comes from


@dataclass
class Flood:
    """A flood in progress.

    connections: opened so far.
    """

    connections: int = 0


@contextlib.contextmanager
def start_flood(
    port: int,
    kind: Literal["bare", "tls", "hold"] = "bare",
    source: str = STRANGER,
    threads: int = 4,
) -> Iterator[Flood]:
    """Run threads that connect and disconnect: immediately, after a TLS handshake, or
    after 0.2 s.
    """
    flood, stop = Flood(), threading.Event()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def connect() -> None:
        while not stop.is_set():
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port), 3, (source, 0)) as link,
            ):
                flood.connections += 1
                if kind == "tls":
                    context.wrap_socket(link).close()
                elif kind == "hold":
                    stop.wait(0.2)

    running = [threading.Thread(target=connect) for _ in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield flood
    finally:
        stop.set()
        for thread in running:
            thread.join()


@contextlib.contextmanager
def open_silent(port: int, count: int, source: str = STRANGER) -> Iterator[list[socket.socket]]:
    """Open connections that never send anything."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 5, (source, 0)))
            for _ in range(count)
        ]


def resident(pid: int) -> float:
    """Return the memory of a process in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def count_descriptors(pid: int) -> int:
    """Return how many descriptors a process has open. Waits for a process that starts."""
    until = time.monotonic() + 5
    while True:
        try:
            return len(list(Path(f"/proc/{pid}/fd").iterdir()))
        except OSError:
            if time.monotonic() > until:
                raise
