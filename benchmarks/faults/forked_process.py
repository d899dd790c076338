"""Start Python modules in processes forked from a server that has imported PyTorch, which saves the
seconds that a coordinator needs to import it.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path

__all__ = ["ForkedProcess"]

# imports nearly all that a coordinator uses
PRELOADED = ("coordinator.run.launch", "coordinator.cli.start")


class ForkedProcess:
    """Process that runs a module, with the part of the interface of `subprocess.Popen` that trials
    use.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload(list(PRELOADED))
        self._process = context.Process(
            target=run_module, args=(module, list(arguments), log, dict(environment))
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Return the exit code; negative after a signal, and None while the process runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, and return its exit code. Raises
        subprocess.TimeoutExpired.
        """
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def run_module(
    module: str, arguments: list[str], log: Path, environment: Mapping[str, str]
) -> None:
    """Run a module as `python -m` does, with its output appended to a log."""
    for stream, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY | os.O_APPEND)):
        file = os.open(os.devnull if stream == 0 else log, mode)
        os.dup2(file, stream)
        os.close(file)
    os.dup2(1, 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
