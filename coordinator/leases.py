"""How long an agent may take for a task before another is asked in its place: a lease learned from the device, and more while it shows progress.

A lease ends no task: an update that comes after it is taken as long as the round is open. It only says when to stop counting on one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from federated.task import beats

__all__ = ["FIRST", "LEAST", "SLACK", "Lease", "granted", "heard", "overdue"]

LEAST = 10.0  # seconds: below them, what a device was predicted to need says little
FIRST = 60.0  # seconds: the same for its first training, for which a slow device may load and warm up for long before a step is done
SLACK = 3.0  # times what it was predicted to need, its transfers included
MISSED = 2.5  # heartbeats without anything new, after which nothing goes on


@dataclass(frozen=True)
class Lease:
    """Of one task. seconds: from `started`, that its agent may take in silence. shown: the last sign of progress; moved: when that was new.

    Times are the coordinator's, in seconds.
    """

    started: float = 0.0
    seconds: float = math.inf
    shown: tuple[str, int] = ("", 0)
    moved: float = 0.0


def granted(predicted: float, *, first: bool = False) -> float:
    """Seconds of a lease, from what the device was predicted to need for download, training and upload. first: whether it never trained so far."""
    return max(FIRST if first else LEAST, SLACK * predicted)


def heard(lease: Lease, shown: tuple[str, int], now: float) -> Lease:
    """After a sign of progress: what the agent does, and how much of it is done (steps, or chunks). The same again is none."""
    return lease if shown == lease.shown else replace(lease, shown=shown, moved=now)


def overdue(lease: Lease, now: float) -> bool:
    """Whether a task has taken longer than its lease and shows no progress: heartbeats that came lately say the same as those before."""
    return now - lease.started > lease.seconds and now - max(lease.started, lease.moved) > MISSED * beats(lease.seconds)
