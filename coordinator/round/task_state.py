"""The state of one task: when it was asked, what its agent showed since, and when its lease is
over.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from federated.task import Key, Task, beats

__all__ = ["HARD", "Planned", "Spare", "TaskState"]

HARD = 4.0  # leases that a task may take in all, whatever progress its agent claims
IDLE = 30.0  # seconds between chunks of an update after which its upload is taken to have stopped
MISSED = 2.5  # heartbeats without progress, after which an agent is taken to have stopped working

Stage: TypeAlias = Literal["asked", "whole", "folding", "done"]


class Planned(Struct, frozen=True):
    """A task that is about to be sent.

    task: without its lease.
    seconds: that the coordinator predicts for it, transfers included; 0: unknown.
    """

    task: Task
    seconds: float = 0.0


class Spare(Struct, frozen=True):
    """An agent that may be asked while the phase is under way.

    agent: its name.
    seconds: that the coordinator predicts for its task.
    """

    agent: str
    seconds: float = 0.0


class TaskState(Struct, frozen=True):
    """How one task stands.

    task: as its agent was asked.
    place: position in the order of folding of the present phase; -1 for a carried task that is not
    part of it.
    asked: when it was sent, in the coordinator's seconds.
    seconds: predicted for it while it is open; once the update is whole, those that passed, without
    those in line for an upload slot. stage: asked (open), whole (its update is checked and in the
    spool), folding, or done.
    outcome: empty while it is open or whole, then `folded` or why not.
    digest: sha256 of the update that came.
    shown, moved: the last sign of progress (what the agent does, and how much is done), and when it
    was new.
    sent: when the last chunk of its update came; minus infinity before the first.
    lost: when its agent went; negative while it is there.
    late: its lease expired, so it no longer counts toward the quorum; its update is still accepted
    while the phase is open. waiting: since when its update waits for an upload slot; negative while
    it does not.
    waited: seconds that it waited for upload slots so far.
    reminded: when its agent was last told of it again, in the coordinator's seconds; minus infinity
    before the first time.
    resumed: it was sent by an earlier process, so this clock says nothing of it.
    carried: it is of an earlier round.
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
    late: bool = False
    waiting: float = -1.0
    waited: float = 0.0
    reminded: float = -math.inf
    resumed: bool = False
    carried: bool = False

    @property
    def key(self) -> Key:
        return self.task.key

    @property
    def open(self) -> bool:
        """Whether an update is still awaited."""
        return self.stage == "asked" and not self.outcome

    @property
    def working(self) -> bool:
        """Whether it is open and its agent is at it, as far as anyone can tell."""
        return self.open and self.lost < 0 and not self.late

    @property
    def away(self) -> bool:
        """Whether its agent went and is expected back. Simulated agents, whose tasks have no lease,
        do not come back.
        """
        return self.open and self.lost >= 0 and not self.late and self.task.lease > 0

    @property
    def came(self) -> bool:
        """Whether its update is in."""
        return self.stage in ("whole", "folding") or self.outcome == "folded"

    @property
    def due(self) -> float:
        """When its lease is over, unless new progress is shown before. Away from the coordinator,
        an agent can show none.
        """
        lease, began = self.task.lease, self.asked + self.waited
        if not lease or self.waiting >= 0:
            return math.inf
        if self.lost >= 0:
            return began + HARD * lease
        return min(
            max(began + lease, self.moved + MISSED * beats(lease), self.sent + IDLE),
            began + HARD * lease,
        )

    def reopened(self, now: float) -> TaskState:
        """The same task after its update was lost: it is asked for again."""
        return replace(
            self,
            stage="asked",
            outcome="",
            digest="",
            asked=now,
            moved=now,
            waited=0.0,
            late=False,
            resumed=True,
        )

    def took(self, now: float) -> float:
        """Seconds since it was asked, without those in line for an upload slot."""
        return now - self.asked - self.waited - (now - self.waiting if self.waiting >= 0 else 0.0)
