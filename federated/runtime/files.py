"""Files that are there whole or not at all: whoever reads one finds what was written last or
before, however the writer ended; and who may read.

Keys and folders of keys that this project makes are refused where others may open them. Other
folders that were there before, and files that a person gives us, keep their modes: those of volumes
and of secrets of containers are not ours to change. What is wrong with them is said. No torch here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

__all__ = ["look_over", "make", "sync", "write", "write_pieces"]

log = logging.getLogger(__name__)

OTHERS = 0o007  # a group may be let in on purpose


def make(folder: Path, holds: str) -> None:
    """Makes a folder that this user alone may open; one that is there keeps its mode, and
    `look_over` has a word about it. Raises OSError.

    Those above it are made as the umask says.
    """
    try:
        folder.mkdir(parents=True, mode=0o700)
    except FileExistsError:
        if not folder.is_dir():
            raise
        look_over(folder, holds)


def look_over(path: Path, holds: str) -> None:
    """Warns, with the remedy, where every user of this machine may open a folder or a file. holds:
    what lies in it. Raises OSError.
    """
    if (mode := path.stat().st_mode & 0o777) & OTHERS:
        log.warning(
            "%s: every user of this machine may open it (mode %04o), and it holds %s: chmod o= %s",
            path,
            mode,
            holds,
            path,
        )


def write(path: Path, content: bytes | memoryview) -> None:
    """`write_pieces` of a content that is in memory."""
    write_pieces(path, (content,))


def write_pieces(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Replaces a file, or makes it in a folder that exists. Once this returns, the content is on
    the disk, also if the power fails then.

    pieces: the content in order, one in memory at a time. Several processes and threads may write
    one path: the content of the last one stays, and no two are mixed. Raises OSError, and whatever
    `pieces` raises; the old content stays then.
    """
    # beside it: a file can only be put in place within one disk
    part = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(3)}.part")
    try:
        with part.open("wb") as file:
            file.writelines(pieces)
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
