"""Handlers of events about agents: connect, leave, heartbeat, profile, revoke."""

from __future__ import annotations

from immutables import Map
from msgspec.structs import replace

from coordinator.observe.events import AgentCame, AgentTurnedAway, AgentWent
from coordinator.round import round_events as on
from coordinator.round.actions import Action, Ask, Forget, Report, TurnAway
from coordinator.round.round import Agent, Round, of, put
from coordinator.round.task_state import TaskState

__all__ = [
    "SILENCE",
    "back",
    "bar",
    "beat",
    "connected",
    "forget_profiles",
    "known",
    "left",
    "lose",
    "out_of_line",
    "profile",
    "waited",
    "with_agent",
]

SILENCE = 45.0  # seconds: three missed heartbeats
OWING = 3.0  # seconds after which an idle agent is told its task again
# the same for an agent whose process is new; whatever agents say, this bounds what is written to
# disk for it
RESTART = 1.0


def with_agent(r: Round, agent: Agent) -> Round:
    if r.phase is not None and r.phase.exhausted and agent.ready:
        before = r.agents.get(agent.name)
        if before is None or not before.ready:
            r = replace(r, phase=replace(r.phase, exhausted=False))
    return replace(r, agents=r.agents.set(agent.name, agent))


def known(r: Round, name: str) -> Agent:
    """The agent, heard just now."""
    agent = r.agents.get(name)
    return Agent(name, seen=r.now) if agent is None else replace(agent, seen=r.now)


def connected(r: Round, e: on.AgentConnected, out: list[Action]) -> Round:
    agent = known(r, e.agent)
    restarted = agent.session not in ("", e.session)
    if not agent.online or restarted:
        out.append(Report(AgentCame(agent.name, restarted=restarted)))
    doing = "idle" if agent.state == "gone" else agent.state
    r = with_agent(r, replace(agent, session=e.session, online=True, paused=e.paused, state=doing))
    r = replace(r, due=min(r.due, r.now + SILENCE))
    for state in of(r, e.agent):
        if state.open:
            # another process begins anew, within the hard limit of the lease
            moved = r.now if restarted else state.moved
            r = back(r, replace(state, moved=moved))
            r = remind(r, r.tasks[state.key], RESTART, out)
    return r


def remind(r: Round, state: TaskState, pause: float, out: list[Action]) -> Round:
    """Tells an agent its task again, but not twice within so many seconds. It may not know of it,
    and takes it only once.
    """
    if r.now - state.reminded <= pause:
        return r
    out.append(Ask(state.task))
    return put(r, replace(state, reminded=r.now))


def back(r: Round, state: TaskState) -> Round:
    """The agent of a task is there."""
    state = replace(state, lost=-1.0)
    return replace(put(r, state), due=min(r.due, state.due))


def left(r: Round, e: on.AgentLeft, out: list[Action]) -> Round:
    agent = r.agents.get(e.agent)
    if agent is None or not agent.online or agent.session not in ("", e.session):
        return r
    return lose(with_agent(r, replace(agent, seen=r.now)), agent.name, e.why, out)


def lose(r: Round, name: str, why: str, out: list[Action]) -> Round:
    """An agent is not there any more; it may come back to its tasks."""
    out.append(Report(AgentWent(name, why)))
    r = with_agent(r, replace(r.agents[name], online=False, state="gone"))
    for state in of(r, name):
        if state.open:
            state = replace(waited(r, state), lost=r.now)
            r = replace(put(out_of_line(r, state), state), due=min(r.due, state.due))
    return r


def waited(r: Round, state: TaskState) -> TaskState:
    """Its time in line for an upload slot ends."""
    if state.waiting < 0:
        return state
    return replace(state, waiting=-1.0, waited=state.waited + r.now - state.waiting, moved=r.now)


def out_of_line(r: Round, state: TaskState) -> Round:
    return replace(r, waiting=r.waiting - {state.key}) if state.key in r.waiting else r


def profile(r: Round, e: on.ProfileCame, out: list[Action]) -> Round:
    if e.refused:
        out += Report(AgentTurnedAway(e.agent, e.refused)), TurnAway(e.agent, e.refused)
    return with_agent(
        r, replace(known(r, e.agent), profile=e.profile, refused=e.refused, excluded=e.excluded)
    )


def beat(r: Round, e: on.AgentBeat, out: list[Action]) -> Round:
    """A sign of life. An idle agent that still owes an update never heard of its task, or its
    answer was lost.
    """
    agent = known(r, e.agent)
    # of a process that went, or that did not say yet that it is there
    if e.session != agent.session:
        return with_agent(r, agent)
    returned = not agent.online
    r = with_agent(r, replace(agent, state=e.state, loss=e.loss, online=True))
    if returned:
        r = replace(r, due=min(r.due, r.now + SILENCE))
    for key in agent.tasks:
        state = r.tasks[key]
        if not state.open:
            continue
        if state.lost >= 0:
            r = back(r, state)
        if (
            e.round in (0, key.round)
            and e.work in ("", key.work)
            and (e.state, e.step) != state.shown
        ):
            r = put(r, replace(r.tasks[key], shown=(e.state, e.step), moved=r.now))
        if returned or (e.state == "idle" and r.now - state.asked > OWING):
            r = remind(r, r.tasks[key], RESTART if returned else OWING, out)
    return r


def bar(r: Round, e: on.AgentsBarred, out: list[Action]) -> Round:
    """Agents whose certificates were revoked are not asked any more, and nothing of theirs is
    folded; one that enrolled anew may come back.
    """
    for agent in list(r.agents.values()):
        if agent.name not in e.agents:
            if agent.refused == e.reason:
                r = with_agent(r, replace(agent, refused=""))
            continue
        if agent.refused == e.reason:
            continue
        r = with_agent(r, replace(agent, refused=e.reason, profile=None))
        for state in of(r, agent.name):
            if state.outcome or state.stage == "folding":
                continue  # what was folded stays in the sum
            if state.stage == "whole":
                out.append(Forget(state.key))
            r = put(r, replace(state, stage="done", outcome=f"refused: {e.reason}"))
        if agent.online:
            r = lose(r, agent.name, f"is shut out: {e.reason}", out)
    return r


def forget_profiles(r: Round, e: on.CardChanged, out: list[Action]) -> Round:
    return replace(
        r, agents=Map({name: replace(agent, profile=None) for name, agent in r.agents.items()})
    )
