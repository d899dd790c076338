"""Record how far an agent got since it started, and from which environment, so that `edge-agent
update` goes back if a new version does not join.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
from pathlib import Path

import msgspec

from edge_agent.device.state_folder import locate_state
from federated.errors import StoreError
from federated.runtime import atomic_files

__all__ = ["read_start", "remove_start", "write_start"]

log = logging.getLogger(__name__)

NAME = "start.json"
MOST = 1 << 16  # bytes of the file


class StartRecord(msgspec.Struct, frozen=True):
    """The last start of an agent.

    environment: folder of its Python environment.
    joined: whether it joined a run; otherwise it has reached the broker and looks for a run.
    """

    environment: str
    joined: bool


def write_start(*, joined: bool) -> None:
    """Record a start of this environment. An agent works without the record."""
    try:
        path = locate_state() / NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        record = StartRecord(str(Path(sys.prefix).resolve()), joined)
        atomic_files.write(path, msgspec.json.encode(record))
    except (OSError, StoreError) as error:
        log.info("cannot record the start of this agent: %s", error)


def remove_start() -> None:
    """Remove the record, such as after the run refused the agent."""
    try:
        (locate_state() / NAME).unlink(missing_ok=True)
    except (OSError, StoreError) as error:
        log.info("cannot remove the record of this agent's start: %s", error)


def read_start() -> StartRecord | None:
    """Return the record; None without a readable one. Raises StoreError if the user has no home."""
    try:
        return msgspec.json.decode(read_plain(locate_state() / NAME), type=StartRecord)
    except (OSError, msgspec.MsgspecError):
        return None


def read_plain(path: Path) -> bytes:
    """Return the content of a small file, whose owner this process may not trust: no link is
    followed, and nothing that never ends is read. Raises OSError.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is no regular file")
        return file.read(MOST)
