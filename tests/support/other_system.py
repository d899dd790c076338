"""Make a process like one on a system without what only Linux or POSIX has.

What is missing is hidden from the project only, because Python's own modules, and those of other
packages, know systems without it by other means.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import fcntl
import os
import re
import resource  # noqa: F401  # loaded, to be restricted
import shutil
import signal  # noqa: F401
import socket  # noqa: F401
import struct
import subprocess
import sys
import time  # noqa: F401
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["become_macos", "become_windows"]

PROJECT = ("coordinator", "edge_agent", "espalier", "export", "federated", "models")
# modules that Windows lacks
MISSING = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
# names that match are missing from a module
LACKING_ON_MACOS = {"os": r"posix_fallocate|sched_\w+", "resource": "prlimit"}
LACKING_ON_WINDOWS = {
    "os": r"fork|forkpty|get(e|res)?[ug]id|set\w*[ug]id|getgroups|[gs]et(sid|pgid|pgrp|priority)"
    r"|killpg|l?chown|f(chdir|chmod|chown|datasync|pathconf|statvfs)|statvfs|getloadavg|sysconf"
    r"|confstr|uname|nice|mkfifo|mknod|major|minor|pipe2|posix_\w+|p(read|write)v?|readv|writev"
    r"|sendfile|sched_\w+|wait(id|3|4)?|W[A-Z]+|openpty|ttyname|tc[gs]etpgrp|[gs]et_blocking"
    r"|chroot|sync|register_at_fork|ctermid|lockf|\w+xattr|eventfd\w*|memfd_\w+|EX_\w+"
    r"|O_(DIRECTORY|NOFOLLOW|CLOEXEC|NONBLOCK|D?SYNC|NOCTTY|TMPFILE|PATH|DIRECT)",
    "signal": r"(?!SIG(ABRT|FPE|ILL|INT|SEGV|TERM|_DFL|_IGN)$)SIG\w+|pthread_\w+|alarm"
    r"|sig(wait\w*|pending|interrupt|timedwait)|pause|[gs]etitimer|ITIMER_\w+",
    "socket": r"AF_UNIX|SO_REUSEPORT|MSG_(DONTWAIT|NOSIGNAL)|SCM_\w+|CMSG_\w+|TCP_USER_TIMEOUT"
    r"|(send|recv)_fds",
    "time": r"clock_\w+|CLOCK_\w+|pthread_\w+|tzset",
}
NOTHING = r"(?!)"  # matches no name
RESERVED = re.compile(r'[<>:"|?*]')  # not allowed in names of files
LINUX = ("/proc/self/", "/sys/", "/etc/machine-id")  # paths that other systems lack
MAPS = "/proc/self/maps"  # what this module itself reads
LOCK = "hhqqi4x"  # struct flock of Linux


def become_macos() -> None:
    """Hide functions that macOS lacks."""
    modules = {
        name: Restricted(sys.modules[name], lacking, {})
        for name, lacking in LACKING_ON_MACOS.items()
    }
    hide(modules, set())


def become_windows() -> None:
    """Give this process the functions and the rules for files of Windows, as far as Linux can."""
    given: dict[str, dict[str, Any]] = {
        "os": {"name": "nt", "open": open_file, "fsync": sync_file},
        "signal": {},
        "socket": {},
        "subprocess": {"Popen": WindowsPopen, "CREATE_NEW_PROCESS_GROUP": 0x200},
        "time": {},
    }
    modules: dict[str, ModuleType] = {
        name: Restricted(sys.modules[name], LACKING_ON_WINDOWS.get(name, NOTHING), own)
        for name, own in given.items()
    }
    modules["msvcrt"] = ModuleType("msvcrt")
    modules["msvcrt"].__dict__.update(LK_NBLCK=2, locking=lock_bytes)
    hide(modules, MISSING)
    for name in ("rename", "replace", "remove", "unlink"):
        setattr(os, name, restrict(name))
    shutil._use_fd_functions = False  # type: ignore[attr-defined]  # so that it calls these
    sys.addaudithook(refuse_paths)


class Restricted(ModuleType):
    """A module without the names that match `lacking`, and with others in place of its own."""

    def __init__(self, module: ModuleType, lacking: str, own: Mapping[str, Any]) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(own, _module=module, _lacking=re.compile(lacking))

    def __getattr__(self, name: str) -> Any:
        if self._lacking.fullmatch(name):
            raise AttributeError(f"this system has no {self.__name__}.{name}")
        return getattr(self._module, name)


def hide(modules: Mapping[str, ModuleType], missing: set[str]) -> None:
    """Let the project import these modules in place of others, and hide the missing ones."""
    load, open_library = builtins.__import__, ctypes.CDLL

    def load_ours(name: str, globals: Any = None, *more: Any, **options: Any) -> Any:
        if (globals or {}).get("__name__", "").partition(".")[0] in PROJECT:
            if name in missing:
                raise ImportError(f"no module named {name}")
            if name in modules:
                return modules[name]
        return load(name, globals, *more, **options)

    def refuse_library(name: Any, *more: Any, **options: Any) -> Any:
        if name is None:
            raise TypeError("this system has no C library of that kind")
        return open_library(name, *more, **options)

    builtins.__import__ = load_ours
    ctypes.CDLL = refuse_library  # type: ignore[assignment, misc]


class WindowsPopen(subprocess.Popen[Any]):
    """Starts a process without inherited files."""

    def __init__(self, *given: Any, creationflags: int = 0, **options: Any) -> None:
        assert not options.pop("pass_fds", ()), "pass_fds not supported on Windows."
        options["start_new_session"] = creationflags == 0x200
        super().__init__(*given, **options)


def open_file(path: Any, flags: int, *more: Any, **options: Any) -> int:
    if os.path.isdir(path):  # noqa: PTH112
        raise PermissionError(errno.EACCES, "Permission denied", str(path))
    return os.open(path, flags, *more, **options)


def sync_file(handle: int) -> None:
    if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "Bad file descriptor")
    os.fsync(handle)


def lock_bytes(handle: int, mode: int, count: int) -> None:
    """Lock bytes from the present position, for this handle only."""
    assert mode == 2
    place = os.lseek(handle, 0, os.SEEK_CUR)
    about = struct.pack(LOCK, fcntl.F_WRLCK, os.SEEK_SET, place, count, 0)
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, about)
    except BlockingIOError as error:
        raise PermissionError(errno.EACCES, "Permission denied") from error


def restrict(name: str) -> Any:
    """Return a function of `os` that changes no file which this process has opened, and `rename`
    that replaces none.
    """
    change = getattr(os, name)

    def call(path: Any, *more: Any, **options: Any) -> Any:
        target = more[0] if more else path
        if name == "rename" and Path(target).exists():
            raise FileExistsError(errno.EEXIST, "File exists", str(target))
        for one in (path, target):
            if not options and is_open(Path(one)):
                raise PermissionError(errno.EACCES, "Permission denied", str(one))
        return change(path, *more, **options)

    return call


def is_open(path: Path) -> bool:
    """Return True if this process has a file open or mapped, or one in a folder."""
    wanted = os.path.realpath(path)
    used = {os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()}
    for line in Path(MAPS).read_text().splitlines():
        used.update(line.split(maxsplit=5)[5:])
    return any(one == wanted or one.startswith(f"{wanted}/") for one in used)


def refuse_paths(event: str, given: tuple[Any, ...]) -> None:
    """Refuse names that Windows does not allow, and files that only Linux has."""
    if event not in ("open", "os.mkdir", "os.rename") or not isinstance(given[0], str | bytes):
        return
    path = os.fsdecode(given[1 if event == "os.rename" else 0])
    if path.startswith(LINUX) and event == "open" and path != MAPS:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
    writes = event != "open" or (given[2] or 0) & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)
    if writes and not path.startswith("/dev/") and RESERVED.search(path):
        raise OSError(errno.EINVAL, "Invalid argument", path)
