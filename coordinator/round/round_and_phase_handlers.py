"""Update the state of a round when it is planned, stored or resumed, and when one of its phases
begins or gets another task.
"""

from __future__ import annotations

import dataclasses
import math

from immutables import Map
from msgspec.structs import replace

from coordinator.round import round_events as on
from coordinator.round.agent_handlers import put_agent
from coordinator.round.leases import compute_lease, estimate_typical_seconds
from coordinator.round.next_round_actions import end_probe
from coordinator.round.round_actions import Action, Ask, Forget, Prepare
from coordinator.round.round_state import Agent, Phase, Round, list_carried_tasks, put_task
from coordinator.round.task_state import Planned, TaskState
from federated.task import Key

__all__ = ["add_task", "begin_phase", "drop_tasks", "plan_round", "resume", "store_round"]


def plan_round(r: Round, e: on.RoundPlanned, out: list[Action]) -> Round:
    """Set the plan of the next round. Its training is not done, even if it was done before the
    round started over.
    """
    return replace(r, plan=e.plan, settled=(), trained=min(r.trained, e.plan.round - 1))


def store_round(r: Round, e: on.RoundStored, out: list[Action]) -> Round:
    """Forget what only the stored round needed."""
    return replace(r, plan=None, settled=(), unkept=())


def begin_phase(r: Round, e: on.PhaseBegan, out: list[Action]) -> Round:
    """Begin a phase. Its own tasks come first, in the order of their keys. Carried tasks follow if
    the phase takes them. A training that takes none drops the carried tasks that are done.
    """
    present = [
        state
        for state in list_carried_tasks(r)
        if e.carries or e.work != "train" or not state.outcome
    ]
    r = replace(
        r,
        tasks=Map({state.key: state for state in present}),
        unkept=r.unkept if e.work != "train" else (),
        saving=False,
        full=False,
        refused=0,
    )
    typical = estimate_typical_seconds(
        r, e.work, [(one.task.agent, one.seconds) for one in e.tasks if not one.probe]
    )
    r = replace(r, phase=make_phase(e, typical), agents=prune_agent_tasks(r), due=r.now)
    for planned in sorted(e.tasks, key=lambda one: one.task.key):
        r = ask(r, planned, out)
    for state in present if e.carries else ():
        r = add_carried_task(r, state)
    return r


def make_phase(e: on.PhaseBegan, typical: float) -> Phase:
    """Return the phase without its tasks. typical: see `Phase`."""
    return Phase(
        e.work,
        e.round,
        e.now,
        e.limit,
        e.quorum,
        typical=typical,
        wanted=e.wanted,
        spares=e.spares,
        flowing=e.flowing,
        carries=e.carries,
        timed=e.timed,
    )


def prune_agent_tasks(r: Round) -> Map[str, Agent]:
    """Return the agents without the tasks that no longer exist."""
    agents = r.agents
    for agent in agents.values():
        tasks = tuple(key for key in agent.tasks if key in r.tasks)
        if tasks != agent.tasks:
            agents = agents.set(agent.name, replace(agent, tasks=tasks))
    return agents


def add_carried_task(r: Round, state: TaskState) -> Round:
    """Make a carried task part of the phase, after the phase's own tasks."""
    phase = r.current_phase
    # removed, so that `put_task` counts it as new
    r = replace(
        r, tasks=r.tasks.delete(state.key), phase=replace(phase, order=(*phase.order, state.key))
    )
    return put_task(r, replace(state, place=len(phase.order)))


def add_task(r: Round, e: on.TaskAdded, out: list[Action]) -> Round:
    """Ask a spare, unless the phase is closing by now."""
    if r.phase is None or r.phase.closing or e.planned.task.agent not in r.phase.preparing:
        return r
    preparing = r.phase.preparing - {e.planned.task.agent}
    return ask(replace(r, phase=replace(r.phase, preparing=preparing)), e.planned, out)


def ask(r: Round, planned: Planned, out: list[Action]) -> Round:
    """Send a task with its lease; it is the last in the order of folding."""
    phase, task = r.current_phase, planned.task
    agent = r.agents.get(task.agent, Agent(task.agent))
    task = dataclasses.replace(task, lease=compute_lease(r, agent, task.work, planned.seconds))
    state = TaskState(
        task,
        len(phase.order),
        r.now,
        planned.seconds,
        moved=r.now,
        lost=-1.0 if agent.online else r.now,
        probe=planned.probe,
        heartbeat=r.heartbeat,
    )
    out.append(Ask(task))
    r = replace(r, phase=replace(phase, order=(*phase.order, task.key)))
    return assign_task(r, state)


