"""Define the coordinator's state between two events, as immutable values with queries on them: the
agents, their tasks, the current phase and the round's plan.

Maps are immutable: a changed copy shares all but a few nodes with the original, so a step costs
the same with ten agents as with thousands. A phase keeps the counts that rules need, such as the
agents at work. Only `put_task` changes tasks, so the counts are always right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from immutables import Map
from msgspec import Struct
from msgspec.structs import replace

from coordinator.assign.agent_track_record import Standing
from coordinator.assign.decisions import Verdict
from coordinator.round.task_state import Spare, TaskState
from federated.runtime.unit_formatting import format_count
from federated.task import QUICKEST, Key, Profile, Work
from federated.wire.messages import Condition
from models.submodel import Submodel

__all__ = [
    "FORGET_AFTER",
    "HEARTBEATS",
    "Agent",
    "Pace",
    "Phase",
    "Round",
    "RoundPlan",
    "Rules",
    "Wasted",
    "find_least_heartbeat",
    "find_task",
    "is_expected",
    "list_carried_tasks",
    "list_phase_tasks",
    "list_tasks",
    "put_task",
]

# heartbeats of the whole fleet per second, and the longest interval of an agent's heartbeats in
# seconds. A lease is at least as long as the interval, so a fleet for which it would be longer
# sends more heartbeats instead, unless its broker would drop them (see `Rules.beats`).
HEARTBEATS, RAREST = 150, 120.0
# the least interval where tasks have no leases: heartbeats only show what agents do, and report a
# change of it once a second at most (see `federated.task.heartbeat_pause`)
UNTIMED = 5.0
MAX_REST = 32  # maximum number of rounds that an agent sits out
FORGET_AFTER = 2 * MAX_REST  # rounds after which a wasted lease no longer counts


@dataclass(frozen=True)
class RoundPlan:
    """The submodels that agents train in a round, and when it closes: all decisions that a resumed
    run cannot make again.

    round: its number, from 1.
    attempt: number of its tasks; a resumed round keeps it.
    chosen: agent -> submodel.
    fleet: submodel and number of agents that would get it.
    surveys: agent -> the results of its survey.
    verdicts: agent -> the decision about it.
    standings: agent -> its standing before the round.
    limit: seconds after which the training closes.
    needed: number of updates that close it.
    wanted: number of agents to be at work at the same time.
    probed: the chosen agents that are suspects, so that the round does not wait for them.
    most_examples: largest number of examples with which an update counts; 0: no limit.
    """

    round: int
    attempt: int
    chosen: dict[str, Submodel]
    fleet: tuple[tuple[Submodel, int], ...]
    surveys: dict[str, dict[str, Any]]
    verdicts: dict[str, Verdict]
    standings: dict[str, Standing]
    limit: float
    needed: int
    wanted: int
    probed: frozenset[str] = frozenset()
    most_examples: int = 0


class Wasted(Struct, frozen=True):
    """Leases of one kind of work that expired although their agent was online.

    leases: number of wasted leases, at most one per phase. A deadline missed for the first time
        counts 0: the agent gets a smaller submodel at once. They count until `FORGET_AFTER` rounds
        after the last one, so that an agent that alternates rests longer each time.
    round: round of the last wasted lease.
    delivered: whether the agent has delivered this kind of work since then.
    """

    leases: int
    round: int
    delivered: bool = False

    @property
    def rests_until(self) -> int:
        """The last round that the agent sits out: 1, 2, 4, ... rounds after the last wasted
        lease. It is selected earlier only if no other agent is available.
        """
        return self.round + (min(1 << (self.leases - 1), MAX_REST) if self.leases else 0)


class Pace(Struct, frozen=True):
    """The coordinator's measurements of an agent's tasks of one kind of work.

    ratio: measured over predicted seconds of the last task. It is reset to 1 when the agent sends
        new timings, from which predictions start.
    shortest: seconds of its shortest task.
    """

    ratio: float
    shortest: float


class Agent(Struct, frozen=True):
    """An agent as the coordinator sees it.

    name: unique in the run.
    session: identifies its process; empty before its first status.
    online: whether it is connected.
    seen: time of its last message, in the coordinator's seconds.
    profile: its measurements of itself; None until it sent them for the present run.
    state: idle, download, train, calibrate, evaluate or send, as it reports; gone when offline.
    submodel: name of the submodel of its last training.
    loss: loss of its last training, as it reports.
    condition: of its device, as it reports.
    refused: reason why the run cannot use it; empty if it can.
    excluded: reason why this run does not select it; empty if it may.
    paused: reason why it accepts no task at present; empty if it does.
    tasks: keys of its tasks in the present phase and of those carried from earlier rounds.
    pace: kind of work -> how long its tasks took.
    wasted: kind of work -> the leases that it wasted.
    """

    name: str
    session: str = ""
    online: bool = False
    seen: float = 0.0
    profile: Profile | None = None
    state: str = "idle"
    submodel: str = ""
    loss: float = math.nan
    condition: Condition = Condition()
    refused: str = ""
    excluded: str = ""
    paused: str = ""
    tasks: tuple[Key, ...] = ()
    pace: Mapping[str, Pace] = {}
    wasted: Mapping[str, Wasted] = {}

    @property
    def ready(self) -> bool:
        """True if it can be given a task."""
        return not self.absence

    @property
    def absence(self) -> str:
        """The reason why it cannot be given a task at present; empty if it can."""
        if self.refused:
            return f"refused: {self.refused}"
        if not self.online:
            return "not connected"
        if self.profile is None:
            return "has not measured itself yet"
        return self.excluded or (f"paused: {self.paused}" if self.paused else "")

    @property
    def suspect(self) -> bool:
        """True if its last task of any kind of work timed out."""
        return any(one.leases and not one.delivered for one in self.wasted.values())

    def explain_rest(self, work: Work, round: int) -> str:
        """Return why it sits out a round; empty if it does not."""
        wasted = self.wasted.get(work)
        if wasted is None or wasted.delivered or round > wasted.rests_until:
            return ""
        return (
            f"{format_count(wasted.leases, 'task')} timed out, so it is not selected until round "
            f"{wasted.rests_until}"
        )


class Rules(Struct, frozen=True):
    """Settings of a whole run.

    stale: maximum age of a late update, in rounds; -1: late updates are dropped.
    every: folds between snapshots; 0: no snapshots.
    most: maximum number of updates that wait in the spool until earlier ones in the order of
        folding arrive; 0: unlimited.
    durable: whether received updates survive this process, so that they stay in the spool until a
        snapshot holds them.
    timeouts: whether tasks have leases, and silent agents are disconnected. Not in a simulation:
        the speeds of its devices are made up, and a busy machine delays their messages.
    beats: most heartbeats of the whole fleet per second that the broker delivers, however far apart
        those of an agent then are; 0: no such limit is known.
    """

    stale: int = -1
    every: int = 0
    most: int = 0
    durable: bool = True
    timeouts: bool = True
    beats: int = 0


class Phase(Struct, frozen=True):
    """A training, calibration or evaluation.

    work: kind of work of its tasks.
    round: number of its round.
    began: time when it began, in the coordinator's seconds.
    limit: seconds after which it closes.
    quorum: number of updates that close it.
    wanted: number of agents to be at work at the same time; used only while there are spares.
    spares: agents that may replace others, in this order.
    exhausted: True if no spare is available until an agent becomes ready or free.
    preparing: agents whose tasks are being made.
    flowing: buffered mode: updates are folded in order of arrival, and tasks carried from earlier
        rounds count toward the quorum.
    carries: open tasks are carried into later rounds, and those carried so far are part of this
        phase.
    timed: spares are used only if they are fast enough for the remaining time.
    typical: median of the seconds expected for its tasks.
    order: keys of the tasks in the order of folding.
    first: index in `order` of the next task to fold.
    whole: index in `order` -> key of each complete update that waits to be folded.
    folding: the update being folded.
    came: number of counted tasks with an update.
    working: number of agents at work on counted tasks.
    away: counted tasks with lost agents that may return -> time of the loss.
    closing: reason why no further agent gets a task; empty while it is open.
    closed: whether everything is folded and settled.
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
        """Return True if a task counts toward the quorum."""
        return task.place >= 0 and not task.probe and (self.flowing or not task.carried)


