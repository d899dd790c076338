"""Decide the next actions of a round from its state alone: when to ask replacement agents, which
update to fold next, when to request a snapshot, and when to close the phase.
"""

from __future__ import annotations

from itertools import islice

from msgspec.structs import replace

from coordinator.round.leases import count_wasted
from coordinator.round.round_actions import Abort, Action, Fold, Prepare, Relieve, Snapshot
from coordinator.round.round_state import Phase, Round, list_phase_tasks, list_tasks, put_task
from coordinator.round.task_state import RETURN_TIME, Spare, TaskState

__all__ = ["RELIEF_PAUSE", "end_probe", "proceed"]

# seconds between attempts to make room in a full spool, so that several updates leave it together
RELIEF_PAUSE = 1.0
# most snapshots of a phase, unless the spool is full: each holds every agent, task and weight, so
# that a fixed number of updates between them would cost large fleets more than the updates do
SNAPSHOTS = 4


def proceed(r: Round, out: list[Action]) -> Round:
    """Apply every rule once. `close` comes first, since a closing phase sends no further tasks."""
    if r.phase is None or r.phase.closed:
        return r
    return request_snapshot(settle(fold_next(replace_missing(close(r), out), out), out), out)


# ---- replacement ---------------------------------------------------------------------------------


def replace_missing(r: Round, out: list[Action]) -> Round:
    """Ask replacements for agents that left, failed or are late; in buffered mode also for agents
    that have delivered.
    """
    phase = r.current_phase
    if not phase.spares or phase.closing or phase.exhausted:
        return r
    missing = (
        phase.wanted - phase.working - len(phase.preparing) - (0 if phase.flowing else phase.came)
    )
    if missing <= 0:
        return r
    available = (spare.agent for spare in phase.spares if is_available(r, phase, spare))
    chosen = frozenset(islice(available, missing))
    out += map(Prepare, (spare.agent for spare in phase.spares if spare.agent in chosen))
    return replace(
        r,
        phase=replace(
            phase,
            spares=tuple(spare for spare in phase.spares if spare.agent not in chosen),
            exhausted=len(chosen) < missing,  # the remaining time only decreases
            preparing=phase.preparing | chosen,
        ),
    )


def is_available(r: Round, phase: Phase, spare: Spare) -> bool:
    """Return True if a spare is ready, idle, and fast enough for the remaining time."""
    agent = r.agents.get(spare.agent)
    if agent is None or not agent.ready or any(state.open for state in list_tasks(r, spare.agent)):
        return False
    return not phase.timed or spare.seconds <= phase.began + phase.limit - r.now


# ---- folding -------------------------------------------------------------------------------------


def fold_next(r: Round, out: list[Action]) -> Round:
    """Fold one update at a time, in the order of keys, so that sums repeat bit for bit.

    An update waits for earlier ones that agents work on, except probes, unless the spool is full,
    too many updates wait, or the phase closes.
    """
    phase = r.current_phase
    if phase.folding is not None or not phase.whole:
        return r
    hurry = phase.flowing or phase.closing or r.full or 0 < r.rules.most < len(phase.whole)
    place = min(phase.whole) if hurry else find_next_place(r, phase)
    if place not in phase.whole:
        return r if place == phase.first else replace(r, phase=replace(phase, first=place))
    key, first = phase.whole[place], phase.first if hurry else max(place, phase.first)
    out.append(Fold(key))
    r = put_task(r, replace(r.tasks[key], stage="folding"))
    return replace(r, phase=replace(r.current_phase, folding=key, first=first))


def find_next_place(r: Round, phase: Phase) -> int:
    """Return the lowest place with a complete update, or with an update to wait for."""
    place = phase.first
    while place < len(phase.order) and place not in phase.whole:
        state = r.tasks[phase.order[place]]
        if state.working and not state.carried and not state.probe:
            break
        place += 1
    return place


# ---- the end of a phase --------------------------------------------------------------------------


def close(r: Round) -> Round:
    """Close the phase to further agents as soon as there is a reason."""
    phase = r.current_phase
    why = phase.closing or find_reason_to_close(r, phase)
    return r if why == phase.closing else replace(r, phase=replace(phase, closing=why))


def settle(r: Round, out: list[Action]) -> Round:
    """Carry open tasks into the next round, or abandon them, once all updates are folded. Probes
    stay open until their leases end.
    """
    phase = r.current_phase
    if not phase.closing or phase.whole or phase.folding is not None:
        return r
    for state in list_phase_tasks(r):
        if state.outcome:
            continue
        # its update would not be too old in the next round
        if phase.carries and phase.round - state.task.round < r.rules.stale:
            r = put_task(r, replace(state, carried=True, place=-1, probe=False))
            continue
        if state.probe and (state.working or state.away):
            r = put_task(r, replace(state, carried=True, place=-1))
            r = replace(r, due=min(r.due, state.due))
            continue
        outcome = "gone" if state.lost >= 0 else "stale" if state.carried else "late"
        reason = (
            "its weights are too old"
            if outcome == "stale"
            else f"round {state.task.round} is closed"
        )
        if phase.closing != "quorum" and outcome != "stale" and r.rules.timeouts:
            # count the lease as wasted: it may be longer than the configured deadline, and a silent
            # agent must not delay every round until the deadline
            r = count_wasted(r, state, lenient=phase.closing == "deadline")
        out.append(Abort(state.task, reason))
        r = put_task(r, replace(state, stage="done", outcome=outcome))
    if phase.work == "train":
        done = tuple(state for state in list_phase_tasks(r) if state.outcome)
        r = replace(r, trained=phase.round, settled=done, ended=r.now)
    return replace(r, phase=replace(r.current_phase, closed=True))


def end_probe(r: Round, state: TaskState, out: list[Action]) -> Round:
    """Give up a probe of a closed phase."""
    out.append(Abort(state.task, f"round {state.task.round} is closed"))
    return put_task(r, replace(state, stage="done", outcome="late"))


def find_reason_to_close(r: Round, phase: Phase) -> str:
    """Return why the phase closes now; empty if it stays open.

    It closes at its quorum or deadline, or when no remaining agent can contribute. A training
    without any update waits for late agents until the deadline.
    """
    if phase.came >= phase.quorum:
        return "quorum"
    if r.now >= phase.began + phase.limit:
        return "deadline"
    if phase.working or phase.preparing:
        return ""
    if any(r.now - went < RETURN_TIME for went in phase.away.values()):
        return ""
    tasks = map(r.tasks.__getitem__, phase.order if phase.work == "train" else ())
    if not phase.came and any(
        task.open and (task.late or task.probe) and task.lost < 0 for task in tasks
    ):
        return ""
    return "no agents left"


def request_snapshot(r: Round, out: list[Action]) -> Round:
    """Request a snapshot every few folds (more of them in a large phase), and in a full spool as
    soon as nothing is left to fold, so that files can leave it.
    """
    phase = r.current_phase
    if r.saving:
        return r
    least = max(r.rules.every, len(phase.order) // SNAPSHOTS)
    due = r.rules.every > 0 and len(r.unkept) >= least and len(r.unkept) > r.refused
    if r.full and not phase.whole and phase.folding is None and r.now - r.relieved >= RELIEF_PAUSE:
        r = replace(r, relieved=r.now)
        if not r.unkept:
            out.append(Relieve(False))
            return replace(r, full=False)
        due = True
    if not due:
        return r
    out.append(Snapshot(r.unkept))
    return replace(r, saving=True)
