"""`step(agent, event) -> (agent, actions)`: no clock, socket, disk or callback.

One handler per event writes down what happened. Then `proceed` looks at where the agent stands and
decides what follows.
An event that changes nothing gives the same agent back.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from federated.device import events as on
from federated.device.actions import (
    AgentAction,
    AskStatus,
    Erase,
    Fetch,
    Forget,
    FreeSpace,
    Log,
    Look,
    Measure,
    Offer,
    Tell,
    Trim,
)
from federated.device.namesake import hear
from federated.device.rules import beat, drop, fail, proceed, status
from federated.device.state import AgentState, OpenTask, active, find, put, sending, without
from federated.task import Task

__all__ = ["step"]

LOOK = 5.0  # seconds between looks at whether the device may work


def step(a: AgentState, event: on.AgentEvent) -> tuple[AgentState, list[AgentAction]]:
    """What the agent becomes, and what is to be done. The same agent where the event changed
    nothing.
    """
    out: list[AgentAction] = []
    before = replace(a, now=max(a.now, event.now))
    after = proceed(HANDLERS[type(event)](before, event, out), out)
    if isinstance(event, on.Ticked):
        after = beat(after, event, out)
    return (a if after == before else after), out


# ---- the agent and its link ----------------------------------------------------------------------


def started(a: AgentState, e: on.Started, out: list[AgentAction]) -> AgentState:
    return replace(a, online=True)


def stopped(a: AgentState, e: on.Stopped, out: list[AgentAction]) -> AgentState:
    """Finished updates stay in the spool, for the next process, unless the run is over. A link that
    is down leaves the farewell to the last will.
    """
    over = bool(a.over) and not a.refused
    a = drop(a, [one for one in a.tasks if over or one.stage != "sending"], "leaving", out)
    if over:
        out.append(Erase())
    elif a.online:
        out.append(Tell(status(a, online=False)))
    return replace(a, online=False)


def link_lost(a: AgentState, e: on.LinkLost, out: list[AgentAction]) -> AgentState:
    return replace(a, online=False)


def link_back(a: AgentState, e: on.LinkBack, out: list[AgentAction]) -> AgentState:
    out.append(AskStatus())  # before the agent says its own anew
    return say_all(replace(a, online=True, namesake=replace(a.namesake, returned=True)))


def say_all(a: AgentState) -> AgentState:
    """Whoever hears may know nothing: who is here and what is finished is to be said again."""
    return replace(a, said=None, tasks=tuple(replace(one, offered=False) for one in a.tasks))


def status_heard(a: AgentState, e: on.StatusHeard, out: list[AgentAction]) -> AgentState:
    """Of two agents of one name the older leaves."""
    namesake, verdict = hear(a.namesake, a.session, e.status, retained=e.retained)
    a = replace(a, namesake=namesake)
    who, advice = f"another agent joined under the name '{a.name}'", "give each its own (--name)"
    if verdict == "leave":
        return replace(a, over=f"{who}: {advice}", refused=True)
    if verdict == "stay":
        out.append(Log(f"{who}, and is told to leave: {advice}", True))
        return replace(a, said=None)
    return a


def dismissed(a: AgentState, e: on.Dismissed, out: list[AgentAction]) -> AgentState:
    return replace(a, over=e.reason or "the coordinator gave no reason", refused=e.refused)


def card(a: AgentState, e: on.CardCame, out: list[AgentAction]) -> AgentState:
    """If only the coordinator restarted, the tasks stay. If the run changed, drop them and measure
    the device again.
    """
    if e.card.run != a.card.run or e.card == a.card:
        return a
    same = dataclasses.replace(e.card, session=a.card.session) == a.card
    a = replace(a, card=e.card, failures=())
    if same:
        return say_all(a)
    out.append(Measure())
    return drop(a, a.tasks, "the run changed", out)


def measured(a: AgentState, e: on.ProfileMeasured, out: list[AgentAction]) -> AgentState:
    return replace(a, profile=e.profile, said=None)


def pause_seen(a: AgentState, e: on.PauseSeen, out: list[AgentAction]) -> AgentState:
    if e.paused == a.paused:
        return a
    out.append(Log(f"pausing: {e.paused}" if e.paused else "going on"))
    return replace(a, paused=e.paused)


def ticked(a: AgentState, e: on.Ticked, out: list[AgentAction]) -> AgentState:
    if a.now - a.looked < LOOK:
        return a
    out.append(Look())
    return replace(a, looked=a.now)


# ---- tasks ---------------------------------------------------------------------------------------


def task_came(a: AgentState, e: on.TaskCame, out: list[AgentAction]) -> AgentState:
    """A broker may deliver twice, and a coordinator that came back asks again: what is under way
    has time anew, the rest is said again.
    """
    known = find(a, e.task)
    if known is not None and known.stage == "sending":
        return put(a, replace(known, offered=False))
    if known is not None:
        if known.stage == "fetching" and known.task.slot != e.task.slot:
            out.append(Fetch(e.task))  # they are published elsewhere now
        return put(a, replace(known, task=e.task, until=a.now + e.task.deadline))
    wanted = e.task.round, e.task.attempt, e.task.work, e.task.submodel.name
    for failure in a.failures:
        if (failure.round, failure.attempt, failure.work, failure.submodel) == wanted:
            return replace(a, unsaid=(*a.unsaid, failure))
    a = drop(a, [one for one in a.tasks if outdates(e.task, one.task)], "a newer task came", out)
    if a.paused:
        return fail(a, e.task, a.paused, out, paused=True)
    return replace(a, tasks=(*a.tasks, OpenTask(e.task, a.now + e.task.deadline)))


def outdates(new: Task, old: Task) -> bool:
    """Whether `new` makes `old` obsolete. An evaluation does not: the coordinator may still accept
    the update of an earlier training.
    """
    return (old.round, old.attempt) < (new.round, new.attempt) and (
        new.work == "train" or old.work != "train"
    )


def aborted(a: AgentState, e: on.TasksAborted, out: list[AgentAction]) -> AgentState:
    return drop(
        a,
        [one for one in a.tasks if one.task.round <= e.round and one.task.attempt <= e.attempt],
        e.reason,
        out,
    )


def weights_came(a: AgentState, e: on.WeightsCame, out: list[AgentAction]) -> AgentState:
    one = active(a)
    if one is None or one.stage != "fetching" or one.task.digest != e.digest:
        return a
    return put(a, replace(one, stage="ready"))


def weights_failed(a: AgentState, e: on.WeightsFailed, out: list[AgentAction]) -> AgentState:
    """A full disk first costs weights that can be fetched again, then the task, which may be tried
    again when there is room.
    """
    one = active(a)
    if one is None or one.stage != "fetching" or one.task.digest != e.digest:
        return a
    if e.spare:
        out.append(FreeSpace())
        return put(a, replace(one, stage="waiting"))
    a = replace(without(a, one), loss=math.nan)
    return fail(
        a,
        one.task,
        f"no room for its weights ({one.task.size} bytes) in {e.where}",
        out,
        paused=True,
    )


def training_ended(a: AgentState, e: on.TrainingEnded, out: list[AgentAction]) -> AgentState:
    one = find(a, e.task)
    if one is None or one.stage != "training":
        return a
    a = replace(a, loss=e.loss)
    if e.failure is not None:
        out.append(Forget(one.task))
        return fail(without(a, one), one.task, e.failure, out, paused=e.full)
    out.append(Trim(one.task.digest))
    return put(a, replace(one, stage="sending"))


# ---- updates -------------------------------------------------------------------------------------


def overfull(a: AgentState, e: on.SpoolOverfull, out: list[AgentAction]) -> AgentState:
    """The oldest update goes, but never the newest."""
    updates = sending(a)
    if len(updates) < 2:
        return a
    out.append(
        Log(f"the spool is full: the update of round {updates[0].task.round} is given up", True)
    )
    a = drop(a, updates[:1], "the spool is full", out)
    out.append(Trim(updates[-1].task.digest))
    return a


def stalled(a: AgentState, e: on.UploadStalled, out: list[AgentAction]) -> AgentState:
    one = find(a, e.task)
    if a.online and one is not None and one.stage == "sending":
        out.append(Offer(one.task, anew=False))
    return a


def answered(a: AgentState, e: on.UpdateAnswered, out: list[AgentAction]) -> AgentState:
    one = next((one for one in sending(a) if one.task.transfer == e.transfer), None)
    if one is None:
        return a
    out.append(Forget(one.task))
    if not e.accepted:
        out.append(
            Log(
                f"round {one.task.round}: the coordinator refused the update: {e.reason}",
                True,
                one.task,
                "refused",
            )
        )
    done = e.accepted and one.task.work == "train"
    return replace(without(a, one), finished=a.finished + done)


Handler = Callable[[AgentState, Any, list[AgentAction]], AgentState]
HANDLERS: Mapping[type, Handler] = MappingProxyType(
    {
        on.CardCame: card,
        on.Dismissed: dismissed,
        on.LinkBack: link_back,
        on.LinkLost: link_lost,
        on.PauseSeen: pause_seen,
        on.ProfileMeasured: measured,
        on.SpoolOverfull: overfull,
        on.Started: started,
        on.StatusHeard: status_heard,
        on.Stopped: stopped,
        on.TaskCame: task_came,
        on.TasksAborted: aborted,
        on.Ticked: ticked,
        on.TrainingEnded: training_ended,
        on.UpdateAnswered: answered,
        on.UploadStalled: stalled,
        on.WeightsCame: weights_came,
        on.WeightsFailed: weights_failed,
    }
)