class Round(Struct, frozen=True):
    """The coordinator's state between two events.

    rules: settings of the run.
    now: time of the last event, in the coordinator's seconds.
    agents: name -> agent.
    tasks: key -> task of the current phase, or of the last one, and carried ones.
    phase: the current phase, or the last one.
    plan: plan of the current round; None between rounds.
    trained: number of the last round with a closed training.
    settled: final states of that training's tasks, without those carried into later rounds.
    ended: time when that training closed.
    unkept: updates that are folded but in no snapshot, so their files stay in the spool.
    saving: whether a snapshot is in progress.
    refused: length of `unkept` when the last snapshot failed. The next snapshot is tried once
        `unkept` is longer.
    waiting: tasks with updates that wait for an upload slot.
    full: whether the spool has no room.
    relieved: time when room was last requested.
    due: time before which no lease ends and no agent falls silent.
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

    @property
    def heartbeat(self) -> float:
        """The least seconds between two heartbeats of an agent; 0: agents choose."""
        least = find_least_heartbeat(len(self.agents), self.rules.beats)
        return least if self.rules.timeouts else max(least, UNTIMED)

    @property
    def current_phase(self) -> Phase:
        """The current phase, or the last one. AssertionError: no phase has begun."""
        assert self.phase is not None, "no phase has begun"
        return self.phase


# ---- queries -------------------------------------------------------------------------------------


def find_least_heartbeat(agents: int, limit: int = 0) -> float:
    """Return the least seconds between two heartbeats of each of so many agents, so that those of a
    large fleet do not keep the coordinator busy; 0: agents choose. It changes when a fleet doubles.

    limit: see `Rules.beats`.
    """
    rounded = 1 << agents.bit_length()
    seconds = max(min(rounded / HEARTBEATS, RAREST), rounded / limit if limit else 0.0)
    return 0.0 if seconds <= QUICKEST else seconds


def list_phase_tasks(r: Round) -> list[TaskState]:
    """Return the tasks of the current phase, or of the last one, in the order of folding."""
    return [] if r.phase is None else [r.tasks[key] for key in r.phase.order]


def list_carried_tasks(r: Round) -> list[TaskState]:
    """Return open tasks of earlier phases that do not belong to the present one, by key."""
    return sorted(
        (task for task in r.tasks.values() if task.carried and task.place < 0),
        key=lambda task: task.key,
    )


def list_tasks(r: Round, agent: str) -> list[TaskState]:
    """Return an agent's tasks, in the order in which they were sent."""
    return [r.tasks[key] for key in r.agents[agent].tasks] if agent in r.agents else []


