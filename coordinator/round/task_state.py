"""Define the state of one task: when it was sent, the progress of its agent, and when its lease
(the time in which the agent must show progress) ends.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from federated.task import Key, Task, heartbeat_interval

__all__ = ["MAX_LEASES", "MISSED_BEATS", "RETURN_TIME", "Planned", "Spare", "TaskState"]

MAX_LEASES = 4.0  # maximum number of leases of a task, even if its agent reports progress
UPLOAD_IDLE = 30.0  # seconds without a chunk after which an upload counts as stopped
MISSED_BEATS = 2.5  # heartbeats without progress after which an agent counts as stopped
# seconds that a phase waits for lost agents to return when it waits for no other agent
RETURN_TIME = 20.0

Stage: TypeAlias = Literal["asked", "whole", "folding", "done"]


class Planned(Struct, frozen=True):
    """A task that is about to be sent.

    task: without its lease.
    seconds: predicted by the coordinator, transfers included; 0: unknown.
    probe: see `TaskState`.
    """

    task: Task
    seconds: float = 0.0
    probe: bool = False


class Spare(Struct, frozen=True):
    """An agent that may be asked during the phase.

    agent: its name.
    seconds: predicted by the coordinator for its task.
    """

    agent: str
    seconds: float = 0.0


class TaskState(Struct, frozen=True):
    """The progress of one task. Times are in the coordinator's seconds.

    task: as it was sent.
    place: position in the order of folding of the present phase; -1 for a carried task that is not
        part of it.
    asked: time when it was sent.
    seconds: predicted while it is open; once the update is complete, measured without the time that
        it waited for upload slots.
    stage: asked, whole (its update is checked and in the spool), folding, or done.
    outcome: empty until it is settled, then `folded` or why not.
    digest: sha256 of its update.
    shown: last sign of progress: the agent's state and its number of finished steps.
    moved: time of that sign.
    sent: time of the last chunk of its update; minus infinity before the first.
    lost: time when its agent was lost; negative while it is connected.
    excused: seconds of its agent's earlier absences during which no phase waited for it.
    restarted: whether its agent came back as a new process.
    late: whether its lease expired. It no longer counts toward the quorum, but its update is
        accepted while the phase is open.
    waiting: time since when its update waits for an upload slot; negative while it does not.
    waited: seconds that it has waited for upload slots before.
    reminded: time when its agent last received it again; minus infinity before the first time.
    resumed: whether an earlier process sent it, so the clock cannot measure it.
    carried: whether it is of an earlier round.
    probe: whether its agent is a suspect. No phase waits for it. Its update is folded if it arrives
        in time; afterwards, within the lease, it only shows that the agent delivers.
    heartbeat: least seconds between two heartbeats when it was sent (see `Round.heartbeat`).
    """

    task: Task
    place: int
    asked: float
    seconds: float = 0.0
    stage: Stage = "asked"
    outcome: str = ""
    digest: str = ""
    shown: tuple[str, int] = ("", 0)
    moved: float = 0.0
    sent: float = -math.inf
    lost: float = -1.0
    excused: float = 0.0
    restarted: bool = False
    late: bool = False
    waiting: float = -1.0
    waited: float = 0.0
    reminded: float = -math.inf
    resumed: bool = False
    carried: bool = False
    probe: bool = False
    heartbeat: float = 0.0

    @property
    def key(self) -> Key:
        return self.task.key

    @property
    def open(self) -> bool:
        """True if its update is still expected."""
        return self.stage == "asked" and not self.outcome

    @property
    def working(self) -> bool:
        """True if its agent is connected and within its lease."""
        return self.open and self.lost < 0 and not self.late

    @property
    def away(self) -> bool:
        """True if its agent was lost and may return. Simulated agents, whose tasks have no lease,
        do not return.
        """
        return self.open and self.lost >= 0 and not self.late and self.task.lease > 0

    @property
    def outlasting(self) -> bool:
        """True if it is a probe that is still open after the end of its phase."""
        return self.probe and self.place < 0 and self.open

    @property
    def came(self) -> bool:
        """True if its update was accepted."""
        return self.stage in ("whole", "folding") or self.outcome == "folded"

    @property
    def due(self) -> float:
        """The time when its lease ends unless there is progress. An agent that was lost within the
        lease gets the maximum, since it cannot report progress.
        """
        lease, began = self.task.lease, self.asked + self.waited
        if not lease or self.waiting >= 0:
            return math.inf
        if self.lost >= 0 and self.lost - began - self.excused < lease:
            return began + MAX_LEASES * lease
        return min(
            max(
                began + lease,
                self.moved + MISSED_BEATS * heartbeat_interval(lease, self.heartbeat),
                self.sent + UPLOAD_IDLE,
            ),
            began + MAX_LEASES * lease,
        )

    def reopen(self, now: float) -> TaskState:
        """Return the same task after its update was lost: it is requested again."""
        return replace(
            self,
            stage="asked",
            outcome="",
            digest="",
            asked=now,
            moved=now,
            waited=0.0,
            excused=0.0,
            restarted=False,
            late=False,
            resumed=True,
        )

    def excuse(self, now: float) -> TaskState:
        """Return the same task with a new lease: something delayed its agent's messages, and the
        clock cannot measure it.
        """
        waited = self.waited + self.elapsed(now)
        return replace(self, waited=waited, moved=now, late=False, resumed=True)

    def come_back(self, now: float, *, restarted: bool = False) -> TaskState:
        """Return the same task after its agent came back. A new process starts the task over, so
        the first one counts as progress.
        """
        if self.lost < 0 and not restarted:
            return self
        return replace(
            self,
            lost=-1.0,
            excused=self.excused + self.excused_now(now),
            restarted=self.restarted or restarted,
            moved=now if restarted and not self.restarted else self.moved,
        )

    def excused_now(self, now: float) -> float:
        """Return the seconds of the present absence during which no phase waited."""
        return max(0.0, now - self.lost - RETURN_TIME) if self.lost >= 0 else 0.0

    def awaited(self, now: float) -> float:
        """Return the seconds since it was sent during which a phase waited for it."""
        return self.elapsed(now) - self.excused - self.excused_now(now)

    def elapsed(self, now: float) -> float:
        """Return the seconds since it was sent, without those spent waiting for upload slots."""
        return now - self.asked - self.waited - (now - self.waiting if self.waiting >= 0 else 0.0)
