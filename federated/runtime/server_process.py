"""Run a server in a process of its own, so that a flood of connections neither slows the parent nor
takes its descriptors.

The parent opens the port, so that clients wait there while the process restarts. The process ends
when the pipe from the parent closes.
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO

from federated.errors import ConfigError, EspalierError
from federated.system.process_limits import lower_priority, raise_descriptor_limit

__all__ = ["Poller", "ServerProcess", "become_server"]

log = logging.getLogger(__name__)

POLL = 1.0  # seconds between two calls of a Poller
RESTART_DELAY, LONGEST_DELAY = 1.0, 60.0  # seconds; doubled while the process keeps failing
STOP_TIMEOUT = 8.0  # seconds for the process to end by itself
LONGEST_LINE = 1000  # bytes of a line of the process's log
NICE = 5  # the parent has priority
OOM_SCORE = "500"  # the kernel ends this process before the parent when memory runs out


class ServerProcess:
    """A process that serves a listening socket, until closed. A failure of it never ends the
    parent.

    name: for messages.
    port: that it serves.
    """

    def __init__(
        self,
        name: str,
        module: str,
        listening: socket.socket,
        arguments: Sequence[str],
        secrets: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Start `python -m MODULE FD ARGUMENTS...` with the socket's descriptor. Raises ConfigError
        on Windows, where a process inherits no socket in this way.

        secrets: environment variables, since other users can see arguments.
        """
        if os.name == "nt":
            listening.close()
            raise ConfigError(
                f"the server for {name} cannot run on Windows: run without it, or on another system"
            )
        self.name, self._socket = name, listening
        self.port: int = listening.getsockname()[1]
        # -P: a file in the working directory must not hide a package
        self._command = ["-P", "-m", module, str(listening.fileno()), *arguments]
        self._environment = {**os.environ, **secrets}
        self._process: subprocess.Popen[bytes] | None = None
        self._delay, self._started, self._due = RESTART_DELAY, 0.0, 0.0
        self.restart_if_dead()

    @property
    def pid(self) -> int | None:
        """The process id, or None while the process is not running."""
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
            log.error("%s exited with status %d; retrying in %g s", self.name, status, self._delay)
            self._delay = min(2 * self._delay, LONGEST_DELAY)
        if now >= self._due:
            try:
                self._start()
            except OSError as error:
                log.error("%s cannot start: %s", self.name, error)
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
        self._process = subprocess.Popen(  # noqa: S603  # arguments of the user, without a shell
            [sys.executable, *self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=self._environment,
            pass_fds=[self._socket.fileno()],
            start_new_session=True,  # Ctrl-C must reach only the parent
        )
        assert self._process.stderr is not None
        threading.Thread(
            target=relay_log,
            args=(self.name, self._process.stderr),
            name=f"{self.name}-log",
            daemon=True,
        ).start()


class Poller:
    """Calls a function every second, from its own thread, until closed. name: for messages."""

    def __init__(self, name: str, poll: Callable[[], object]) -> None:
        self._name, self._poll, self._stop = name, poll, threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{name}-poller", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        said = ""
        while not self._stop.wait(POLL):
            try:
                self._poll()
            # the next poll may succeed, and nobody would know that the thread ended
            except Exception as error:
                expected = isinstance(error, EspalierError | OSError)
                if (why := str(error)) != said:  # a full disk must not fill the log, too
                    log.error("%s: %s", self._name, why, exc_info=None if expected else error)
                said = why
            else:
                said = ""


def relay_log(name: str, lines: IO[bytes]) -> None:
    """Log the lines that the process writes."""
    with lines:
        while line := lines.readline(LONGEST_LINE):
            log.warning("%s: %s", name, line.decode(errors="replace").rstrip())


def become_server() -> threading.Event:
    """Give the parent priority over this process. Return an event that is set when the parent ends
    or closes standard input.
    """
    raise_descriptor_limit()
    lower_priority(NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    ended = threading.Event()
    threading.Thread(target=watch_parent, args=(ended,), daemon=True).start()
    return ended


def watch_parent(ended: threading.Event) -> None:
    """Wait until standard input closes, as it does when the parent ends."""
    os.read(0, 1)
    ended.set()
