"""Start a process apart from the terminal, talk to it, and tell how it ended."""

from __future__ import annotations

import os
import signal
import subprocess

__all__ = ["OWN_GROUP", "take_output", "was_killed"]

# `creationflags` of a process that ctrl-C must not reach: what `start_new_session` is elsewhere
OWN_GROUP: int = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)


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
