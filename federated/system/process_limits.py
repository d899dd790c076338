"""Read and set the limits of processes on open files and memory, their priority, and their end."""

from __future__ import annotations

import os
import signal

from federated.system.c_library import find_function

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

__all__ = [
    "end_with_parent",
    "get_descriptor_limit",
    "limit_data",
    "lower_priority",
    "raise_descriptor_limit",
]


DESCRIPTORS = 65536  # soft limit of a process, if its hard limit allows that


def get_descriptor_limit() -> int:
    """Return how many files and sockets this process may open; `DESCRIPTORS` if there is no limit
    or the system does not say.
    """
    if resource is None:
        return DESCRIPTORS
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> None:
    """Raise this process's soft limit on open files and sockets to the hard one, up to
    `DESCRIPTORS`.
    """
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limit_data(pid: int, size: int) -> bool:
    """Limit the bytes of a process's data. Return False if the system cannot (only Linux can limit
    another process).
    """
    if not hasattr(resource, "prlimit"):
        return False
    resource.prlimit(pid, resource.RLIMIT_DATA, (size, size))
    return True


def lower_priority(steps: int) -> None:
    """Give other processes priority over this one, if the system can."""
    if hasattr(os, "nice"):
        os.nice(steps)


def end_with_parent() -> None:
    """Kill this process when the thread of its parent that started it ends for any reason, if the
    system can. Otherwise a process that was stopped would never continue.
    """
    if (control := find_function("prctl")) is not None:  # Linux
        control(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
