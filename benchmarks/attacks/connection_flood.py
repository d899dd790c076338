"""Flood a port of this machine with connections, as a stranger without credentials. It runs as
`python -m benchmarks.attacks.connection_flood KIND PORT`, in its own process so that it takes no
time from the agents.

KIND: bare (connect and disconnect), tls (begin TLS, disconnect) or silent (stay connected for a
while and send nothing).
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
import threading
import time

__all__ = ["STRANGER", "THREADS", "connect", "main"]

STRANGER = ("127.0.0.2", 0)  # where a flood comes from
THREADS = 4
SILENT = 50  # connections of each thread that stay silent
SILENCE = 2.0  # seconds


def connect(kind: str, port: int) -> None:
    """Do once what a thread repeats. Raises OSError."""
    with contextlib.ExitStack() as stack:
        for _ in range(SILENT if kind == "silent" else 1):
            link = socket.create_connection(("127.0.0.1", port), 3, STRANGER)
            stack.callback(link.close)
        if kind == "tls":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.wrap_socket(link).close()
        elif kind == "silent":
            time.sleep(SILENCE)


def repeat(kind: str, port: int) -> None:
    """Connect until the process is killed."""
    while True:
        try:
            connect(kind, port)
        except OSError:  # the port is not open yet, or closed the connection
            time.sleep(0.05)


def main(arguments: list[str]) -> None:
    kind, port = arguments
    for _ in range(THREADS):
        threading.Thread(target=repeat, args=(kind, int(port)), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1:])
