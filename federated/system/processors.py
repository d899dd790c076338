"""Find the processors that a process may use, and limit it to some of them."""

from __future__ import annotations

import os
from collections.abc import Collection

__all__ = ["limit_processors", "list_processors"]


def list_processors(pid: int = 0) -> frozenset[int]:
    """Return the numbers of the processors that a process may use (0: this one). Systems without
    CPU affinity, such as macOS, report all of the machine.
    """
    if not hasattr(os, "sched_getaffinity"):
        return frozenset(range(os.cpu_count() or 1))
    return frozenset(os.sched_getaffinity(pid))


def limit_processors(pid: int, processors: Collection[int]) -> bool:
    """Let a process use only these processors. Return False if the system cannot."""
    if not hasattr(os, "sched_setaffinity"):
        return False
    os.sched_setaffinity(pid, processors)
    return True
