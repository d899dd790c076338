"""A server that answers a byte at a time, each one before a client's timeout."""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import threading
from collections.abc import Iterator

__all__ = ["INTERVAL", "drip"]

INTERVAL = 0.2  # seconds between two bytes


@contextlib.contextmanager
def drip(answer: bytes, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Answer each connection with these bytes, and then with `x` without end; yield the port."""
    stop = threading.Event()

    def serve(client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            link = client if tls is None else tls.wrap_socket(client, server_side=True)
            with link:
                for byte in itertools.chain(answer, itertools.repeat(ord("x"))):
                    if stop.wait(INTERVAL):
                        return
                    link.sendall(bytes([byte]))

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threads.append(threading.Thread(target=serve, args=(client,)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads = [threading.Thread(target=accept)]
        threads[0].start()
        try:
            yield listener.getsockname()[1]
        finally:
            stop.set()
            listener.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