def assign_task(r: Round, state: TaskState) -> Round:
    """Return the round with the task in it and in the list of its agent's tasks."""
    agent = r.agents.get(state.task.agent, Agent(state.task.agent))
    tasks = agent.tasks if state.key in agent.tasks else (*agent.tasks, state.key)
    submodel = state.task.submodel.name if state.task.work == "train" else agent.submodel
    agent = replace(agent, tasks=tasks, submodel=submodel)
    return replace(put_task(put_agent(r, agent), state), due=min(r.due, state.due))


def resume(r: Round, e: on.Resumed, out: list[Action]) -> Round:
    """Repeat all pending actions. Leases start over, since the time without a coordinator is
    unknown.

    Agents of the current round count as online until they have been silent for too long; all others
    announce themselves. An unfinished calibration or evaluation is given up and starts over, and so
    are the probes of closed phases.
    """
    r = replace(
        interrupt_evaluation(r),
        rules=e.rules,
        saving=False,
        full=False,
        refused=0,
        waiting=frozenset(),
        relieved=-math.inf,
        due=r.now,
    )
    if r.phase is not None and r.phase.folding is not None:
        state = r.tasks[r.phase.folding]
        r = replace(r, phase=replace(r.phase, folding=None))
        r = put_task(r, replace(state, stage="whole"))
    members = {state.task.agent for state in r.settled} | {
        state.task.agent for state in r.tasks.values() if state.open or r.plan is not None
    }
    if r.plan is not None:
        members |= set(r.plan.chosen)
    for agent in list(r.agents.values()):
        online = agent.online and agent.name in members
        r = put_agent(r, replace(agent, online=online, seen=r.now))
    for state in [state for state in r.tasks.values() if state.outlasting]:
        r = end_probe(r, state, out)
    for key in sorted(key for key, state in r.tasks.items() if state.open):
        r = put_task(r, restart_lease(r.tasks[key], r.now))
        out.append(Ask(r.tasks[key].task))
    if r.phase is not None and not r.phase.closed:
        out += map(Prepare, sorted(r.phase.preparing))
    return r


def interrupt_evaluation(r: Round) -> Round:
    """Give up an unfinished calibration or evaluation, and all tasks that it added."""
    if r.phase is None or r.phase.work == "train" or r.phase.closed:
        return r
    r = replace(
        r,
        tasks=Map({key: state for key, state in r.tasks.items() if state.carried}),
        phase=replace(
            r.phase, order=(), whole=Map(), folding=None, closing="interrupted", closed=True
        ),
    )
    return replace(r, agents=prune_agent_tasks(r))


def restart_lease(state: TaskState, now: float) -> TaskState:
    """Return an open task as if it was sent now."""
    return replace(
        state,
        asked=now,
        moved=now,
        sent=-math.inf,
        waited=0.0,
        waiting=-1.0,
        lost=now if state.lost >= 0 else -1.0,
        excused=0.0,
        restarted=False,
        late=False,
        resumed=True,
    )


def drop_tasks(r: Round, e: on.TasksDropped, out: list[Action]) -> Round:
    """Give up tasks. If the round itself cannot be resumed, give up all of it except the tasks
    carried from earlier rounds. Its own late updates go too: its agents may be asked again.

    A folded update of a carried task is folded again from the spool. If it left the spool with a
    snapshot, which is given up too, it is requested again.
    """
    for key in e.keys:
        r = put_task(r, replace(r.tasks[key], stage="done", outcome=f"dropped: {e.reason}"))
        out.append(Forget(key))
    if not e.round:
        return r
    remaining = dict[Key, TaskState]()
    number = r.plan.round if r.plan is not None else 0
    for state in (*r.settled, *r.tasks.values()):
        if not state.carried or state.task.round == number:
            continue
        if state.outcome not in ("", "folded"):
            continue
        if state.outcome and state.key in r.unkept:
            state = replace(state, stage="whole", outcome="")
        elif state.outcome:
            state = state.reopen(r.now)
        remaining[state.key] = replace(state, place=-1)
    r = replace(r, tasks=Map(remaining), phase=None, plan=None, unkept=(), settled=())
    r = replace(r, agents=prune_agent_tasks(r))
    for state in remaining.values():
        r = assign_task(r, state)
    return r
