"""Read what a process and its descendants have used: processor time and memory."""

from __future__ import annotations

import contextlib

import psutil

__all__ = ["read_processor_seconds", "read_shared_memory"]


def list_family(pid: int | None) -> list[psutil.Process]:
    """Return a process and its descendants. pid: None for this process."""
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]


def read_processor_seconds(pid: int | None = None) -> float:
    """Return the processor time of a process and its descendants, those that ended included."""
    seconds = 0.0
    for process in list_family(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            seconds += sum(process.cpu_times()[:4])  # the last two: of children that ended
    return seconds


def read_shared_memory(pid: int | None = None) -> int:
    """Return the bytes of a process and its descendants, in which a page that several processes
    share counts once (the sum of their PSS).
    """
    size = 0
    for process in list_family(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            size += process.memory_full_info().pss
    return size
