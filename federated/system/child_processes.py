"""Start a process apart from the terminal, or without ctrl-C, talk to it, and tell how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["OWN_GROUP", "block_interrupts", "take_output", "was_killed"]

# `creationflags` of a process that ctrl-C must not reach: what `start_new_session` is elsewhere
OWN_GROUP: int = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)


@contextmanager
def block_interrupts() -> Iterator[None]:
    """Keep ctrl-C from this thread, and from processes that are started meanwhile, which inherit
    this. Windows cannot: there ctrl-C also reaches these processes.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def take_output() -> int:
    """Return a handle of this process's standard output, for answers to the parent. What libraries
    print goes to standard error from now on.
    """
    output = os.dup(1)
    os.dup2(2, 1)
    return output


def was_killed(code: int | None) -> bool:
    """Return True if a process with this exit code was killed, as Linux does if memory runs out.
    Windows has no signals.
    """
    return code is not None and hasattr(signal, "SIGKILL") and code == -signal.SIGKILL
