"""The enrolment server in a process of its own, so that a flood of connections neither slows the
run nor takes its descriptors: `python -m coordinator.access.enrolment_process FD FOLDER BROKER`.

The coordinator opens the port, so that clients wait there while the process restarts. The process
signs with the authority's folder, and ends when the pipe from the coordinator closes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from federated.errors import EspalierError, LinkError, MissingExtra
from federated.runtime.connection_limits import listen, raise_descriptor_limit

__all__ = ["EnrolmentProcess", "main"]

log = logging.getLogger(__name__)

RELOAD_INTERVAL = 1.0  # seconds between checks for a new certificate of the server
RESTART_DELAY, LONGEST_DELAY = 1.0, 60.0  # seconds; doubled while the process keeps failing
STOP_TIMEOUT = 8.0  # seconds for the process to end by itself
LONGEST_LINE = 1000  # bytes of a line of the process's log
NICE = 5  # the run has priority
OOM_SCORE = "500"  # the kernel ends this process before the coordinator when memory runs out


class EnrolmentProcess:
    """The enrolment server of an authority, until closed. A failure of it never ends the run."""

    def __init__(self, folder: Path, address: tuple[str, int], broker: str) -> None:
        """Open the port and start the process.

        folder: of the authority. address: host and port; port 0 picks a free one. broker: the
        broker's address for devices (see `Answer`). Raises LinkError if the port cannot be bound,
        MissingExtra.
        """
        if find_spec("uvicorn") is None:
            raise MissingExtra("--tls", "serve", "uvicorn")
        try:
            self._socket = listen(*address)
        except OSError as error:
            raise LinkError(
                f"enrolment cannot listen on port {address[1]} of {address[0]}: {error.strerror}; "
                "choose another with --set broker.enrol=PORT"
            ) from error
        self.port: int = self._socket.getsockname()[1]
        self._arguments = [str(self._socket.fileno()), str(folder), broker]
        self._process: subprocess.Popen[bytes] | None = None
        self._delay, self._started, self._due = RESTART_DELAY, 0.0, 0.0
        self.restart_if_dead()

    @property
    def pid(self) -> int | None:
        """The process id, or None if the process could not be started."""
        return None if self._process is None else self._process.pid

    def restart_if_dead(self) -> None:
        """Start the process if it does not run, at growing intervals if it keeps failing."""
        now = time.monotonic()
        if self._process is not None:
            if (status := self._process.poll()) is None:
                return
            self._discard(self._process)
            if now - self._started > LONGEST_DELAY:  # it worked for a while
                self._delay = RESTART_DELAY
            self._due = now + self._delay
            log.error("enrolment exited with status %d; retrying in %g s", status, self._delay)
            self._delay = min(2 * self._delay, LONGEST_DELAY)
        if now >= self._due:
            try:
                self._start()
            except OSError as error:
                log.error("enrolment cannot start: %s", error)
            self._started = now

    def close(self) -> None:
        """End the process and close the port."""
        self._socket.close()
        if self._process is not None:
            self._discard(self._process)

    def _discard(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT)
        process.kill()
        process.wait()
        self._process = None

    def _start(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603  # nothing in it comes from elsewhere
            [sys.executable, "-m", "coordinator.access.enrolment_process", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[self._socket.fileno()],
            start_new_session=True,  # Ctrl-C must reach only the coordinator
        )
        assert self._process.stderr is not None
        threading.Thread(
            target=relay_log, args=(self._process.stderr,), name="enrolment-log", daemon=True
        ).start()


def relay_log(lines: IO[bytes]) -> None:
    """Log the lines that the process writes."""
    with lines:
        while line := lines.readline(LONGEST_LINE):
            log.warning("enrolment: %s", line.decode(errors="replace").rstrip())


def watch_parent(ended: threading.Event) -> None:
    """Wait until standard input closes, as it does when the parent ends."""
    os.read(0, 1)
    ended.set()


def main(descriptor: int, folder: Path, broker: str) -> None:
    """Serve enrolment until standard input closes."""
    from coordinator.access.authority import Authority
    from coordinator.access.enrolment_server import EnrolmentServer

    raise_descriptor_limit()
    os.nice(NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    ended = threading.Event()
    threading.Thread(target=watch_parent, args=(ended,), daemon=True).start()
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
