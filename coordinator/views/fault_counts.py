"""Count the faults in the log of a run by kind and reason."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from coordinator.views.run_log import list_log_files, read_lines

__all__ = ["describe_faults"]

MAX_FAULTS = 200  # rows, the most frequent ones
MAX_FILES = 64  # log files whose counts are remembered
FAULTS: Mapping[str, str] = {
    "agent refused": "an agent was refused",
    "broker lost": "the broker was lost",
    "came": "an agent restarted",
    "delayed": "a round was delayed",
    "failed": "a task failed",
    "lease expired": "a lease expired",
    "refused": "a message or an update was refused",
    "resumed": "the coordinator restarted",
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


@dataclass
class CountedLog:
    """A log file as far as it is counted.

    read: bytes of the counted lines.
    first: time of the first event; empty without any.
    faults: that the lines contain.
    """

    read: int = 0
    first: str = ""
    faults: Counts = field(default_factory=Counts)


_counting = threading.Lock()  # several pages may show a run


def describe_faults(folder: Path) -> dict[str, Any]:
    """Return the faults of a run as plain values, the most frequent ones first, and the time since
    which its log is kept; empty without a log.
    """
    found, since = Counts(), ""
    for file in list_log_files(folder):
        try:
            stream = file.open("rb")
        except OSError:
            continue  # such as not written yet, or rotated meanwhile
        with stream, _counting:
            log = count_file(stream)
            merge_counts(found, log.faults)
            since = since or log.first
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


def merge_counts(found: Counts, later: Counts) -> None:
    for key, one in later.items():
        merged = found.setdefault(key, Fault())
        merged.reason, merged.last = one.reason, one.last
        merged.times += one.times
        merged.agents |= one.agents


def count_file(stream: BinaryIO) -> CountedLog:
    """Return what a log file contains. Reads only what was added since the last call."""
    log = remember_log(os.fstat(stream.fileno()).st_ino, stream.readline())
    stream.seek(log.read)
    for event in read_lines(stream):
        log.first = log.first or event["time"]
        count_event(log.faults, event)
    log.read = stream.tell()
    return log


@lru_cache(maxsize=MAX_FILES)
def remember_log(inode: int, first_line: bytes) -> CountedLog:
    """Return what is known of a log file, which keeps both when it is rotated."""
    return CountedLog()


def count_event(found: Counts, event: Mapping[str, Any]) -> None:
    kind, agent = event.get("event"), event.get("agent")
    joined = kind == "came" and not event["message"].endswith("restarted")
    if not isinstance(kind, str) or kind not in FAULTS or joined:
        return
    reason = find_reason(event["message"], agent if isinstance(agent, str) else "")
    one = found.setdefault((kind, re.sub(r"\d+", "0", reason)), Fault())
    one.reason, one.last = reason, event["time"]
    one.times += 1
    if isinstance(agent, str):
        one.agents.add(agent)


def find_reason(message: str, agent: str) -> str:
    """Return a message without the agent or topic that it begins with."""
    message = re.sub(r"^rejected from [^:]*: ", "", message)
    return message.removeprefix(agent).lstrip(": ") if agent else message
