"""Rules that depend only on the state of a round: whom to ask as a replacement, what to fold, when
to close a phase.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice
from statistics import median_high, median_low

from msgspec.structs import replace

from coordinator.round.actions import Abort, Action, Fold, Prepare, Relieve, Snapshot
from coordinator.round.round import RETURN, Agent, Phase, Round, entries, of, put
from coordinator.round.task_state import Spare, TaskState
from federated.task import Work

__all__ = ["CAP", "FIRST", "LEAST", "SLACK", "expected", "lease_of", "proceed", "typical"]

LEAST = 10.0  # seconds of a lease: below them, what a device was predicted to need says little
# seconds: the same for the first task of its kind, for which a slow device may load and warm up for
# long
FIRST = 60.0
DOUBLINGS = 4  # of a lease, at most
UNMEASURED = 3600.0  # seconds: a longer prediction is believed only of an agent that was measured
SLACK = 3.0  # times what a device is expected to need, its transfers included
CAP = 4.0  # times the phase's median: no prediction makes a lease longer
# seconds between tries to make room in a full spool: some updates then leave it together
RELIEF = 1.0


def proceed(r: Round, out: list[Action]) -> Round:
    """Apply every rule once. Whether the phase closes comes first: a phase that closes asks nobody
    else.
    """
    if r.phase is None or r.phase.closed:
        return r
    return save(settle(fold_next(replace_missing(close(r), out), out), out), out)


# ---- leases --------------------------------------------------------------------------------------


def expected(agent: Agent | None, work: Work, seconds: float) -> float:
    """Seconds that a task should take.

    Of a training the prediction, which learns from rounds itself; of other work, times how far off
    it was at the last one, by this clock. What an agent claims before it was ever measured counts
    for an hour at most.
    """
    if agent is None or work not in agent.pace:
        return min(seconds, UNMEASURED)
    return seconds * (agent.pace[work] if work != "train" else 1.0)


def typical(r: Round, work: Work, predicted: Iterable[tuple[str, float]]) -> float:
    """The median of what tasks should take, which a minority of claims cannot move. predicted:
    agent and seconds of each.

    Only agents that this clock has measured count, if there are any: of two agents, no claim of one
    shortens the lease of the other.
    """
    known = [(r.agents.get(agent), seconds) for agent, seconds in predicted]
    measured = [
        expected(agent, work, seconds)
        for agent, seconds in known
        if agent is not None and work in agent.pace
    ]
    if measured:
        return median_high(measured)
    return (
        median_low([expected(agent, work, seconds) for agent, seconds in known]) if known else 0.0
    )


def lease_of(r: Round, agent: Agent, work: Work, seconds: float) -> float:
    """Seconds of a task's lease, for a task that is predicted to take so many; 0 where tasks have
    none.

    It doubles with each lease that was wasted, so that a device that is slower than predicted
    delivers in the end. Such devices are asked less often (see `Wasted`), so that one that never
    delivers costs less and less.
    """
    if not r.rules.leases:
        return 0.0
    wasted = agent.wasted[work].leases if work in agent.wasted else 0
    least = LEAST if work in agent.pace or wasted else FIRST
    cap = CAP * r.phase.typical if r.phase is not None and r.phase.typical else math.inf
    return (1 << min(wasted, DOUBLINGS)) * max(
        least, SLACK * min(expected(agent, work, seconds), cap)
    )


# ---- replacement ---------------------------------------------------------------------------------


def replace_missing(r: Round, out: list[Action]) -> Round:
    """Asks replacements for agents that left, failed or are late; in buffered mode also for agents
    that have delivered.
    """
    phase = r.phase
    assert phase is not None
    if not phase.spares or phase.closing or phase.exhausted:
        return r
    missing = (
        phase.wanted - phase.working - len(phase.preparing) - (0 if phase.flowing else phase.came)
    )
    if missing <= 0:
        return r
    chosen = list(islice((spare.agent for spare in phase.spares if fits(r, phase, spare)), missing))
    exhausted = len(chosen) < missing  # the time left, too, only gets less
    if not chosen:
        return replace(r, phase=replace(phase, exhausted=exhausted))
    out += map(Prepare, chosen)
    asked = frozenset(chosen)
    left = tuple(spare for spare in phase.spares if spare.agent not in asked)
    phase = replace(phase, spares=left, exhausted=exhausted, preparing=phase.preparing | asked)
    return replace(r, phase=phase)


def fits(r: Round, phase: Phase, spare: Spare) -> bool:
    """Whether an agent is there, has nothing to do, and has the time."""
    agent = r.agents.get(spare.agent)
    if agent is None or not agent.ready or any(state.open for state in of(r, spare.agent)):
        return False
    return not phase.timed or spare.seconds <= phase.began + phase.limit - r.now


# ---- folding -------------------------------------------------------------------------------------


def fold_next(r: Round, out: list[Action]) -> Round:
    """One update at a time, in the order of keys, so that sums repeat bit for bit: an update waits
    for those before it that are being worked on.

    None waits where the spool is full, too many wait already, or the phase closes.
    """
    phase = r.phase
    assert phase is not None
    if phase.folding is not None or not phase.whole:
        return r
    hurry = phase.flowing or phase.closing or r.full or 0 < r.rules.most < len(phase.whole)
    place = min(phase.whole) if hurry else first_in_order(r, phase)
    if place not in phase.whole:
        return r if place == phase.first else replace(r, phase=replace(phase, first=place))
    key = phase.whole[place]
    out.append(Fold(key))
    r = put(r, replace(r.tasks[key], stage="folding"))
    assert r.phase is not None
    return replace(
        r,
        phase=replace(
            r.phase, folding=key, first=max(place, phase.first) if not hurry else phase.first
        ),
    )


def first_in_order(r: Round, phase: Phase) -> int:
    """The least place that is whole, or that others wait for."""
    place = phase.first
    while place < len(phase.order) and place not in phase.whole:
        state = r.tasks[phase.order[place]]
        if state.working and not state.carried:
            break
        place += 1
    return place


# ---- the end of a phase --------------------------------------------------------------------------


def close(r: Round) -> Round:
    """From the moment that there is a reason to close, the phase takes nobody else."""
    phase = r.phase
    assert phase is not None
    why = phase.closing or reason_to_close(r, phase)
    return r if why == phase.closing else replace(r, phase=replace(phase, closing=why))


def settle(r: Round, out: list[Action]) -> Round:
    """Once all that came is folded: what is still open goes on into the next round, or is given
    up.
    """
    assert r.phase is not None
    if not r.phase.closing or r.phase.whole or r.phase.folding is not None:
        return r
    for state in entries(r):
        if state.outcome:
            continue
        if r.phase.carries and may_carry(r, state):
            r = put(r, replace(state, carried=True, place=-1))
            continue
        outcome = "gone" if state.lost >= 0 else "stale" if state.carried else "late"
        reason = (
            "its weights are too old"
            if outcome == "stale"
            else f"round {state.task.round} is closed"
        )
        out.append(Abort(state.task, reason))
        r = put(r, replace(state, stage="done", outcome=outcome))
    phase = r.phase
    assert phase is not None
    if phase.work == "train":
        done = tuple(state for state in entries(r) if state.outcome)
        r = replace(r, trained=phase.round, settled=done, ended=r.now)
    return replace(r, phase=replace(phase, closed=True))


def reason_to_close(r: Round, phase: Phase) -> str:
    """Quorum, deadline, or nobody left who could bring more. Training waits for late agents until
    the deadline as long as nothing came.
    """
    if phase.came >= phase.quorum:
        return "quorum"
    if r.now >= phase.began + phase.limit:
        return "deadline"
    if (
        phase.working
        or phase.preparing
        or any(r.now - went < RETURN for went in phase.away.values())
    ):
        return ""
    if (
        phase.work == "train"
        and not phase.came
        and any(overdue(r.tasks[key]) for key in phase.order)
    ):
        return ""
    return "nobody left"


def overdue(state: TaskState) -> bool:
    """Whether its lease is over and its agent, which is there, may still answer."""
    return state.open and state.late and state.lost < 0


def may_carry(r: Round, state: TaskState) -> bool:
    """Whether its update would not be too old in the next round."""
    assert r.phase is not None
    return r.phase.round - (state.task.round - 1) <= r.rules.stale


def save(r: Round, out: list[Action]) -> Round:
    """A snapshot after so many folds; in a full spool as soon as nothing is left to fold, so that
    files can leave it.
    """
    phase = r.phase
    assert phase is not None
    if r.saving:
        return r
    due = 0 < r.rules.every <= len(r.unkept) and len(r.unkept) > r.refused
    if r.full and not phase.whole and phase.folding is None and r.now - r.relieved >= RELIEF:
        r = replace(r, relieved=r.now)
        if not r.unkept:
            out.append(Relieve(False))
            return replace(r, full=False)
        due = True
    if not due:
        return r
    out.append(Snapshot(r.unkept))
    return replace(r, saving=True)
