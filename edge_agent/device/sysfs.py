"""How the agent reads its machine: small files of the kernel, and commands that some boards have.
Both may be missing.

Every reader takes the root of the file tree and what runs a command, so that a board that is not
here is read from a recorded tree.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["ROOT", "Run", "entries", "number", "run_command", "text"]

ROOT = Path("/")
PATIENCE = 5.0  # seconds that a command may take

Run = Callable[..., str]
"""What runs a command, given as words, and returns what it printed: empty where there is no such
command, or it failed.
"""


def run_command(*words: str) -> str:
    """What a command prints; empty where it is missing, fails, or does not end."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(  # noqa: S603  # our own words
            words, capture_output=True, text=True, errors="replace", timeout=PATIENCE, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else ""
    return ""


def text(path: Path) -> str:
    """A small file's text without the NULs that end strings of a device tree; empty where it cannot
    be read (a sensor may refuse).
    """
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").replace("\0", "\n").strip()
    return ""


def number(path: Path) -> float | None:
    """The number that a file holds; None where there is none."""
    with contextlib.suppress(ValueError):
        return float(text(path))
    return None


def entries(folder: Path, pattern: str) -> Iterator[Path]:
    """What matches in a folder, in the order of names; nothing where the folder cannot be read."""
    with contextlib.suppress(OSError):
        yield from sorted(folder.glob(pattern))
