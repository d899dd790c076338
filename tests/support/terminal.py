"""Run a command on a terminal of its own."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Sequence
from pathlib import Path

__all__ = ["run_on_terminal"]


def run_on_terminal(command: Sequence[str], folder: Path | None = None) -> str:
    """Return all that a command writes on its terminal; it must succeed. folder: to run it in."""
    near, far = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    with subprocess.Popen(command, stdout=far, env=environment, cwd=folder) as process:
        os.close(far)
        shown = b""
        with os.fdopen(near, "rb", buffering=0) as terminal:
            try:
                while block := terminal.read(4096):
                    shown += block
            except OSError:  # the terminal was closed at its other end
                pass
    assert process.returncode == 0
    return shown.decode()
