"""Write files atomically, and warn about files that others can read. Needs no PyTorch.

A reader finds the new or the old content of a file, even if the writer crashed. Folders that this
project creates are private. Existing folders and files of the user keep their modes, since those of
volumes and of container secrets must not change; a warning reports unsafe ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import logging
import os
import secrets
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from federated.system.c_library import find_function
from federated.system.disk_sync import sync
from federated.system.file_modes import read_mode

__all__ = [
    "check_writable",
    "make_private",
    "move_files",
    "replace_folder",
    "sha256",
    "warn_if_public",
    "write",
    "write_pieces",
]

log = logging.getLogger(__name__)

OTHERS = 0o007  # a group may have access on purpose
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # arguments of renameat2: relative to the working folder


def make_private(folder: Path, holds: str) -> None:
    """Create a folder that only this user may open. An existing one keeps its mode, with a warning
    if it is public. Parents get the modes of the umask. Raises OSError.

    holds: its content, for the warning.
    """
    try:
        folder.mkdir(parents=True, mode=0o700)
    except FileExistsError:
        if not folder.is_dir():
            raise
        warn_if_public(folder, holds)


def warn_if_public(path: Path, holds: str) -> None:
    """Warn, with the remedy, if every user of this machine may open a folder or a file. Raises
    OSError.

    holds: its content, for the warning.
    """
    if (mode := read_mode(path)) & OTHERS:
        log.warning(
            "%s: every user of this machine may open it (mode %04o), and it holds %s; run: "
            "chmod o= %s",
            path,
            mode,
            holds,
            path,
        )


def write(path: Path, content: bytes | memoryview, *, mode: int = 0o666) -> None:
    """Write a content as `write_pieces` does."""
    write_pieces(path, (content,), mode=mode)


def check_writable(path: Path) -> None:
    """Check, such as before a long measurement, that `write` can write a file. Raises OSError."""
    if not path.parent.exists():
        raise FileNotFoundError(errno.ENOENT, f"the folder {path.parent} does not exist")
    part = _name_part(path)
    part.touch()
    part.unlink()


def write_pieces(path: Path, pieces: Iterable[bytes | memoryview], *, mode: int = 0o666) -> None:
    """Write or replace a file atomically and durably: once this returns, the content survives a
    power failure. The folder must exist.

    pieces: the content in order, one in memory at a time. Several processes and threads may write
    one path: the content of the last one stays, and contents are never mixed. mode: of the file
    from its first byte on, less the umask; 0o600 for a secret. Raises OSError, and whatever
    `pieces` raises; the old content stays then.
    """
    # in the same folder, since a rename works only within one disk
    part = _name_part(path)
    try:
        with open(part, "wb", opener=partial(os.open, mode=mode)) as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:  # including an interruption
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    sync(path.parent)


def move_files(source: Path, target: Path, last: str) -> None:
    """Move the files of a folder into another one durably, over files of the same names. The file
    named `last` follows once all others are on disk. Raises OSError.
    """
    names = sorted((path.name for path in source.iterdir()), key=lambda name: (name == last, name))
    for name in names:
        sync(source / name)
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        if name == last:
            sync(target)
        (source / name).replace(target / name)
    sync(target)
    sync(target.parent)


def replace_folder(new: Path, target: Path) -> None:
    """Move a folder of files to `target` durably. An existing folder there is exchanged in one step
    where the file system can, and removed then. Raises OSError.
    """
    for path in new.iterdir():
        sync(path)
    sync(new)
    if not target.exists():
        new.rename(target)
    elif _exchange(new, target):
        shutil.rmtree(new)
    else:
        old = new.with_name(f"{new.name}.old")
        target.rename(old)
        new.rename(target)
        shutil.rmtree(old)
    sync(target.parent)


def sha256(path: Path) -> str:
    """Return the digest of a file, hexadecimal. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _name_part(path: Path) -> Path:
    """Return a new name beside a path, for its content until it is complete."""
    return path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(3)}.part")


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step. Return False if the system cannot. Raises OSError."""
    rename = find_function("renameat2")
    if rename is None:  # not Linux
        return False
    here = ctypes.c_int(AT_FDCWD)
    if not rename(here, os.fsencode(one), here, os.fsencode(other), RENAME_EXCHANGE):
        return True
    if (code := ctypes.get_errno()) in (errno.ENOSYS, errno.EINVAL):  # some file systems
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))
