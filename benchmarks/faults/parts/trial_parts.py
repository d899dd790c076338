"""Real parts that a fault trial disturbs: processes to kill and restart, a small disk to fill, and
a slow link.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.faults.parts.fork_server import ForkedProcess
from coordinator.simulate.demo_fleet import process_environment
from federated.errors import FleetError

__all__ = ["Process", "Space", "make_slow_link", "mount_small_disk", "run_system"]


class Process:
    """Process that can be killed and restarted, with its output in one log.

    under: command that runs it, such as that of a network namespace
    forked: True to fork `python -m` commands from a process that has imported PyTorch
    variables: of its environment, in addition to those of this process
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        under: Sequence[str] = (),
        *,
        forked: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.folder, self.under = name, folder, tuple(under)
        self.variables = dict(variables or {})
        self.forked = forked and not under
        self.log = folder / f"{name}.log"
        self.starts = 0
        self.popen: subprocess.Popen[bytes] | ForkedProcess | None = None

    def start(self, command: Sequence[str]) -> None:
        """Start a command, again if it has ended."""
        self.starts += 1
        environment = {**process_environment(), **self.variables}
        with self.log.open("ab") as out:
            out.write(f"---- start {self.starts}\n".encode())
            out.flush()
            if self.forked and list(command[:2]) == [sys.executable, "-m"]:
                module, *arguments = command[2:]
                self.popen = ForkedProcess(
                    module,
                    arguments,
                    out=self.log,
                    errors=self.log,
                    environment=environment,
                )
                return
            self.popen = subprocess.Popen(  # noqa: S603
                [*self.under, *command],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                env=environment,
            )

    @property
    def exit_code(self) -> int | None:
        """Exit code, or None while it runs; negative after a signal."""
        return None if self.popen is None else self.popen.poll()

    def kill(self) -> None:
        """Kill it (kill -9)."""
        self.send_signal(signal.SIGKILL)
        if self.popen is not None:
            self.popen.wait()

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.popen is not None:
            with contextlib.suppress(ProcessLookupError):
                self.popen.send_signal(number)

    def count(self, words: str) -> int:
        """Return how often these words occur in the process's log."""
        return self.log.read_text(errors="replace").count(words) if self.log.exists() else 0

    def tail(self, lines: int = 15) -> str:
        """Return the last lines of the process's log."""
        return (
            "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
            if self.log.exists()
            else ""
        )


class Space:
    """Disk that can be filled and emptied."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._ballast = folder, folder / "ballast"

    def fill(self, left: int) -> None:
        """Fill all but about `left` bytes. Other processes write at the same time, so less may be
        free a moment later.
        """
        with self._ballast.open("wb") as file:
            while True:
                free = os.statvfs(self.folder)
                try:
                    os.posix_fallocate(
                        file.fileno(), 0, max(1, free.f_bavail * free.f_bsize - left)
                    )
                    return
                except OSError:
                    left += 1 << 16

    def empty(self) -> None:
        """Free the disk."""
        self._ballast.unlink(missing_ok=True)


@contextmanager
def mount_small_disk(folder: Path, size: int) -> Iterator[Space]:
    """Mount a file system of `size` bytes in memory at a folder. FleetError: this user may not."""
    folder.mkdir(parents=True, exist_ok=True)
    run_system("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    try:
        yield Space(folder)
    finally:
        with contextlib.suppress(FleetError):
            run_system("umount", "-l", str(folder))


@contextmanager
def make_slow_link(number: int, rate: int) -> Iterator[tuple[str, list[str]]]:
    """Make a network namespace behind a link of `rate` bytes per second. Yield its address, and the
    command that starts a process in it. FleetError: this user may not.
    """
    name, here, there = f"espalier{number}", f"esp{number}a", f"esp{number}b"
    mine, its = f"10.213.{number}.1", f"10.213.{number}.2"
    try:
        run_system("ip", "netns", "add", name)
        run_system("ip", "link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        run_system("ip", "addr", "add", f"{mine}/30", "dev", here)
        run_system("ip", "link", "set", here, "up")
        for command in (
            ("addr", "add", f"{its}/30", "dev", there),
            ("link", "set", there, "up"),
            ("link", "set", "lo", "up"),
        ):
            run_system("ip", "-n", name, *command)
        shape = ("root", "tbf", "rate", f"{rate * 8}bit", "burst", "32kb", "latency", "400ms")
        run_system("tc", "qdisc", "add", "dev", here, *shape)
        run_system("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", there, *shape)
        yield its, ["ip", "netns", "exec", name]
    finally:
        for command in (("ip", "netns", "del", name), ("ip", "link", "del", here)):
            with contextlib.suppress(FleetError):
                run_system(*command)


def run_system(*command: str) -> None:
    """Run a command of the system. FleetError: it failed, with its output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FleetError(f"{' '.join(command)}: {error}") from error
    if done.returncode:
        raise FleetError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
