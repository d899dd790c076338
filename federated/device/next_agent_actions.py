"""Decide the next actions of an agent from its state alone: what to discard, start and send."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from federated.device.agent_actions import (
    AgentAction,
    Fetch,
    Forget,
    Log,
    Offer,
    StopFetching,
    StopTraining,
    Tell,
    Train,
)
from federated.device.agent_events import Ticked
from federated.device.agent_state import (
    AgentState,
    OpenTask,
    describe_activity,
    find_active,
    list_sending,
    put,
    remove,
)
from federated.safe_text import make_safe
from federated.task import Task, heartbeat_interval, heartbeat_pause, is_heartbeat_due
from federated.wire.messages import Failure, Heartbeat, Status

__all__ = ["REMEMBERED", "drop", "fail", "make_status", "proceed", "send_heartbeat"]

REMEMBERED = 16  # number of failures kept


def proceed(a: AgentState, out: list[AgentAction]) -> AgentState:
    """Apply every rule once. Deadlines come first, so that no expired task is started."""
    return a if a.over else announce(start_next(expire(a, out), out), out)


def expire(a: AgentState, out: list[AgentAction]) -> AgentState:
    """Drop tasks past their deadline, except finished updates: the coordinator decides which of
    them are too late.
    """
    late = [one for one in a.tasks if one.stage != "sending" and a.now > one.until]
    return drop(a, late, "its deadline passed", out)


def start_next(a: AgentState, out: list[AgentAction]) -> AgentState:
    """Fetch the weights of the next task, or train it. Tasks run one at a time, in order of
    arrival.
    """
    one = find_active(a)
    if one is not None and one.stage == "ready":
        out.append(Train(one.task))
        return put(a, replace(one, stage="training"))
    waiting = next((other for other in a.tasks if other.stage == "waiting"), None)
    if one is not None or waiting is None:
        return a
    out.append(Fetch(waiting.task))
    return put(a, replace(waiting, stage="fetching"))


def announce(a: AgentState, out: list[AgentAction]) -> AgentState:
    """Send the profile, status, failures and offers that are not sent yet. While the link is down
    nothing is sent, so that its queue stays empty.
    """
    if not a.online:
        return a
    if a.said is None:
        out.append(Tell(a.profile))
    if a.said != a.paused:
        out.append(Tell(make_status(a, online=True)))
        a = replace(a, said=a.paused)
    if a.unsaid:
        out += map(Tell, a.unsaid)
        a = replace(a, unsaid=())
    for one in list_sending(a):
        if not one.offered:
            out.append(Offer(one.task, restart=True))
            a = put(a, replace(one, offered=True))
    return a


def send_heartbeat(a: AgentState, e: Ticked, out: list[AgentAction]) -> AgentState:
    """Send a heartbeat when the agent's activity changes, and at intervals that depend on the lease
    of its task, and on the size of the fleet.
    """
    one, doing, least = find_active(a), describe_activity(a), a.card.heartbeat
    interval = heartbeat_interval(one.task.lease if one is not None else 0.0, least)
    last, known = a.beaten
    due = (
        is_heartbeat_due(a.name, last, a.now, interval)
        if doing == known
        else a.now - last >= heartbeat_pause(least)
    )
    if not a.online or a.over or not due:
        return a
    round, work, (step, steps) = 0, "", (e.chunks, 0)
    if one is not None and one.stage == "training":
        round, work, (step, steps) = one.task.round, one.task.work, e.steps
    beat = Heartbeat(a.name, a.session, doing, round, a.loss, work, step, steps, e.condition)
    out.append(Tell(beat))
    return replace(a, beaten=(a.now, doing))


# ---- shared by rules and handlers ----------------------------------------------------------------


def make_status(a: AgentState, *, online: bool) -> Status:
    return Status(a.name, a.session, online, a.paused)


def drop(a: AgentState, gone: Sequence[OpenTask], why: str, out: list[AgentAction]) -> AgentState:
    """Drop tasks, whatever their stage."""
    if not gone:
        return a
    if any(one.stage != "sending" for one in gone):
        out.append(Log(f"dropping tasks: {why}"))
    for one in gone:
        match one.stage:
            case "fetching":
                out.append(StopFetching())
            case "training":
                out += StopTraining(), Forget(one.task)  # an unread outcome may exist
            case "sending":
                out.append(Forget(one.task))
    return remove(a, *gone)


def fail(
    a: AgentState, task: Task, reason: str, out: list[AgentAction], *, paused: bool = False
) -> AgentState:
    """Record that a task failed, to tell the coordinator. paused: another attempt may succeed,
    because the device may not work now or has no room.
    """
    event = "put off" if paused else "failed"
    out.append(Log(f"round {task.round}: {task.work} {event}: {reason}", True, task, event))
    failure = Failure(
        task.run, task.round, task.attempt, task.work, task.submodel.name, make_safe(reason), paused
    )
    failures = a.failures if paused else (*a.failures, failure)[-REMEMBERED:]
    return replace(a, failures=failures, unsaid=(*a.unsaid, failure))
