"""Make a process like one on a system without what only Linux or POSIX has.

`fcntl` and `resource` are hidden from the project only, because Python's own modules, and those of
other packages, know systems without them by other means.
"""

from __future__ import annotations

import builtins
import ctypes
import os
from typing import Any

__all__ = ["become_other_system"]

PROJECT = ("coordinator", "edge_agent", "espalier", "export", "federated", "models")
HIDDEN = ("fcntl", "resource")
LACKING = ("posix_fallocate", "sched_getaffinity", "sched_setaffinity", "geteuid", "getuid", "nice")


def become_other_system() -> None:
    """Remove functions from this process that other systems lack."""
    for name in LACKING:
        delattr(os, name)
    load, open_library = builtins.__import__, ctypes.CDLL

    def refuse(name: str, globals: Any = None, *more: Any, **options: Any) -> Any:
        importer = (globals or {}).get("__name__", "")
        if name in HIDDEN and importer.partition(".")[0] in PROJECT:
            raise ImportError(f"no module named {name}")
        return load(name, globals, *more, **options)

    def refuse_library(name: Any, *more: Any, **options: Any) -> Any:
        if name is None:
            raise TypeError("this system has no C library of that kind")
        return open_library(name, *more, **options)

    builtins.__import__ = refuse
    ctypes.CDLL = refuse_library  # type: ignore[assignment, misc]
