"""The values of a round: the agents, the state of each task, the phase under way, and queries on
them. Nothing here changes or waits.

Maps are persistent: a changed copy shares all but a few nodes with the original, so a step costs
the same with ten agents as with thousands. Counts that rules need (who is at work, what came) are
kept in the phase. `put` is the only place that changes a task, so they are always right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from immutables import Map
from msgspec import Struct
from msgspec.structs import replace

from coordinator.round.plan import RoundPlan
from coordinator.round.task_state import Spare, TaskState
from federated.task import Key, Profile, Work

__all__ = [
    "RETURN",
    "Agent",
    "Phase",
    "Round",
    "Rules",
    "Wasted",
    "awaited",
    "carried",
    "entries",
    "of",
    "put",
]

REST = 32  # rounds that an agent sits out, at most
# seconds in which an agent that went may come back to a phase that waits for nobody else
RETURN = 20.0


class Wasted(Struct, frozen=True):
    """Leases of one kind of work that ended in a row while their agent was online and delivered
    nothing.

    leases: how many, at most one for each phase.
    round: in which the last one ended.
    """

    leases: int
    round: int

    @property
    def rests(self) -> int:
        """The last round in which the agent is not asked for such work, unless nobody else can be:
        it sits out 1, 2, 4, ... rounds.
        """
        return self.round + min(1 << (self.leases - 1), REST)


class Agent(Struct, frozen=True):
    """An agent as the coordinator sees it.

    name: its name.
    session: of its process; empty before its first status.
    online: whether it is connected.
    seen: when it was last heard, in the coordinator's seconds.
    profile: what it measured of itself; None until it said so for the present run.
    state: what it says it does: idle, download, train, calibrate, evaluate or send.
    submodel: the name of the submodel that it was asked for last.
    loss: of its last training, as it says.
    refused: why it cannot take part; empty where it can.
    excluded: why this run does not select it; empty where it does.
    paused: why it takes no task at present; empty where it does.
    tasks: keys of its tasks in the present phase and of those carried from earlier rounds.
    pace: kind of work -> measured over predicted seconds of its last task, both by the coordinator.
    wasted: kind of work -> the leases that it wasted since its last update of that kind.
    """

    name: str
    session: str = ""
    online: bool = False
    seen: float = 0.0
    profile: Profile | None = None
    state: str = "idle"
    submodel: str = ""
    loss: float = math.nan
    refused: str = ""
    excluded: str = ""
    paused: str = ""
    tasks: tuple[Key, ...] = ()
    pace: Mapping[str, float] = {}
    wasted: Mapping[str, Wasted] = {}

    @property
    def ready(self) -> bool:
        """Whether it can be asked."""
        return not self.absence

    @property
    def absence(self) -> str:
        """Why it cannot be asked at present, in words; empty where it can."""
        if self.refused:
            return f"refused: {self.refused}"
        if not self.online:
            return "not here"
        if self.profile is None:
            return "has not measured itself yet"
        return self.excluded or (f"paused: {self.paused}" if self.paused else "")

    def resting(self, work: Work, round: int) -> str:
        """Why it sits out a round, in words; empty where it does not."""
        wasted = self.wasted.get(work)
        if wasted is None or round > wasted.rests:
            return ""
        return (
            f"its last {wasted.leases} tasks timed out, so it sits out until round {wasted.rests}"
        )


class Rules(Struct, frozen=True):
    """Settings that hold for a whole run.

    stale: rounds that an update may be late; -1: late updates are dropped.
    every: folds between snapshots; 0: no snapshots.
    most: updates that may wait in the spool for earlier names; 0: any number.
    durable: whether received updates survive this process, so that they stay in the spool until a
    snapshot holds them.
    leases: whether tasks have leases; those of simulated devices have none, because their speeds
    are made up.
    """

    stale: int = -1
    every: int = 0
    most: int = 0
    durable: bool = True
    leases: bool = True


class Phase(Struct, frozen=True):
    """A phase: training, calibration or evaluation.

    work: of its tasks.
    round: the number of the round that it belongs to.
    began, limit: when it began, and after how many seconds it closes.
    quorum: updates that close it.
    wanted: agents to be at work at the same time; used only while there are spares.
    spares: agents that may be asked in place of others, in this order.
    exhausted: none of the spares can be asked until an agent becomes ready or free, so a step need
    not look at them.
    preparing: agents whose tasks are being made.
    flowing: buffered mode: updates are folded in order of arrival, and tasks carried from earlier
    rounds count toward the quorum. carries: open tasks go on into later rounds, and those carried
    so far are part of this phase.
    timed: spares are asked only if the time left suffices.
    typical: median of the seconds expected for its tasks.
    order: keys by place.
    first: the least place that may still be folded in order.
    whole: place -> key of updates that wait to be folded.
    folding: the update being folded.
    came, working: how many of the counted tasks have come, and how many agents are at work on one.
    away: counted tasks whose agents went and may come back -> when they went.
    closing: why it takes nobody else; empty while it is open.
    closed: everything is folded and settled.
    """

    work: Work
    round: int
    began: float
    limit: float = math.inf
    quorum: int = 1
    wanted: int = 0
    spares: tuple[Spare, ...] = ()
    exhausted: bool = False
    preparing: frozenset[str] = frozenset()
    flowing: bool = False
    carries: bool = False
    timed: bool = True
    typical: float = 0.0
    order: tuple[Key, ...] = ()
    first: int = 0
    whole: Map[int, Key] = Map()
    folding: Key | None = None
    came: int = 0
    working: int = 0
    away: Map[Key, float] = Map()
    closing: str = ""
    closed: bool = False

    def counts(self, task: TaskState) -> bool:
        """Whether a task counts toward the quorum."""
        return task.place >= 0 and (self.flowing or not task.carried)


class Round(Struct, frozen=True):
    """The coordinator's view between two events.

    rules: of the run.
    now: when the last event happened, in the coordinator's seconds.
    agents: by name.
    tasks: of the phase under way, or of the last one, and carried ones.
    phase: the one under way, or the last one.
    plan: of the round under way, or of the last one.
    trained: the last round whose training has closed.
    settled: the tasks of that training, as it left them; those that go on into later rounds are not
    among them.
    ended: when it closed.
    unkept: updates that are folded and in no snapshot, so their files stay in the spool.
    saving: whether a snapshot is under way.
    refused: length of `unkept` when the last snapshot was tried and not written; it is tried again
    after the next fold.
    waiting: tasks whose updates wait for an upload slot.
    full, relieved: whether the spool has no room, and when room was last made.
    due: no lease ends and no agent falls silent before.
    """

    rules: Rules = Rules()
    now: float = 0.0
    agents: Map[str, Agent] = Map()
    tasks: Map[Key, TaskState] = Map()
    phase: Phase | None = None
    plan: RoundPlan | None = None
    trained: int = 0
    settled: tuple[TaskState, ...] = ()
    ended: float = 0.0
    unkept: tuple[Key, ...] = ()
    saving: bool = False
    refused: int = 0
    waiting: frozenset[Key] = frozenset()
    full: bool = False
    relieved: float = -math.inf
    due: float = -math.inf


# ---- queries -------------------------------------------------------------------------------------


def entries(r: Round) -> list[TaskState]:
    """The tasks of the phase under way, or of the last one, in the order of folding."""
    return [] if r.phase is None else [r.tasks[key] for key in r.phase.order]


def carried(r: Round) -> list[TaskState]:
    """Tasks of earlier phases that no phase has settled and the present one does not settle, by
    key.
    """
    return sorted(
        (task for task in r.tasks.values() if task.carried and task.place < 0),
        key=lambda task: task.key,
    )


def of(r: Round, agent: str) -> list[TaskState]:
    """An agent's tasks, in the order in which it was asked."""
    known = r.agents.get(agent)
    return [] if known is None else [r.tasks[key] for key in known.tasks]


