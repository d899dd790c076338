"""Run the enrolment server in a process of its own, beside the coordinator. It signs certificates
with the key in the authority's folder.

python -m coordinator.access.enrolment_server_process FD FOLDER BROKER
"""

from __future__ import annotations

import logging
import socket
import sys
from importlib.util import find_spec
from pathlib import Path

from federated.errors import EspalierError, LinkError, MissingExtra
from federated.runtime.connection_limits import listen
from federated.runtime.server_process import ServerProcess, become_server

__all__ = ["EnrolmentProcess", "main"]

log = logging.getLogger(__name__)

RELOAD_INTERVAL = 1.0  # seconds between checks for a new certificate of the server


class EnrolmentProcess(ServerProcess):
    """The enrolment server of an authority, until closed."""

    def __init__(self, folder: Path, address: tuple[str, int], broker: str) -> None:
        """Open the port and start the process.

        folder: of the authority. address: host and port; port 0 picks a free one. broker: the
        broker's address for devices (see `Answer`). Raises LinkError if the port cannot be bound,
        MissingExtra.
        """
        if find_spec("uvicorn") is None:
            raise MissingExtra("broker.tls", "serve", "uvicorn")
        try:
            listening = listen(*address)
        except OSError as error:
            raise LinkError(
                f"enrolment cannot listen on port {address[1]} of {address[0]}: {error.strerror}; "
                "choose another port with broker.enrol"
            ) from error
        super().__init__(
            "enrolment",
            "coordinator.access.enrolment_server_process",
            listening,
            [str(folder), broker],
        )


def main(descriptor: int, folder: Path, broker: str) -> None:
    """Serve enrolment until standard input closes."""
    from coordinator.access.certificate_authority import Authority
    from coordinator.access.enrolment_server import EnrolmentServer

    ended = become_server()
    authority = Authority(folder, renew=False)
    loaded = authority.server.stat().st_mtime_ns  # before the server loads it: it may change
    server = EnrolmentServer(authority, socket.socket(fileno=descriptor), broker)
    while not ended.wait(RELOAD_INTERVAL):
        if not server.alive:
            sys.exit("the server stopped")
        try:
            if (written := authority.server.stat().st_mtime_ns) != loaded:
                server.reload()
                loaded = written
        except (EspalierError, OSError) as error:  # the next check may succeed
            log.warning("cannot load the certificate: %s", error)
    server.close()
    authority.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
