"""Handlers of events about phases: begin, add a task, store, resume in another process."""

from __future__ import annotations

import dataclasses
import math

from immutables import Map
from msgspec.structs import replace

from coordinator.round import round_events as on
from coordinator.round.actions import Action, Ask, Forget, Prepare
from coordinator.round.agents import with_agent
from coordinator.round.round import Agent, Phase, Round, carried, put
from coordinator.round.rules import lease_of, typical
from coordinator.round.task_state import TaskState
from federated.task import Key

__all__ = ["add", "begin", "drop", "plan", "resume", "store"]


def plan(r: Round, e: on.RoundPlanned, out: list[Action]) -> Round:
    """A round that is planned has not been trained, though it may have been before it began
    anew.
    """
    return replace(r, plan=e.plan, settled=(), trained=min(r.trained, e.plan.round - 1))


def store(r: Round, e: on.RoundStored, out: list[Action]) -> Round:
    return replace(r, plan=None, settled=(), unkept=())


def begin(r: Round, e: on.PhaseBegan, out: list[Action]) -> Round:
    """A phase: its tasks in the order of keys, then carried ones, if it takes them; a training that
    takes none forgets those that are done.
    """
    kept = [state for state in carried(r) if e.carries or e.work != "train" or not state.outcome]
    unkept = r.unkept if e.work != "train" else ()
    r = replace(
        r,
        tasks=Map({state.key: state for state in kept}),
        unkept=unkept,
        saving=False,
        full=False,
        refused=0,
    )
    r = replace(
        r,
        phase=begun(e, typical(r, e.work, [(one.task.agent, one.seconds) for one in e.tasks])),
        agents=holding(r),
        due=r.now,
    )
    for planned in sorted(e.tasks, key=lambda one: one.task.key):
        r = ask(r, TaskState(planned.task, -1, r.now, planned.seconds, moved=r.now), out)
    if e.carries:
        for state in kept:
            r = at_place(r, state)
    return r


def begun(e: on.PhaseBegan, seconds: float) -> Phase:
    """The phase before its tasks are in it. seconds: typical of them."""
    return Phase(
        e.work,
        e.round,
        e.now,
        e.limit,
        e.quorum,
        typical=seconds,
        wanted=e.wanted,
        spares=e.spares,
        flowing=e.flowing,
        carries=e.carries,
        timed=e.timed,
    )


def holding(r: Round) -> Map[str, Agent]:
    """The agents, each with the tasks that it still has."""
    agents = r.agents
    for agent in agents.values():
        mine = tuple(key for key in agent.tasks if key in r.tasks)
        if mine != agent.tasks:
            agents = agents.set(agent.name, replace(agent, tasks=mine))
    return agents


def at_place(r: Round, state: TaskState) -> Round:
    """A carried task becomes part of the phase, behind the phase's own tasks."""
    assert r.phase is not None
    order = r.phase.order
    # it counts from now on
    r = replace(
        r, tasks=r.tasks.delete(state.key), phase=replace(r.phase, order=(*order, state.key))
    )
    return put(r, replace(state, place=len(order)))


def add(r: Round, e: on.TaskAdded, out: list[Action]) -> Round:
    """The task of a spare; none that came after the phase had a reason to close."""
    if r.phase is None or r.phase.closing or e.planned.task.agent not in r.phase.preparing:
        return r
    r = replace(r, phase=replace(r.phase, preparing=r.phase.preparing - {e.planned.task.agent}))
    return ask(r, TaskState(e.planned.task, -1, r.now, e.planned.seconds, moved=r.now), out)


def ask(r: Round, state: TaskState, out: list[Action]) -> Round:
    """A task goes out, unless there is nothing to wait for; its place is the last in the order of
    folding.
    """
    assert r.phase is not None
    agent = r.agents.get(state.task.agent, Agent(state.task.agent))
    task = dataclasses.replace(state.task, lease=lease_of(r, agent, state.task.work, state.seconds))
    state = replace(
        state, task=task, place=len(r.phase.order), lost=-1.0 if agent.online else r.now
    )
    if state.open:
        out.append(Ask(task))
    r = replace(r, phase=replace(r.phase, order=(*r.phase.order, task.key)))
    return hold(r, agent, state)


def hold(r: Round, agent: Agent, state: TaskState) -> Round:
    tasks = agent.tasks if state.key in agent.tasks else (*agent.tasks, state.key)
    agent = replace(agent, tasks=tasks, submodel=state.task.submodel.name)
    return replace(put(with_agent(r, agent), state), due=min(r.due, state.due))


def resume(r: Round, e: on.Resumed, out: list[Action]) -> Round:
    """Repeats all pending actions. Leases start over, because nobody knows how long the coordinator
    was away.

    Agents of the round under way count as online until they have been silent for long enough; all
    others say themselves that they are there. A calibration or evaluation that was under way is
    given up: it begins anew.
    """
    phase = r.phase
    if phase is not None and phase.work != "train" and not phase.closed:
        kept = Map({key: state for key, state in r.tasks.items() if state.carried})
        r = replace(
            r,
            tasks=kept,
            phase=replace(
                phase, order=(), whole=Map(), folding=None, closing="interrupted", closed=True
            ),
        )
        r = replace(r, agents=holding(r))
    r = replace(
        r,
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
        r = put(replace(r, phase=replace(r.phase, folding=None)), replace(state, stage="whole"))
    part = set(r.plan.chosen) if r.plan is not None else set()
    part |= {state.task.agent for state in r.settled} | {
        state.task.agent for state in r.tasks.values() if state.open or r.plan is not None
    }
    for agent in list(r.agents.values()):
        r = with_agent(r, replace(agent, online=agent.online and agent.name in part, seen=r.now))
    for state in sorted(
        (state for state in r.tasks.values() if state.open), key=lambda state: state.key
    ):
        lost = r.now if state.lost >= 0 else -1.0
        state = replace(state, asked=r.now, moved=r.now, sent=-math.inf)
        r = put(r, replace(state, waited=0.0, waiting=-1.0, lost=lost, late=False, resumed=True))
        out.append(Ask(state.task))
    if r.phase is not None and r.phase.preparing and not r.phase.closed:
        out += map(Prepare, sorted(r.phase.preparing))
    return r


def drop(r: Round, e: on.TasksDropped, out: list[Action]) -> Round:
    """Gives up tasks. If the round itself cannot be resumed, all of it is given up, except tasks
    carried from earlier rounds.

    What was folded of these is folded again from the spool. If it left the spool with a snapshot,
    which is given up too, it is asked for again.
    """
    for key in e.keys:
        r = put(r, replace(r.tasks[key], stage="done", outcome=f"dropped: {e.reason}"))
        out.append(Forget(key))
    if not e.round:
        return r
    left = dict[Key, TaskState]()
    for state in (*r.settled, *r.tasks.values()):
        if not state.carried or state.outcome not in ("", "folded"):
            continue
        if state.outcome and state.key in r.unkept:
            state = replace(state, stage="whole", outcome="")
        elif state.outcome:
            state = state.reopened(r.now)
        left[state.key] = replace(state, place=-1)
    r = replace(r, tasks=Map(left), phase=None, plan=None, unkept=(), settled=())
    r = replace(r, agents=holding(r))
    for state in left.values():
        r = hold(r, r.agents.get(state.task.agent, Agent(state.task.agent)), state)
    return r
