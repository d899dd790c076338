"""Update the state of a round when an agent connects, leaves, sends a heartbeat or a profile, or is
revoked.
"""

from __future__ import annotations

from immutables import Map
from msgspec.structs import replace

from coordinator.observe.events import AgentJoined, AgentLeft, AgentRefused
from coordinator.round import round_events as on
from coordinator.round.round_actions import Action, Ask, Forget, RefuseAgent, Report
from coordinator.round.round_state import HEARTBEATS, Agent, Round, list_tasks, put_task
from coordinator.round.task_state import TaskState

__all__ = [
    "SILENCE",
    "connect",
    "disconnect",
    "end_queue_wait",
    "forget_profiles",
    "leave",
    "limit_silence",
    "put_agent",
    "put_due_task",
    "record_heartbeat",
    "restore_transfers",
    "revoke",
    "see_agent",
    "update_profile",
]

SILENCE = 45.0  # seconds without a message, i.e. three missed heartbeats, in a small fleet
# seconds after which an idle agent receives its task again, and twice as many after that; besides
# those in which a large fleet sends a heartbeat each, since older ones may still wait to be handled
REMIND_AFTER = 3.0
# the same for a restarted or returning agent; bounds what it can make the journal record
REMIND_RETURNED = 1.0


def limit_silence(r: Round) -> float:
    """Return the seconds without a message after which an agent counts as lost."""
    return max(SILENCE, 3 * r.heartbeat)


def put_agent(r: Round, agent: Agent) -> Round:
    """Return the round with an agent changed or added."""
    if r.phase is not None and r.phase.exhausted and agent.ready:
        before = r.agents.get(agent.name)
        if before is None or not before.ready:
            r = replace(r, phase=replace(r.phase, exhausted=False))
    return replace(r, agents=r.agents.set(agent.name, agent))


def see_agent(r: Round, name: str) -> Agent:
    """Return the agent of this name, last seen now; a new one if it is unknown."""
    agent = r.agents.get(name)
    return Agent(name, seen=r.now) if agent is None else replace(agent, seen=r.now)


def connect(r: Round, e: on.AgentConnected, out: list[Action]) -> Round:
    """Mark an agent as online, and remind it of its open tasks."""
    agent = see_agent(r, e.agent)
    restarted = agent.session not in ("", e.session)
    if not agent.online or restarted:
        out.append(Report(AgentJoined(agent.name, restarted=restarted)))
    state = "idle" if agent.state == "gone" else agent.state
    r = put_agent(r, replace(agent, session=e.session, online=True, paused=e.paused, state=state))
    r = replace(r, due=min(r.due, r.now + limit_silence(r)))
    for task in list_tasks(r, e.agent):
        if task.open:
            task = task.come_back(r.now, restarted=restarted)
            r = remind(put_due_task(r, task), task, REMIND_RETURNED, out)
    return r


def put_due_task(r: Round, state: TaskState) -> Round:
    """Return the round with a task changed, and checked for expiry when its lease may end."""
    return replace(put_task(r, state), due=min(r.due, state.due))


def remind(r: Round, state: TaskState, pause: float, out: list[Action]) -> Round:
    """Send an agent its task again, at most once in `pause` seconds. It may not have received the
    task; it accepts a task only once.
    """
    if r.now - state.reminded <= pause:
        return r
    out.append(Ask(state.task))
    return put_task(r, replace(state, reminded=r.now))


def limit_reminders(r: Round) -> float:
    """Return the seconds until an agent that reports to be idle receives its task again."""
    return REMIND_AFTER + len(r.agents) / (r.rules.beats or HEARTBEATS)


def leave(r: Round, e: on.AgentLeft, out: list[Action]) -> Round:
    """Mark an agent as gone, unless the event is about an earlier process of it."""
    agent = r.agents.get(e.agent)
    if agent is None or not agent.online or agent.session not in ("", e.session):
        return r
    return disconnect(put_agent(r, replace(agent, seen=r.now)), agent.name, e.why, out)


def disconnect(r: Round, name: str, why: str, out: list[Action]) -> Round:
    """Mark an agent as offline. It may return to its open tasks."""
    out.append(Report(AgentLeft(name, why)))
    r = put_agent(r, replace(r.agents[name], online=False, state="gone"))
    for state in list_tasks(r, name):
        if state.open:
            r = put_due_task(r, replace(end_queue_wait(r, state), lost=r.now))
            r = replace(r, waiting=r.waiting - {state.key})
    return r


