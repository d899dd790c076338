"""Count the faults in the log of a run by kind and reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from coordinator.views.run_log import list_log_files, open_log, read_lines

__all__ = ["describe_faults"]

MAX_FAULTS = 200  # rows, the most frequent ones
MAX_FILES = 64  # counted log files that are remembered; full ones never change
FAULTS: Mapping[str, str] = {
    "broker lost": "the broker was lost",
    "came": "an agent restarted",
    "delayed": "a round was delayed",
    "failed": "a task failed",
    "lease expired": "a lease expired",
    "refused": "a message or an update was refused",
    "resumed": "the coordinator restarted",
    "turned away": "an agent was turned away",
    "went": "an agent left",
}
"""Kind of an event in the log -> the fault in words."""


@dataclass
class Fault:
    """Faults of one kind for one reason.

    reason: of the last one.
    times: number of them.
    agents: that they concern.
    last: time of the last one, UTC.
    """

    reason: str = ""
    times: int = 0
    agents: set[str] = field(default_factory=set)
    last: str = ""


Counts = dict[tuple[str, str], Fault]
"""Kind of the event and reason without its numbers -> the faults."""


def describe_faults(folder: Path) -> dict[str, Any]:
    """Return the faults of a run as plain values, the most frequent ones first, and the time since
    which its log is kept; empty without a log.
    """
    found, since = Counts(), ""
    for file in list_log_files(folder):
        try:
            status = file.stat()
            first, counts = count_file(file, status.st_ino, status.st_size)
        except OSError:
            continue  # rotated meanwhile
        since = since or first
        for key, one in counts.items():
            merged = found.setdefault(key, Fault())
            merged.reason, merged.last = one.reason, one.last
            merged.times += one.times
            merged.agents |= one.agents
    rows = sorted(found.items(), key=lambda row: -row[1].times)[:MAX_FAULTS]
    return {
        "since": since,
        "faults": [
            {
                "fault": FAULTS[kind],
                "reason": one.reason,
                "times": one.times,
                "agents": len(one.agents),
                "last": one.last,
            }
            for (kind, _), one in rows
        ],
    }


@lru_cache(maxsize=MAX_FILES)
def count_file(file: Path, inode: int, size: int) -> tuple[str, Counts]:
    """Return the time of the first event of a log file, and its faults. inode, size: of the file as
    it is now.
    """
    found, first = Counts(), ""
    with open_log(file) as stream:
        for event in read_lines(stream):
            first = first or event["time"]
            kind, agent = event.get("event"), event.get("agent")
            joined = kind == "came" and not event["message"].endswith("restarted")
            if not isinstance(kind, str) or kind not in FAULTS or joined:
                continue
            reason = find_reason(event["message"], agent if isinstance(agent, str) else "")
            one = found.setdefault((kind, re.sub(r"\d+", "0", reason)), Fault())
            one.reason, one.last = reason, event["time"]
            one.times += 1
            if isinstance(agent, str):
                one.agents.add(agent)
    return first, found


def find_reason(message: str, agent: str) -> str:
    """Return a message without the agent or topic that it begins with."""
    message = re.sub(r"^rejected from [^:]*: ", "", message)
    return message.removeprefix(agent).lstrip(": ") if agent else message
