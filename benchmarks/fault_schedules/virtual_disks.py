"""Give the processes of a schedule disks that fill up or lose power, made of real files.

Files are in a folder in memory. Writing, syncing, renaming and removing are replaced here. They
count as actions of the running process, and fail if its disk is full. The module tracks what would
survive a power cut: the content of a file at its last sync, and its name at the last sync of the
folder. SQLite syncs by itself and is trusted.
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
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.fault_schedules.torn_writes import choose_name, tear
from benchmarks.fault_schedules.virtual_clock import World

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
EPOCH = 2 * 10**18  # nanoseconds of the wall clock at the start of a schedule
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
    """Disks of all processes, below one folder. full: names of the processes whose disk is full."""

    def __init__(self, world: World, root: Path) -> None:
        self.world, self.root, self.full = world, str(root), set[str]()
        self._stamps = 0
        self._synced: dict[int, bytes] = {}  # content at the last sync, by inode
        # inode and content by path, at the last sync of the folder
        self._names: dict[str, tuple[int, bytes]] = {}

    @contextmanager
    def replace_files(self) -> Iterator[None]:
        """Put files below the root on these disks inside this context."""
        made = (
            self._open,
            make_mapping(self),
            self._fsync,
            self._allocate,
            partial(self._move, RENAME),
            partial(self._move, REPLACE),
            self._unlink,
            self._usage,
        )
        with ExitStack() as stack:
            for name, replacement in zip(REPLACED, made, strict=True):
                stack.enter_context(mock.patch(name, replacement))
            yield

    # ---- faults ----------------------------------------------------------------------------------

    def cut_power(self, folder: Path, rng: random.Random) -> None:
        """Lose, tear or keep at random what was not synced."""
        below = f"{folder}{os.sep}"
        present = {str(path) for path in folder.rglob("*") if path.is_file()}
        for name in sorted({*present, *(name for name in self._names if name.startswith(below))}):
            if DATABASE in name:
                continue
            inode, before = self._names.get(name, (None, None))
            current = os.stat(name).st_ino if name in present else None
            if choose_name(current, inode, rng) != current:
                if current is not None or os.path.isdir(os.path.dirname(name)):
                    self._put(name, before)  # its creation, renaming or removal was not synced
            elif current is not None:
                now, kept = read_content(name), self._synced.get(current, b"")
                if now != kept:
                    self._put(name, tear(now, kept, rng))

    def flip_bit(self, path: Path, rng: random.Random) -> None:
        """Flip one bit of a file."""
        data = bytearray(read_content(str(path)))
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            self._put(str(path), bytes(data))

    def _put(self, name: str, survived: bytes | None) -> None:
        """Give a file the content that survived; remove it for None."""
        if survived is None:
            UNLINK(name)
            return
        fresh = f"{name}.survived"  # a new file, since the old one may be mapped
        with OPEN(fresh, "wb") as file:
            file.write(survived)
        REPLACE(fresh, name)
        inode = os.stat(name).st_ino
        self._synced[inode], self._names[name] = survived, (inode, survived)

    # ---- replacements ------------------------------------------------------------------------

    def _open(
        self, file: Any, mode: str = "r", buffering: int = -1, *more: Any, **named: Any
    ) -> Any:
        if not set(mode) & set("wax+") or "b" not in mode or not self._is_below(file):
            return OPEN(file, mode, buffering, *more, **named)
        self.act()
        raw = Raw(file, mode.replace("b", ""))
        raw.check_room = self.check_room
        if buffering == 0:
            return raw
        return io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)

    def _fsync(self, handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        if self._is_below(path):
            self.sync(path)
        else:
            FSYNC(handle)

    def _allocate(self, handle: int, start: int, size: int) -> None:
        self.check_room()
        ALLOCATE(handle, start, size)

    def _move(self, move: Callable[..., None], old: Any, new: Any, **named: Any) -> None:
        if self._is_below(old):
            self.act()
        move(old, new, **named)

    def _unlink(self, path: Any, **named: Any) -> None:
        if self._is_below(path) and self.world.running is not None and self.world.running.dead:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        UNLINK(path, **named)

    def _usage(self, path: Any) -> Any:
        found = USAGE(path)
        return found._replace(free=0) if self._is_full() else found

    # ---- shared by the replacements -------------------------------------------------------------

    def sync(self, path: str) -> None:
        """Sync a file, or the names in a folder, as the running process."""
        self.act()
        self.check_room()
        if not os.path.isdir(path):
            self._stamps += 1
            # the order of files must not depend on this machine
            os.utime(path, ns=(stamp := EPOCH + int(self.world.now * 1e9) + self._stamps, stamp))
            inode = os.stat(path).st_ino
            self._synced[inode] = read_content(path)
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
        """Count an action of the running process. Killed: it dies."""
        if self.world.running is not None:
            self.world.running.count_action()

    def check_room(self) -> None:
        """Raise OSError if the disk of the running process is full."""
        if self._is_full():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _is_full(self) -> bool:
        return self.world.running is not None and self.world.running.name in self.full

    def _is_below(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self.root)


class Raw(io.FileIO):
    """File without a buffer, or below one."""

    check_room: Callable[[], None]

    def write(self, data: Any, /) -> int:
        self.check_room()
        return super().write(data)


def make_mapping(disks: Disks) -> type[mmap.mmap]:
    """Return the class of mapped files whose `flush` is a sync of these disks."""

    class Mapped(mmap.mmap):
        path: str

        def __new__(cls, handle: int, *more: Any, **named: Any) -> Mapped:
            made = super().__new__(cls, handle, *more, **named)
            made.path = os.readlink(f"/proc/self/fd/{handle}")
            return made

        def flush(self, *more: Any) -> None:
            disks.sync(self.path)

    return Mapped


def read_content(path: str) -> bytes:
    """Return the bytes of a file."""
    with OPEN(path, "rb") as file:
        return bytes(file.read())
