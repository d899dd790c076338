"""Advance an agent by one event, as a pure function `step(agent, event) -> (agent, actions)`: no
clock, socket, disk or callback.

One handler per event records what happened. Then `proceed` decides what follows from the resulting
state.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from federated.device import agent_events as on
from federated.device.agent_actions import (
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
from federated.device.agent_state import (
    AgentState,
    OpenTask,
    find,
    find_active,
    judge_status,
    list_sending,
    put,
    remove,
)
from federated.device.next_agent_actions import drop, fail, make_status, proceed, send_heartbeat
from federated.task import MAX_GRAPH, Task

__all__ = ["step"]

# seconds between repetitions of a profile that the coordinator lacks; they double up to the second
REPEAT_AFTER, REPEAT_AT_MOST = 10.0, 600.0
LOOK = 5.0  # seconds between checks whether the device may work


def step(a: AgentState, event: on.AgentEvent) -> tuple[AgentState, list[AgentAction]]:
    """Return the agent after an event, and the actions to carry out. If the event changes nothing,
    the same object is returned.
    """
    out: list[AgentAction] = []
    before = replace(a, now=max(a.now, event.now))
    after = proceed(HANDLERS[type(event)](before, event, out), out)
    if isinstance(event, on.Ticked):
        after = send_heartbeat(after, event, out)
    return (a if after == before else after), out


# ---- the agent and its link ----------------------------------------------------------------------


def start(a: AgentState, e: on.Started, out: list[AgentAction]) -> AgentState:
    return replace(a, online=True)


def stop(a: AgentState, e: on.Stopped, out: list[AgentAction]) -> AgentState:
    """Leave. Finished updates stay in the spool for the next process, unless the run is over. If
    the link is down, the last will signs off.
    """
    over = bool(a.over) and not a.refused
    a = drop(a, [one for one in a.tasks if over or one.stage != "sending"], "leaving", out)
    if over:
        out.append(Erase())
    elif a.online:
        out.append(Tell(make_status(a, online=False)))
    return replace(a, online=False)


def lose_link(a: AgentState, e: on.LinkLost, out: list[AgentAction]) -> AgentState:
    return replace(a, online=False)


def restore_link(a: AgentState, e: on.LinkBack, out: list[AgentAction]) -> AgentState:
    out.append(AskStatus())  # before the agent publishes its own
    return repeat_all(replace(a, online=True, namesake=replace(a.namesake, returned=True)))


def repeat_all(a: AgentState) -> AgentState:
    """Send the profile, the status and all offers again, since they may be lost."""
    return replace(a, said=None, tasks=tuple(replace(one, offered=False) for one in a.tasks))


def repeat_announcement(
    a: AgentState, e: on.AnnouncementLost, out: list[AgentAction]
) -> AgentState:
    """Send the profile and the status again, after longer and longer pauses: a profile of another
    protocol version is ignored however often it is repeated.
    """
    at, times = a.repeated
    if a.now - at < min(REPEAT_AFTER * 2.0**times, REPEAT_AT_MOST):
        return a
    return replace(repeat_all(a), repeated=(a.now, times + 1))


def take_status(a: AgentState, e: on.StatusHeard, out: list[AgentAction]) -> AgentState:
    """Leave if a newer agent has the same name."""
    namesake, verdict = judge_status(a.namesake, a.session, e.status, retained=e.retained)
    a = replace(a, namesake=namesake)
    who, advice = f"another agent joined under the name '{a.name}'", "give each its own (--name)"
    if verdict == "leave":
        return replace(a, over=f"{who}: {advice}", refused=True)
    if verdict == "stay":
        out.append(Log(f"{who}; it is told to leave: {advice}", True))
        return replace(a, said=None)
    return a


def end(a: AgentState, e: on.Dismissed, out: list[AgentAction]) -> AgentState:
    return replace(a, over=e.reason or "the coordinator gave no reason", refused=e.refused)


def take_card(a: AgentState, e: on.CardCame, out: list[AgentAction]) -> AgentState:
    """Keep the tasks if only the coordinator restarted, or the fleet grew. If the run changed, drop
    them and measure the device again.
    """
    if e.card.run != a.card.run or e.card == a.card:
        return a
    restarted = e.card.session != a.card.session
    # no device measures itself by these
    unmeasured = ("session", "heartbeat", "bound", "examples")
    before = dataclasses.replace(a.card, **{name: getattr(e.card, name) for name in unmeasured})
    a = replace(a, card=e.card)
    if e.card == before and not restarted:
        return a
    a = replace(a, failures=())
    if e.card == before:
        return repeat_all(a)
    out.append(Measure())
    return drop(a, a.tasks, "the run changed", out)


def take_profile(a: AgentState, e: on.ProfileMeasured, out: list[AgentAction]) -> AgentState:
    return replace(a, profile=e.profile, said=None)


def take_pause(a: AgentState, e: on.PauseSeen, out: list[AgentAction]) -> AgentState:
    if e.paused == a.paused:
        return a
    out.append(Log(f"pausing: {e.paused}" if e.paused else "resuming"))
    return replace(a, paused=e.paused)


def tick(a: AgentState, e: on.Ticked, out: list[AgentAction]) -> AgentState:
    if a.now - a.looked < LOOK:
        return a
    out.append(Look())
    return replace(a, looked=a.now)


# ---- tasks ---------------------------------------------------------------------------------------


def take_task(a: AgentState, e: on.TaskCame, out: list[AgentAction]) -> AgentState:
    """Open a task. A task that is open already, since a broker may deliver twice and a restarted
    coordinator asks again, gets a new deadline. If it has ended, its offer or failure is repeated.
    """
    known = find(a, e.task)
    if known is not None and known.stage == "sending":
        return put(a, replace(known, offered=False))
    if known is not None:
        if known.stage == "fetching" and known.task.slot != e.task.slot:
            out.append(Fetch(e.task))  # the weights are published elsewhere now
        return put(a, replace(known, task=e.task, until=a.now + e.task.deadline))
    wanted = e.task.round, e.task.attempt, e.task.work, e.task.submodel.name
    for failure in a.failures:
        if (failure.round, failure.attempt, failure.work, failure.submodel) == wanted:
            return replace(a, unsaid=(*a.unsaid, failure))
    a = drop(
        a, [one for one in a.tasks if supersedes(e.task, one.task)], "replaced by a newer task", out
    )
    if a.paused:
        return fail(a, e.task, a.paused, out, paused=True)
    if (largest := max((one.size for one in e.task.graphs), default=0)) > MAX_GRAPH:
        reason = f"training graph: expected at most {MAX_GRAPH} bytes, found {largest}"
        return fail(a, e.task, reason, out)
    return replace(a, tasks=(*a.tasks, OpenTask(e.task, a.now + e.task.deadline)))


def supersedes(new: Task, old: Task) -> bool:
    """Return True if `new` makes `old` obsolete. An evaluation does not supersede an earlier
    training, whose update the coordinator may still accept.
    """
    return (old.round, old.attempt) < (new.round, new.attempt) and (
        new.work == "train" or old.work != "train"
    )


def abort_tasks(a: AgentState, e: on.TasksAborted, out: list[AgentAction]) -> AgentState:
    return drop(
        a,
        [one for one in a.tasks if one.task.round <= e.round and one.task.attempt <= e.attempt],
        e.reason,
        out,
    )


def take_weights(a: AgentState, e: on.WeightsCame, out: list[AgentAction]) -> AgentState:
    one = find_active(a)
    if one is None or one.stage != "fetching" or one.task.digest != e.digest:
        return a
    return put(a, replace(one, stage="ready"))


def make_room(a: AgentState, e: on.WeightsFailed, out: list[AgentAction]) -> AgentState:
    """Remove weights that can be downloaded again. If there are none, fail the task, which another
    attempt may complete once there is room.
    """
    one = find_active(a)
    if one is None or one.stage != "fetching" or one.task.digest != e.digest:
        return a
    if e.spare:
        out.append(FreeSpace())
        return put(a, replace(one, stage="waiting"))
    a = replace(remove(a, one), loss=math.nan)
    return fail(
        a,
        one.task,
        f"no room for its weights ({one.task.size} bytes) in {e.where}",
        out,
        paused=True,
    )


def end_training(a: AgentState, e: on.TrainingEnded, out: list[AgentAction]) -> AgentState:
    one = find(a, e.task)
    if one is None or one.stage != "training":
        return a
    a = replace(a, loss=e.loss)
    if e.failure is not None:
        out.append(Forget(one.task))
        return fail(remove(a, one), one.task, e.failure, out, paused=e.full)
    out.append(Trim(one.task.digest))
    return put(a, replace(one, stage="sending"))


# ---- updates -------------------------------------------------------------------------------------


def discard_oldest(a: AgentState, e: on.SpoolOverfull, out: list[AgentAction]) -> AgentState:
    """Discard the oldest update, but never the newest."""
    updates = list_sending(a)
    if len(updates) < 2:
        return a
    out.append(
        Log(f"the spool is full: discarding the update of round {updates[0].task.round}", True)
    )
    a = drop(a, updates[:1], "the spool is full", out)
    out.append(Trim(updates[-1].task.digest))
    return a


def repeat_offer(a: AgentState, e: on.UploadStalled, out: list[AgentAction]) -> AgentState:
    one = find(a, e.task)
    if a.online and one is not None and one.stage == "sending":
        out.append(Offer(one.task, restart=False))
    return a


def take_answer(a: AgentState, e: on.UpdateAnswered, out: list[AgentAction]) -> AgentState:
    one = next((one for one in list_sending(a) if one.task.transfer == e.transfer), None)
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
    return replace(remove(a, one), finished=a.finished + done)


Handler = Callable[[AgentState, Any, list[AgentAction]], AgentState]
HANDLERS: Mapping[type, Handler] = {
    on.AnnouncementLost: repeat_announcement,
    on.CardCame: take_card,
    on.Dismissed: end,
    on.LinkBack: restore_link,
    on.LinkLost: lose_link,
    on.PauseSeen: take_pause,
    on.ProfileMeasured: take_profile,
    on.SpoolOverfull: discard_oldest,
    on.Started: start,
    on.StatusHeard: take_status,
    on.Stopped: stop,
    on.TaskCame: take_task,
    on.TasksAborted: abort_tasks,
    on.Ticked: tick,
    on.TrainingEnded: end_training,
    on.UpdateAnswered: take_answer,
    on.UploadStalled: repeat_offer,
    on.WeightsCame: take_weights,
    on.WeightsFailed: make_room,
}
