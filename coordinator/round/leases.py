"""Compute how long an agent may work on a task without progress (its lease), and count the leases
that agents let expire.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median_high, median_low

from msgspec.structs import replace

from coordinator.round.round_state import FORGET_AFTER, Agent, Round, Wasted
from coordinator.round.task_state import TaskState
from federated.task import Work

__all__ = [
    "FIRST_LEASE",
    "GROWTH_CAP",
    "MEDIAN_CAP",
    "MIN_LEASE",
    "SLACK",
    "compute_lease",
    "count_wasted",
    "estimate_typical_seconds",
]

MIN_LEASE = 10.0  # seconds; a shorter prediction says little about a device
# seconds: minimum for the first task of its kind, since a slow device may load and warm up long
FIRST_LEASE = 60.0
MAX_DOUBLINGS = 4  # of a lease
MAX_UNMEASURED = 3600.0  # seconds: limit of a prediction for an agent that was never measured
SLACK = 3.0  # lease over the expected seconds of a task, including its transfers
MEDIAN_CAP = 4.0  # limit of a prediction, in medians of the phase
# limit of a prediction, in seconds of the agent's own shortest task: a profile may claim any number
# of examples, and below three agents a median is the claim of one
GROWTH_CAP = 4.0


def estimate_seconds(agent: Agent | None, work: Work, seconds: float) -> float:
    """Return the seconds that a task should take, given the predicted ones.

    Predictions of training learn from rounds themselves. Others are multiplied by the error of the
    last one, as the coordinator measured it. Predictions start from claims of the agent, so they
    count for at most an hour before its first task was measured, and afterwards for at most
    `GROWTH_CAP` times its shortest task.
    """
    if agent is None or work not in agent.pace:
        return min(seconds, MAX_UNMEASURED)
    pace = agent.pace[work]
    expected = seconds if work == "train" else seconds * pace.ratio
    return min(expected, GROWTH_CAP * pace.shortest)


def estimate_typical_seconds(r: Round, work: Work, predicted: Iterable[tuple[str, float]]) -> float:
    """Return the median of the seconds that tasks should take, which a minority cannot move.

    predicted: agent and predicted seconds of each task. Only agents that the coordinator has
        measured count, if there are any: with two agents, a claim of one must not shorten the lease
        of the other.
    """
    tasks = [(r.agents.get(agent), seconds) for agent, seconds in predicted]
    measured = [
        estimate_seconds(agent, work, seconds)
        for agent, seconds in tasks
        if agent is not None and work in agent.pace
    ]
    if measured:
        return median_high(measured)
    return median_low([estimate_seconds(agent, work, seconds) for agent, seconds in tasks] or [0.0])


def compute_lease(r: Round, agent: Agent, work: Work, seconds: float) -> float:
    """Return the seconds of a task's lease, given the predicted ones; 0 if tasks have no leases.

    The lease doubles with each lease that the agent wasted, so that a device that is slower than
    predicted delivers in the end. Such devices are asked less often (see `Wasted`), so one that
    never delivers costs less and less.
    """
    if not r.rules.timeouts:
        return 0.0
    wasted = agent.wasted[work].leases if work in agent.wasted else 0
    least = max(r.heartbeat, MIN_LEASE if work in agent.pace or wasted else FIRST_LEASE)
    cap = MEDIAN_CAP * r.phase.typical if r.phase is not None and r.phase.typical else math.inf
    return (1 << min(wasted, MAX_DOUBLINGS)) * max(
        least, SLACK * min(estimate_seconds(agent, work, seconds), cap)
    )


def count_wasted(r: Round, state: TaskState, *, lenient: bool = False) -> Round:
    """Count a wasted lease of an agent that delivered nothing of this kind of work before in the
    phase, at most once per phase. It sits out the next rounds (see `Wasted`). An absent agent is
    excused if the phase waited for it for less than the lease.

    lenient: the first one has no consequence: the update came, only late, or the phase ends at its
        deadline, which may be before the lease.
    """
    agent, work, number = r.agents[state.task.agent], state.task.work, r.current_phase.round
    before = agent.wasted.get(work)
    if before is not None and number - before.round > FORGET_AFTER:
        before = None
    delivered = any(
        r.tasks[key].came for key in agent.tasks if key.work == work and r.tasks[key].place >= 0
    )
    least = min(state.task.lease, state.elapsed(r.now) if lenient else math.inf)
    excused = state.lost >= 0 and state.awaited(r.now) < least
    if excused or delivered or (before is not None and before.round == number):
        return r
    leases = before.leases + 1 if before is not None else 0 if lenient else 1
    agent = replace(agent, wasted={**agent.wasted, work: Wasted(leases, number)})
    return replace(r, agents=r.agents.set(agent.name, agent))