def end_queue_wait(r: Round, state: TaskState) -> TaskState:
    """Return the task with its present wait for an upload slot added to its total wait."""
    if state.waiting < 0:
        return state
    return replace(state, waiting=-1.0, waited=state.waited + r.now - state.waiting, moved=r.now)


def update_profile(r: Round, e: on.ProfileCame, out: list[Action]) -> Round:
    """Store an agent's profile. Refuse the agent if it cannot take part. New timings end what
    was learned about predictions, but not about the time of its tasks.
    """
    if e.refused:
        out += Report(AgentRefused(e.agent, e.refused)), RefuseAgent(e.agent, e.refused)
    agent = see_agent(r, e.agent)
    if agent.profile is not None and agent.profile.timings != e.profile.timings:
        pace = {work: replace(one, ratio=1.0) for work, one in agent.pace.items()}
        agent = replace(agent, pace=pace)
    return put_agent(r, replace(agent, profile=e.profile, refused=e.refused, excluded=e.excluded))


def record_heartbeat(r: Round, e: on.AgentBeat, out: list[Action]) -> Round:
    """Record a sign of life and of progress. Remind an idle agent that still owes an update: it did
    not receive its task, or its answer was lost.
    """
    agent = see_agent(r, e.agent)
    # from a process that ended, or that has not announced itself yet
    if e.session != agent.session:
        return put_agent(r, agent)
    returned = not agent.online
    beaten = replace(agent, state=e.state, loss=e.loss, condition=e.condition, online=True)
    r = put_agent(r, beaten)
    if returned:
        r = replace(r, due=min(r.due, r.now + limit_silence(r)))
    for key in agent.tasks:
        state = r.tasks[key]
        if not state.open:
            continue
        if state.lost >= 0:
            r = put_due_task(r, state.come_back(r.now))
        if (
            e.round in (0, key.round)
            and e.work in ("", key.work)
            and (e.state, e.step) != state.shown
        ):
            r = put_task(r, replace(r.tasks[key], shown=(e.state, e.step), moved=r.now))
        if returned:
            r = remind(r, r.tasks[key], REMIND_RETURNED, out)
        elif e.state == "idle" and r.now - state.asked > (after := limit_reminders(r)):
            r = remind(r, r.tasks[key], max(after, state.reminded - state.asked), out)
    return r


def restore_transfers(r: Round, e: on.TransfersRestored, out: list[Action]) -> Round:
    """Give working agents new leases, which last at least as long as an upload may pause, since
    they may wait before they try to transfer again. Send them their tasks again: their own
    deadlines did not stop.
    """
    for state in r.tasks.values():
        if state.working:
            state = replace(state.excuse(r.now), sent=r.now, reminded=r.now)
            r = put_due_task(r, state)
            out.append(Ask(state.task))
    return r


def revoke(r: Round, e: on.AgentsBarred, out: list[Action]) -> Round:
    """Shut out the agents that are revoked or suspended, and drop their updates that are not folded
    yet. Readmit others that were shut out for the same reason. The others that work get new leases:
    a flood may have delayed their messages.
    """
    known = [r.agents[name] for name in e.agents if name in r.agents]
    if any(agent.refused != e.reason for agent in known):
        for state in r.tasks.values():
            if state.open and state.lost < 0 and state.key.agent not in e.agents:
                r = put_due_task(r, state.excuse(r.now))
    for agent in list(r.agents.values()):
        if agent.name not in e.agents:
            if agent.refused == e.reason:
                r = put_agent(r, replace(agent, refused=""))
            continue
        if agent.refused == e.reason:
            continue
        r = put_agent(r, replace(agent, refused=e.reason, profile=None))
        for state in list_tasks(r, agent.name):
            if state.outcome or state.stage == "folding":
                continue  # a folded update stays in the total
            if state.stage == "whole":
                out.append(Forget(state.key))
            r = put_task(r, replace(state, stage="done", outcome=f"refused: {e.reason}"))
        if agent.online:
            r = disconnect(r, agent.name, f"excluded: {e.reason}", out)
    return r


def forget_profiles(r: Round, e: on.CardChanged, out: list[Action]) -> Round:
    """Drop all profiles: each agent measures itself again for the changed card."""
    return replace(
        r, agents=Map({name: replace(agent, profile=None) for name, agent in r.agents.items()})
    )