def find_task(r: Round, key: Key, attempt: int) -> TaskState | None:
    """Return the task of an update or failure; None if there is no task with this attempt."""
    task = r.tasks.get(key)
    return task if task is not None and task.task.attempt == attempt else None


def is_expected(r: Round, key: Key, attempt: int) -> bool:
    """Return True if the update of a task is still expected."""
    state = find_task(r, key, attempt)
    return state is not None and state.open


# ---- changes -------------------------------------------------------------------------------------


def put_task(r: Round, task: TaskState) -> Round:
    """Return the round with a task changed or added, and its phase's counts updated."""
    key, phase = task.key, r.phase
    old = r.tasks.get(key)
    if phase is not None and phase.exhausted and old is not None and old.open and not task.open:
        phase = replace(phase, exhausted=False)  # its agent may be free now
    if phase is not None and phase.counts(task):
        phase = update_counts(phase, old, task)
    if phase is not None and task.place >= 0:
        waits = task.stage == "whole" and not task.outcome
        if waits and task.place not in phase.whole:
            first = min(phase.first, task.place)
            phase = replace(phase, whole=phase.whole.set(task.place, key), first=first)
        elif not waits and task.place in phase.whole:
            phase = replace(phase, whole=phase.whole.delete(task.place))
    return replace(r, tasks=r.tasks.set(key, task), phase=phase)


def update_counts(phase: Phase, old: TaskState | None, new: TaskState) -> Phase:
    """Return the phase with its counts updated for a changed or added task."""
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
        # later updates in the order wait for it again
        first=min(phase.first, new.place) if after[1] and not before[1] else phase.first,
    )