def awaited(r: Round, key: Key, attempt: int) -> TaskState | None:
    """The task that an update or failure is about; None where this attempt at it was not asked
    for.
    """
    task = r.tasks.get(key)
    return task if task is not None and task.task.attempt == attempt else None


# ---- changes -------------------------------------------------------------------------------------


def put(r: Round, task: TaskState) -> Round:
    """The round with a task changed or added, and its phase's counts brought up to date."""
    key, phase = task.key, r.phase
    old = r.tasks.get(key)
    if phase is not None and phase.exhausted and old is not None and old.open and not task.open:
        phase = replace(phase, exhausted=False)  # its agent may be free now
    if phase is not None and phase.counts(task):
        phase = counted(phase, old, task)
    if phase is not None and task.place >= 0:
        waits = task.stage == "whole" and not task.outcome
        if waits and task.place not in phase.whole:
            phase = replace(
                phase, whole=phase.whole.set(task.place, key), first=min(phase.first, task.place)
            )
        elif not waits and task.place in phase.whole:
            phase = replace(phase, whole=phase.whole.delete(task.place))
    return replace(r, tasks=r.tasks.set(key, task), phase=phase)


def counted(phase: Phase, old: TaskState | None, new: TaskState) -> Phase:
    before = (False, False, False) if old is None else (old.came, old.working, old.away)
    after = new.came, new.working, new.away
    if before == after and not (old is not None and new.away and old.lost != new.lost):
        return phase
    away = phase.away.delete(new.key) if before[2] else phase.away
    return replace(
        phase,
        came=phase.came + after[0] - before[0],
        working=phase.working + after[1] - before[1],
        away=away.set(new.key, new.lost) if after[2] else away,
        # others wait for it again
        first=min(phase.first, new.place) if after[1] and not before[1] else phase.first,
    )
