"""Start Python modules in processes forked from a server that has imported PyTorch, which saves the
seconds that coordinators and agents need to import it.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path

__all__ = ["ForkedProcess"]

# nearly all that coordinators and agents import
PRELOADED = ("coordinator.run.launch", "coordinator.cli.start", "edge_agent.cli.join")


class ForkedProcess:
    """Process that runs `python -m MODULE ARGUMENTS...`, with the interface of `subprocess.Popen`.

    out, errors: files that its output is appended to.
    folder: its working directory; None: that of this process.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        out: Path,
        errors: Path,
        environment: Mapping[str, str],
        folder: Path | None = None,
    ) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload(list(PRELOADED))
        self.out = out
        for file in (out, errors):
            file.touch()
        self._process = context.Process(
            target=run_module,
            args=(module, list(arguments), out, errors, dict(environment), folder),
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code; negative after a signal, and None while the process runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, and return its exit code. Raises
        subprocess.TimeoutExpired.
        """
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Wait for the end of the process, and return its output."""
        self.wait(timeout)
        return self.out.read_text(), None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_module(
    module: str,
    arguments: list[str],
    out: Path,
    errors: Path,
    environment: Mapping[str, str],
    folder: Path | None,
) -> None:
    """Run a module as `python -m` does, with its output appended to files."""
    append = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    for stream, path, flags in (
        (0, Path(os.devnull), os.O_RDONLY),
        (1, out, append),
        (2, errors, append),
    ):
        file = os.open(path, flags, 0o666)
        os.dup2(file, stream)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    if folder is not None:
        os.chdir(folder)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
