"""`step(round, event) -> (round, actions)`: no clock, socket, disk or callback.

One handler per event writes down what happened and answers it. Then `proceed` looks at where the
round stands and decides what follows. An event that changes nothing gives the same round back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from coordinator.observe.events import LeaseExpired
from coordinator.round import agents, phases, updates
from coordinator.round import round_events as on
from coordinator.round.actions import Action, Report
from coordinator.round.round import Round, Wasted, put
from coordinator.round.rules import proceed
from coordinator.round.task_state import TaskState
from federated.task import Key

__all__ = ["step"]


def step(r: Round, event: on.RoundEvent) -> tuple[Round, list[Action]]:
    """What the round becomes, and what is to be done. The same round where the event changed
    nothing.
    """
    out: list[Action] = []
    before = replace(r, now=max(r.now, event.now))
    after = proceed(HANDLERS[type(event)](before, event, out), out)
    return (r if after is before else after), out


def tick(r: Round, e: on.Ticked, out: list[Action]) -> Round:
    """All that time alone brings about: silent agents, and leases that are over. Most ticks find
    that nothing is due.
    """
    r = line_up(r, e.waiting)
    if r.now < r.due:
        return r
    for agent in list(r.agents.values()):
        if agent.online and r.now - agent.seen > agents.SILENCE:
            r = agents.lose(r, agent.name, f"silent for {agents.SILENCE:.0f} s", out)
    due = min(
        (agent.seen + agents.SILENCE for agent in r.agents.values() if agent.online),
        default=math.inf,
    )
    for state in list(r.tasks.values()):
        if not (state.working or state.away) or state.place < 0:
            continue
        ends = state.due
        if r.now > ends:
            r = expire(r, state, out)
        elif ends < due:
            due = ends
    return replace(r, due=due)


def line_up(r: Round, waiting: frozenset[Key]) -> Round:
    """Time in line for an upload slot is not the agent's."""
    if waiting is r.waiting or waiting == r.waiting:
        return r
    for key in waiting ^ r.waiting:
        state = r.tasks.get(key)
        if state is None or not state.open:
            continue
        if key in waiting:
            r = put(r, replace(state, waiting=r.now))
        elif state.waiting >= 0:
            state = agents.waited(r, state)
            r = replace(put(r, state), due=min(r.due, state.due))
    return replace(r, waiting=waiting)


def expire(r: Round, state: TaskState, out: list[Action]) -> Round:
    out.append(Report(LeaseExpired(state.task.agent, r.now - state.asked)))
    return put(waste(r, state), replace(state, late=True))


def waste(r: Round, state: TaskState) -> Round:
    """Counts a lease against an agent that was online and delivered nothing of this kind of work in
    the phase. A phase counts once.
    """
    agent, work = r.agents[state.task.agent], state.task.work
    assert r.phase is not None
    before = agent.wasted.get(work, Wasted(0, 0))
    delivered = any(
        r.tasks[key].came for key in agent.tasks if key.work == work and r.tasks[key].place >= 0
    )
    if state.lost >= 0 or delivered or (before.leases and before.round == r.phase.round):
        return r
    return agents.with_agent(
        r, replace(agent, wasted={**agent.wasted, work: Wasted(before.leases + 1, r.phase.round)})
    )


Handler = Callable[[Round, Any, list[Action]], Round]
HANDLERS: Mapping[type, Handler] = MappingProxyType(
    {
        on.AgentBeat: agents.beat,
        on.AgentConnected: agents.connected,
        on.AgentLeft: agents.left,
        on.AgentsBarred: agents.bar,
        on.CardChanged: agents.forget_profiles,
        on.ChunkCame: updates.chunk,
        on.PhaseBegan: phases.begin,
        on.ProfileCame: agents.profile,
        on.Resumed: phases.resume,
        on.RoundPlanned: phases.plan,
        on.RoundStored: phases.store,
        on.SnapshotTaken: updates.snapshot,
        on.SpoolFilled: updates.fill,
        on.TaskAdded: phases.add,
        on.TaskFailed: updates.fail,
        on.TasksDropped: phases.drop,
        on.Ticked: tick,
        on.UpdateCame: updates.update,
        on.UpdateFolded: updates.folded,
        on.UpdateLost: updates.lose_update,
        on.UpdateOffered: updates.offer,
        on.UpdateRefused: updates.refuse,
    }
)
