"""Files that are there whole or not at all: whoever reads one finds what was written last or before, however the writer ended. No torch here."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

__all__ = ["sync", "write"]


def write(path: Path, content: bytes | memoryview) -> None:
    """Replaces a file, or makes it in a folder that is there; once this returns, the disk has it, also where the power then fails.

    Several processes and threads may write one path: the last one's content stays, none is mixed. Raises OSError, and leaves what was there.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(3)}.part")  # beside it: a file can only be put in place within one disk
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:  # also an interruption leaves nothing behind
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Returns once the disk has a file's content, or a folder's names. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
