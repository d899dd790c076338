"""Disks of the processes of a schedule: real files, whose power can fail, and which can be full.

Files lie in a folder in memory. Writing, syncing, renaming and removing go through here: they count
as actions of the process whose turn it is, fail where its disk is full, and say what would survive
a power cut: of a file, its content at the last sync; of a name, what the folder's last sync saw.
SQLite syncs by itself and is taken to keep its word.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.schedules.world import World

__all__ = ["REPLACED", "Disks"]

REPLACED = (
    "io.open",
    "mmap.mmap",
    "os.fsync",
    "os.posix_fallocate",
    "os.rename",
    "os.replace",
    "os.unlink",
    "shutil.disk_usage",
)
DATABASE = ".sqlite"
EPOCH = 2 * 10**18  # nanoseconds of the wall clock at which a schedule begins
OPEN, FSYNC, ALLOCATE, RENAME, REPLACE, UNLINK = (
    io.open,
    os.fsync,
    os.posix_fallocate,
    os.rename,
    os.replace,
    os.unlink,
)
USAGE = shutil.disk_usage


class Disks:
    """The disks of all processes, below one folder. full: names of processes that find no room."""

    def __init__(self, world: World, root: Path) -> None:
        self.world, self.root, self.full = world, str(root), set[str]()
        self._stamps = 0
        self._synced: dict[int, bytes] = {}  # contents by inode, as they were when they were synced
        # path -> inode and content at the last sync of the folder
        self._names: dict[str, tuple[int, bytes]] = {}

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """As long as this lasts, files below the root lie on these disks."""
        made = (
            self._open,
            mapped(self),
            self._fsync,
            self._allocate,
            self._rename,
            self._replace,
            self._unlink,
            self._usage,
        )
        with ExitStack() as stack:
            for name, replacement in zip(REPLACED, made, strict=True):
                stack.enter_context(mock.patch(name, replacement))
            yield

    # ---- faults ----------------------------------------------------------------------------------

    def cut_power(self, folder: Path, rng: random.Random) -> None:
        """What was not synced may be gone, torn or there, each by chance."""
        below = f"{folder}{os.sep}"
        there = {str(path) for path in folder.rglob("*") if path.is_file()}
        for name in sorted({*there, *(name for name in self._names if name.startswith(below))}):
            if DATABASE in name:
                continue
            inode, before = self._names.get(name, (-1, None))
            if name not in there:
                if (
                    before is not None
                    and rng.random() < 0.5
                    and os.path.isdir(os.path.dirname(name))
                ):
                    self._put(name, before)  # that it was removed never reached the disk
                continue
            if os.stat(name).st_ino != inode and rng.random() < 0.5:
                # that it was made, or renamed to this, never reached the disk
                self._put(name, before)
                continue
            now, kept = content(name), self._synced.get(os.stat(name).st_ino, b"")
            if now != kept:
                self._put(name, torn(now, kept, rng))

    def flip_bit(self, path: Path, rng: random.Random) -> None:
        """Damages a file."""
        data = bytearray(content(str(path)))
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            self._put(str(path), bytes(data))

    def _put(self, name: str, survived: bytes | None) -> None:
        """Gives a file the content that survived. None: it did not."""
        if survived is None:
            UNLINK(name)
            return
        fresh = f"{name}.survived"  # a new file: somebody may have the old one mapped
        with OPEN(fresh, "wb") as file:
            file.write(survived)
        REPLACE(fresh, name)
        inode = os.stat(name).st_ino
        self._synced[inode], self._names[name] = survived, (inode, survived)

    # ---- what is replaced ------------------------------------------------------------------------

    def _open(
        self, file: Any, mode: str = "r", buffering: int = -1, *more: Any, **named: Any
    ) -> Any:
        if not set(mode) & set("wax+") or "b" not in mode or not self._mine(file):
            return OPEN(file, mode, buffering, *more, **named)
        self.act()
        raw = Raw(file, mode.replace("b", ""))
        raw.check_room = self.check_room
        if buffering == 0:
            return raw
        return io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)

    def _fsync(self, handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        if self._mine(path):
            self.sync(path)
        else:
            FSYNC(handle)

    def _allocate(self, handle: int, start: int, size: int) -> None:
        self.check_room()
        ALLOCATE(handle, start, size)

    def _rename(self, old: Any, new: Any, **named: Any) -> None:
        if self._mine(old):
            self.act()
        RENAME(old, new, **named)

    def _replace(self, old: Any, new: Any, **named: Any) -> None:
        if self._mine(old):
            self.act()
        REPLACE(old, new, **named)

    def _unlink(self, path: Any, **named: Any) -> None:
        if self._mine(path) and self.world.running is not None and self.world.running.dead:
            # nobody is left who could remove it
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        UNLINK(path, **named)

    def _usage(self, path: Any) -> Any:
        found = USAGE(path)
        return found._replace(free=0) if self._is_full() else found

    # ---- what the replacements share -------------------------------------------------------------

    def sync(self, path: str) -> None:
        """A process syncs a file, or the names in a folder."""
        self.act()
        self.check_room()
        if not os.path.isdir(path):
            self._stamps += 1
            # what is older must not depend on this machine
            os.utime(path, ns=(stamp := EPOCH + int(self.world.now * 1e9) + self._stamps, stamp))
            inode = os.stat(path).st_ino
            self._synced[inode] = content(path)
            if self._names.get(path, (-1, b""))[0] == inode:
                self._names[path] = inode, self._synced[inode]
            return
        there = {
            entry.path: entry.inode()
            for entry in os.scandir(path)
            if entry.is_file(follow_symlinks=False)
        }
        for gone in [
            name for name in self._names if os.path.dirname(name) == path and name not in there
        ]:
            del self._names[gone]
        self._names |= {
            name: (inode, self._synced.get(inode, b"")) for name, inode in there.items()
        }

    def act(self) -> None:
        """Counts an action of the process whose turn it is. Raises Killed."""
        if self.world.running is not None:
            self.world.running.pulse()

    def check_room(self) -> None:
        """Raises OSError where the disk of the process whose turn it is has no room."""
        if self._is_full():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _is_full(self) -> bool:
        return self.world.running is not None and self.world.running.name in self.full

    def _mine(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self.root)


class Raw(io.FileIO):
    """A file that is written without a buffer, or the one below a buffer."""

    check_room: Callable[[], None]

    def write(self, data: Any, /) -> int:
        self.check_room()
        return super().write(data)


def mapped(disks: Disks) -> type[mmap.mmap]:
    """The class of mapped files whose `flush` is a sync of these disks."""

    class Mapped(mmap.mmap):
        path: str

        def __new__(cls, handle: int, *more: Any, **named: Any) -> Mapped:
            made = super().__new__(cls, handle, *more, **named)
            made.path = os.readlink(f"/proc/self/fd/{handle}")
            return made

        def flush(self, *more: Any) -> None:
            disks.sync(self.path)

    return Mapped


def content(path: str) -> bytes:
    with OPEN(path, "rb") as file:
        return bytes(file.read())


def torn(now: bytes, kept: bytes, rng: random.Random) -> bytes:
    """What a power cut leaves of a file that has changed since its last sync."""
    if not now.startswith(kept):
        return now if rng.random() < 0.5 else kept
    end = rng.randint(len(kept), len(now))
    return now[:end] + bytes(rng.randint(0, len(now) - end) if rng.random() < 0.25 else 0)
