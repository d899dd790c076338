"""Compute the next state of a round and the actions to take, from its present state and an event:
the pure function `step`, without clock, socket, disk or callback.

One handler per event records what happened and adds the actions that answer it. Then `proceed`
decides what follows from the new state of the round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from coordinator.observe.events import LeaseExpired
from coordinator.round import agent_handlers as agents
from coordinator.round import round_and_phase_handlers as phases
from coordinator.round import round_events as on
from coordinator.round import update_handlers as updates
from coordinator.round.leases import count_wasted
from coordinator.round.next_round_actions import end_probe, proceed
from coordinator.round.round_actions import Action, Report
from coordinator.round.round_state import Round, put_task
from coordinator.round.task_state import TaskState

__all__ = ["step"]


def step(r: Round, event: on.RoundEvent) -> tuple[Round, list[Action]]:
    """Return the round after an event, and the actions to take. An event that changes nothing
    returns the same round object.
    """
    out: list[Action] = []
    before = replace(r, now=max(r.now, event.now))
    after = proceed(HANDLERS[type(event)](before, event, out), out)
    return (r if after is before else after), out


def tick(r: Round, e: on.Ticked, out: list[Action]) -> Round:
    """Disconnect silent agents and expire leases. Most ticks find nothing due."""
    r = update_queue(r, e)
    if r.now < r.due:
        return r
    due, silence = math.inf, agents.limit_silence(r)
    for agent in list(r.agents.values()) if r.rules.timeouts else ():
        if agent.online and r.now - agent.seen > silence:
            r = agents.disconnect(r, agent.name, f"silent for {silence:.0f} s", out)
        elif agent.online:
            due = min(due, agent.seen + silence)
    for state in list(r.tasks.values()):
        if not (state.working or state.away) or (state.place < 0 and not state.probe):
            continue
        if r.now > state.due:
            r = expire_lease(r, state, out)
        else:
            due = min(due, state.due)
    return replace(r, due=due)


def update_queue(r: Round, e: on.Ticked) -> Round:
    """Record which updates wait for an upload slot. This time does not count against a lease."""
    if not e.queued and not e.unqueued:
        return r
    for key in e.queued | e.unqueued:
        state = r.tasks.get(key)
        if state is None or not state.open:
            continue
        if key in e.queued:
            r = put_task(r, replace(state, waiting=r.now))
        elif state.waiting >= 0:
            r = agents.put_due_task(r, agents.end_queue_wait(r, state))
    return replace(r, waiting=(r.waiting | e.queued) - e.unqueued)


def expire_lease(r: Round, state: TaskState, out: list[Action]) -> Round:
    """Mark a task as late; give it up if its phase has closed."""
    out.append(Report(LeaseExpired(state.task.agent, r.now - state.asked)))
    r = put_task(count_wasted(r, state), replace(state, late=True))
    return end_probe(r, r.tasks[state.key], out) if state.outlasting else r


Handler = Callable[[Round, Any, list[Action]], Round]
HANDLERS: Mapping[type, Handler] = MappingProxyType(
    {
        on.AgentBeat: agents.record_heartbeat,
        on.AgentConnected: agents.connect,
        on.AgentLeft: agents.leave,
        on.AgentsBarred: agents.revoke,
        on.CardChanged: agents.forget_profiles,
        on.ChunkCame: updates.record_chunk,
        on.PhaseBegan: phases.begin_phase,
        on.ProfileCame: agents.update_profile,
        on.Resumed: phases.resume,
        on.RoundPlanned: phases.plan_round,
        on.RoundStored: phases.store_round,
        on.SnapshotTaken: updates.finish_snapshot,
        on.SpoolFilled: updates.mark_full,
        on.TaskAdded: phases.add_task,
        on.TaskFailed: updates.record_failure,
        on.TasksDropped: phases.drop_tasks,
        on.Ticked: tick,
        on.TransfersRestored: agents.restore_transfers,
        on.UpdateCame: updates.accept_update,
        on.UpdateFolded: updates.finish_fold,
        on.UpdateLost: updates.reopen_task,
        on.UpdateOffered: updates.answer_offer,
        on.UpdateRefused: updates.refuse_update,
    }
)
