"""Rules that depend only on the state of an agent: what to give up, what to do next, what to
say.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from federated.device.actions import (
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
from federated.device.events import Ticked
from federated.device.state import AgentState, OpenTask, active, activity, put, sending, without
from federated.errors import brief
from federated.task import Task, beats
from federated.wire.messages import Failure, Heartbeat, Status

__all__ = ["REMEMBERED", "beat", "drop", "fail", "proceed", "status"]

REMEMBERED = 16  # failures


def proceed(a: AgentState, out: list[AgentAction]) -> AgentState:
    """Apply every rule once. Deadlines come first: a task whose time is up is not started."""
    return a if a.over else speak(start(expire(a, out), out), out)


def expire(a: AgentState, out: list[AgentAction]) -> AgentState:
    """Give up tasks whose time is up. A finished update stays: the coordinator says itself what
    comes too late.
    """
    late = [one for one in a.tasks if one.stage != "sending" and a.now > one.until]
    return drop(a, late, "its deadline passed", out)


def start(a: AgentState, out: list[AgentAction]) -> AgentState:
    """One task at a time, in the order in which they came: fetch its weights, then train."""
    one = active(a)
    if one is not None and one.stage == "ready":
        out.append(Train(one.task))
        return put(a, replace(one, stage="training"))
    waiting = next((other for other in a.tasks if other.stage == "waiting"), None)
    if one is not None or waiting is None:
        return a
    out.append(Fetch(waiting.task))
    return put(a, replace(waiting, stage="fetching"))


def speak(a: AgentState, out: list[AgentAction]) -> AgentState:
    """Say who is here, what failed and what is finished, as far as it is not said yet. A link that
    is down gets nothing, so its queue stays empty.
    """
    if not a.online:
        return a
    if a.said is None:
        out.append(Tell(a.profile))
    if a.said != a.paused:
        out.append(Tell(status(a, online=True)))
        a = replace(a, said=a.paused)
    if a.unsaid:
        out += map(Tell, a.unsaid)
        a = replace(a, unsaid=())
    for one in sending(a):
        if not one.offered:
            out.append(Offer(one.task, anew=True))
            a = put(a, replace(one, offered=True))
    return a


def beat(a: AgentState, e: Ticked, out: list[AgentAction]) -> AgentState:
    """Send a heartbeat when the agent does something else, and at intervals that depend on the
    lease of its task.
    """
    one, doing = active(a), activity(a)
    pace = beats(one.task.lease if one is not None else 0.0)
    if not a.online or a.over or (a.now - a.beaten[0] < pace and a.beaten[1] == doing):
        return a
    heartbeat = Heartbeat(a.name, a.session, doing, 0, a.loss, "", e.chunks)
    if one is not None and one.stage == "training":
        heartbeat = Heartbeat(
            a.name, a.session, doing, one.task.round, a.loss, one.task.work, *e.steps
        )
    out.append(Tell(heartbeat))
    return replace(a, beaten=(a.now, doing))


# ---- what rules and handlers share ---------------------------------------------------------------


def status(a: AgentState, *, online: bool) -> Status:
    return Status(a.name, a.session, online, a.paused)


def drop(a: AgentState, gone: Sequence[OpenTask], why: str, out: list[AgentAction]) -> AgentState:
    """Give tasks up, whatever their stage."""
    if not gone:
        return a
    if any(one.stage != "sending" for one in gone):
        out.append(Log(f"dropping work: {why}"))
    for one in gone:
        match one.stage:
            case "fetching":
                out.append(StopFetching())
            case "training":
                out += StopTraining(), Forget(one.task)  # it may be done, and nobody looked yet
            case "sending":
                out.append(Forget(one.task))
    return without(a, *gone)


def fail(
    a: AgentState, task: Task, reason: str, out: list[AgentAction], *, paused: bool = False
) -> AgentState:
    """Note that a task failed, so that the coordinator is told. paused: the device may not work
    now, or has no room; another try may succeed.
    """
    event = "put off" if paused else "failed"
    out.append(Log(f"round {task.round}: {task.work} {event}: {reason}", True, task, event))
    failure = Failure(
        task.run, task.round, task.attempt, task.work, task.submodel.name, brief(reason), paused
    )
    failures = a.failures if paused else (*a.failures, failure)[-REMEMBERED:]
    return replace(a, failures=failures, unsaid=(*a.unsaid, failure))
