"""Read small kernel files, and the output of some boards' commands. Either may be missing.

Every reader takes the root of the file tree and a command runner, so that recorded trees of other
boards can be read.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["ROOT", "Run", "list_entries", "read_number", "read_text", "run_command"]

ROOT = Path("/")
PATIENCE = 5.0  # timeout of a command in seconds

Run = Callable[..., str]
"""Run a command, given as words, and return its output; "" if it is missing or fails."""


def run_command(*words: str) -> str:
    """Return a command's output; "" if it is missing, fails or times out."""
    with (
        contextlib.suppress(OSError, subprocess.SubprocessError),
        subprocess.Popen(  # noqa: S603  # fixed words
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process,
    ):
        try:
            output, _ = process.communicate(timeout=PATIENCE)
        except BaseException:
            kill_group(process)
            raise
        return output.strip() if process.returncode == 0 else ""
    return ""


def kill_group(process: subprocess.Popen[str]) -> None:
    """Kill a command and its children: those of a hanging script would stay, more each time."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def read_text(path: Path) -> str:
    """Return a small file's text without the NULs of device tree strings; "" if unreadable (a
    sensor may refuse).
    """
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").replace("\0", "\n").strip()
    return ""


def read_number(path: Path) -> float | None:
    """Return the number in a file, or None."""
    with contextlib.suppress(ValueError):
        return float(read_text(path))
    return None


def list_entries(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield a folder's matching entries sorted by name; nothing if the folder is unreadable."""
    with contextlib.suppress(OSError):
        yield from sorted(folder.glob(pattern))
