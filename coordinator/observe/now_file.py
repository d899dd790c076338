"""What a coordinator does at this moment, as a small file in the run's folder: whoever may read the
folder can see it, and no port is opened.

It is for people and monitors only: nothing is resumed from it.
`coordinator.observe.readers.now` writes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

__all__ = ["FILE", "STATES", "TASKS", "Member", "Now", "read_now"]

FILE = "now.json"
TASKS = (
    "open",
    "lost",
    "received",
    "folded",
    "refused",
    "failed",
    "paused",
    "late",
    "gone",
    "other",
)
STATES = (
    "idle",
    "download",
    "train",
    "calibrate",
    "evaluate",
    "send",
    "paused",
    "measuring",
    "excluded",
    "refused",
    "gone",
    "other",
)


@dataclass(frozen=True)
class Member:
    """One agent as the coordinator sees it. state: one of STATES. task: one of TASKS, empty without
    one.
    """

    agent: str
    state: str
    submodel: str = ""
    task: str = ""
    loss: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Now:
    """phase: waiting, paused, train, calibrate, evaluate, between; at the end over, stopped or
    failed, with the reason.

    round: under way, or done last. began: of the round; all times are UTC, as ISO 8601 writes them.
    tasks, agents: how many are how. bytes: through the coordinator's link since it started.
    receiving, waiting: updates on their way in, and in line for that. queued: messages that came
    and are not handled yet. spool_files, spool_bytes: on the coordinator's disk.
    epsilon: what private rounds told so far, those before a resume with them; None where they are
    not private, or before the first may begin.
    """

    run: str
    pid: int
    started: str
    updated: str
    phase: str
    round: int
    rounds: int
    began: str = ""
    wanted: int = 0
    tasks: dict[str, int] = field(default_factory=dict)
    agents: dict[str, int] = field(default_factory=dict)
    members: tuple[Member, ...] = ()
    bytes_up: int = 0
    bytes_down: int = 0
    receiving: int = 0
    waiting: int = 0
    queued: int = 0
    spool_files: int = 0
    spool_bytes: int = 0
    reason: str = ""
    epsilon: float | None = None


def read_now(folder: Path) -> Now | None:
    """What the run's coordinator wrote last; None where there is nothing, or nothing to
    understand.
    """
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Now)
    except (OSError, msgspec.DecodeError):
        return None
