"""Run a command on a terminal of its own."""

from __future__ import annotations

import os
import pty
import select
from collections.abc import Sequence
from pathlib import Path

from benchmarks.faults.parts.fork_server import ForkedProcess
from tests.support.waiting import eventually

__all__ = ["run_on_terminal"]

ROOT = Path(__file__).parents[2]


def run_on_terminal(words: Sequence[str], folder: Path, until: str = "") -> str:
    """Return what a command (module and arguments) writes on its terminal in a folder.

    It must succeed, unless it is ended as soon as it has written `until`.
    """
    near, far = pty.openpty()
    os.set_blocking(near, False)
    path = os.pathsep.join([str(ROOT), str(folder)])
    added = {"TERM": "xterm-256color", "COLUMNS": "100", "PYTHONPATH": path}
    shown = bytearray()
    process = ForkedProcess(
        words[0],
        words[1:],
        out=Path(os.ttyname(far)),
        errors=folder / "terminal.err",
        environment={**os.environ, **added},
        folder=folder,
    )

    def read() -> bool:
        """Read what is shown, and return True at the end."""
        ended = process.poll() is not None
        while select.select([near], [], [], 0.0)[0]:
            shown.extend(os.read(near, 4096))
        return ended or bool(until and until in shown.decode(errors="replace"))

    try:
        eventually(read)
        if process.poll() is not None:
            assert process.returncode == 0, (folder / "terminal.err").read_text()
    finally:
        process.kill()
        process.wait()
        os.close(near)
        os.close(far)
    return shown.decode(errors="replace")
