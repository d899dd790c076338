"""`python -m benchmarks.faults.parts.lossy_disk FOLDER SEED [INSTANT...]`: mount a disk in memory
at a folder with FUSE. When it is unmounted, it loses what was not synced, and is mounted again.

INSTANT, one per mount: the number of the disk change (a write, a sync, a new name) just before
which power is cut. All processes that changed the disk are then killed, except the one that started
it, and nothing reaches the disk until it is unmounted.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import signal
import stat
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.fault_schedules.torn_writes import choose_name, tear

__all__ = ["LossyDisk", "main"]

BLOCK = 4096  # bytes
BLOCKS = 1 << 20  # all of them are free
NUMBERS = itertools.count(2)


@dataclass(eq=False)
class Node:
    """A file or folder.

    mode: type and permissions
    number: its inode number
    mtime: time of its last change, in nanoseconds
    """

    mode: int
    number: int = field(default_factory=lambda: next(NUMBERS))
    mtime: int = field(default_factory=time.time_ns)


@dataclass(eq=False)
class File(Node):
    """A file. synced: its content at its last sync."""

    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


@dataclass(eq=False)
class Folder(Node):
    """A folder. synced: its names at its last sync."""

    names: dict[str, Node] = field(default_factory=dict)
    synced: dict[str, Node] = field(default_factory=dict)


class LossyDisk:
    """The operations of a file system, as FUSE calls them.

    instants: see above
    caller: returns the process id of the caller of the present operation
    spared: process that is neither killed nor counted
    """

    use_ns = True  # times are nanoseconds
    flag_nullpath_ok = True  # operations of open files that were removed have no path

    def __init__(
        self,
        rng: random.Random,
        instants: Sequence[int] = (),
        caller: Callable[[], int] = os.getpid,
        spared: int = -1,
    ) -> None:
        self.root = Folder(stat.S_IFDIR | 0o700)
        self._rng, self._instants, self._caller, self._spared = rng, [*instants], caller, spared
        self._open: dict[int, File] = {}
        self._handles = itertools.count(1)
        self._users = set[int]()
        self.changes, self.dead = 0, False

    # ---- faults ----------------------------------------------------------------------------------

    def cut_power(self) -> None:
        """Lose, tear or keep at random what was not synced."""
        self._settle(self.root, set())
        self._open.clear()
        self._users.clear()
        self._instants, self.changes, self.dead = self._instants[1:], 0, False

    def _settle(self, folder: Folder, done: set[int]) -> None:
        names = dict[str, Node]()
        for name in sorted({*folder.names, *folder.synced}):
            node = choose_name(folder.names.get(name), folder.synced.get(name), self._rng)
            if node is None:
                continue
            names[name] = node
            if node.number in done:
                continue
            done.add(node.number)
            if isinstance(node, Folder):
                self._settle(node, done)
            elif isinstance(node, File):
                node.synced = tear(bytes(node.content), node.synced, self._rng)
                node.content = bytearray(node.synced)
        folder.names, folder.synced = names, dict(names)

    def _change(self) -> None:
        """Count a change, which the power cut may precede. Raises OSError after it."""
        process = self._caller()  # 0: the kernel writes pages that a process changed in memory
        if not self.dead and process != self._spared:
            self._users.add(process)
            self.changes += 1
            if self._instants and self.changes == self._instants[0]:
                self.dead = True
                for user in self._users - {0}:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(user, signal.SIGKILL)
        if self.dead:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    # ---- names -----------------------------------------------------------------------------------

    def getattr(self, path: str | None, handle: int | None = None) -> dict[str, int]:
        node = self._node(path, handle)
        size = len(node.content) if isinstance(node, File) else 0
        times = dict.fromkeys(("st_atime", "st_mtime", "st_ctime"), node.mtime)
        return {
            "st_mode": node.mode,
            "st_ino": node.number,
            "st_nlink": 1,
            "st_size": size,
            "st_blocks": -(-size // 512),
            "st_uid": os.getuid(),
            "st_gid": os.getgid(),
            **times,
        }

    def readdir(self, path: str, handle: int) -> list[tuple[str, dict[str, int], int]]:
        folder = self._folder(path)
        nodes = {".": folder, "..": folder, **folder.names}
        return [
            (name, {"st_ino": node.number, "st_mode": node.mode}, 0) for name, node in nodes.items()
        ]

    def mkdir(self, path: str, mode: int) -> None:
        self._change()
        folder, name = self._parent(path)
        folder.names[name] = Folder(stat.S_IFDIR | mode)

    def create(self, path: str, mode: int) -> int:
        self._change()
        folder, name = self._parent(path)
        folder.names[name] = File(stat.S_IFREG | mode)
        return self.open(path, 0)

    def unlink(self, path: str) -> None:
        self._change()
        folder, name = self._parent(path)
        del folder.names[name]

    def rmdir(self, path: str) -> None:
        if self._folder(path).names:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        self.unlink(path)

    def rename(self, old: str, new: str) -> None:
        self._change()
        (source, name), (target, other) = self._parent(old), self._parent(new)
        target.names[other] = source.names.pop(name)

    def fsyncdir(self, path: str, only_data: int, handle: int) -> None:
        self._change()
        folder = self._folder(path)
        folder.synced = dict(folder.names)

    def chmod(self, path: str | None, mode: int) -> None:
        node = self._node(path)
        node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(mode)

    def chown(self, path: str | None, user: int, group: int) -> None:
        """Ignore owners: only the user who mounted the disk may open it."""

    def utimens(self, path: str | None, times: tuple[int, int] | None) -> None:
        self._node(path).mtime = time.time_ns() if times is None else times[1]

    def statfs(self, path: str) -> dict[str, int]:
        free = dict.fromkeys(("f_blocks", "f_bfree", "f_bavail"), BLOCKS)
        return {"f_bsize": BLOCK, "f_frsize": BLOCK, "f_namemax": 255, **free}

    # ---- contents --------------------------------------------------------------------------------

    def open(self, path: str, flags: int) -> int:
        handle = next(self._handles)
        self._open[handle] = self._file(path)
        return handle

    def release(self, path: str | None, handle: int) -> None:
        self._open.pop(handle, None)

    def read(self, path: str | None, size: int, offset: int, handle: int) -> bytes:
        return bytes(self._file(path, handle).content[offset : offset + size])

    def write(self, path: str | None, data: bytes, offset: int, handle: int) -> int:
        self._change()
        file = self._file(path, handle)
        file.content.extend(bytes(max(0, offset - len(file.content))))
        file.content[offset : offset + len(data)] = data
        file.mtime = time.time_ns()
        return len(data)

    def truncate(self, path: str | None, length: int, handle: int | None = None) -> None:
        self._change()
        file = self._file(path, handle)
        del file.content[length:]
        file.content.extend(bytes(length - len(file.content)))

    def fallocate(self, path: str | None, mode: int, offset: int, size: int, handle: int) -> None:
        if mode:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        length = len(self._file(path, handle).content)
        self.truncate(path, max(length, offset + size), handle)

    def fsync(self, path: str | None, only_data: int, handle: int) -> None:
        self._change()
        file = self._file(path, handle)
        file.synced = bytes(file.content)

    # ---- paths -----------------------------------------------------------------------------------

    def _node(self, path: str | None, handle: int | None = None) -> Node:
        if handle in self._open:
            return self._open[handle]
        node: Node = self.root
        for name in filter(None, (path or "").split("/")):
            found = node.names.get(name) if isinstance(node, Folder) else None
            if found is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            node = found
        return node

    def _file(self, path: str | None, handle: int | None = None) -> File:
        node = self._node(path, handle)
        if not isinstance(node, File):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return node

    def _folder(self, path: str) -> Folder:
        node = self._node(path)
        if not isinstance(node, Folder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node

    def _parent(self, path: str) -> tuple[Folder, str]:
        above, _, name = path.rpartition("/")
        return self._folder(above), name


def find_process(thread: int) -> int:
    """Return the process of a thread; 0 for the kernel or a thread that has ended."""
    try:
        status = Path(f"/proc/{thread}/status").read_text()
    except OSError:
        return 0
    return int(status.partition("Tgid:")[2].split()[0])


def main(arguments: list[str]) -> None:
    folder, seed, *instants = arguments
    import mfusepy

    disk = LossyDisk(
        random.Random(int(seed)),  # noqa: S311  # repeatable, not secret
        [int(number) for number in instants],
        lambda: find_process(int(mfusepy.fuse_get_context()[2])),
        os.getppid(),
    )
    while True:
        mfusepy.FUSE(
            disk,
            folder,
            foreground=True,
            nothreads=True,
            big_writes=True,
            hard_remove=True,
            use_ino=True,
        )
        print(f"power cut after {disk.changes} changes", flush=True)
        disk.cut_power()


if __name__ == "__main__":
    main(sys.argv[1:])
