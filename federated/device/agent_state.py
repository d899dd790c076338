"""The state of an agent, of its open tasks, and of other agents with its name: frozen records.

Of two agents with the same name, the older one leaves. Both subscribe to the status topic of their
name, where each publishes its session when it joins (its birth). The broker orders all births. So a
status that arrives before the agent's own birth is older than the agent, and one that arrives
afterwards is newer. A disconnection proves nothing: a broker that identifies clients by name
disconnects the first when the second connects, but a bad network looks the same, and a broker that
identifies clients by certificate keeps both.

A status that the broker retained while the agent was offline proves less: a broker that restarts
from a backup may retain the status of an earlier process. So the agent publishes its birth again,
which replaces that status, and stays. A real namesake receives that birth and leaves, or tells the
agent to leave, or was disconnected by the agent's return and publishes its own birth within 1 to
2 s. An agent that finds the same namesake twice, with a birth of its own in between, leaves.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from federated.task import Profile, Task
from federated.wire.messages import Failure, Run, Status

__all__ = [
    "ANSWERS",
    "AgentState",
    "Namesake",
    "OpenTask",
    "Verdict",
    "describe_activity",
    "find",
    "find_active",
    "judge_status",
    "list_sending",
    "put",
    "remove",
]

Verdict: TypeAlias = Literal["", "stay", "leave"]

# births published to a namesake that does not leave; after that, births seem to get lost, and the
# order of the sessions decides
ANSWERS = 3


class Namesake(Struct, frozen=True):
    """The other agents with an agent's name, by the sessions of their processes.

    born: whether its own birth came back from the broker.
    returned: whether it has lost its connection since it joined.
    older: sessions that joined before it.
    found: sessions whose status the broker had retained when it returned.
    replaced: those of `found` that a birth of its own has replaced since.
    answers: number of times that it told an older one to leave.
    """

    born: bool = False
    returned: bool = False
    older: frozenset[str] = frozenset()
    found: frozenset[str] = frozenset()
    replaced: frozenset[str] = frozenset()
    answers: int = 0


def judge_status(
    known: Namesake, session: str, status: Status, *, retained: bool
) -> tuple[Namesake, Verdict]:
    """Handle a status of the agent's name. Return the new state, and whether the agent leaves, or
    stays and tells the other one to leave.
    """
    if status.session == session:
        if status.online and not retained:  # neither its last will nor a retained status
            known = replace(known, born=True, replaced=known.replaced | known.found)
        return known, ""
    if not known.born or (retained and not known.returned):
        return replace(known, older=known.older | {status.session}), ""
    if not status.online or (retained and status.session in known.older):
        return known, ""
    if status.session in known.older:
        known = replace(known, answers=known.answers + 1)
        return known, "leave" if known.answers > ANSWERS and session < status.session else "stay"
    if retained and status.session not in known.replaced:
        return replace(known, found=known.found | {status.session}), ""
    return known, "leave"


Stage: TypeAlias = Literal["waiting", "fetching", "ready", "training", "sending"]


class OpenTask(Struct, frozen=True):
    """A task whose update is not answered yet.

    task: the task as it arrived last.
    until: its deadline, in the agent's seconds.
    stage: waiting (for its turn), fetching (its weights), ready (to train), training, or sending
        (its update).
    offered: whether its update was offered on the current connection.
    """

    task: Task
    until: float = math.inf
    stage: Stage = "waiting"
    offered: bool = False

    def is_for(self, task: Task) -> bool:
        """Return True if this is the same attempt at the same work."""
        return self.task.key == task.key and self.task.attempt == task.attempt


class AgentState(Struct, frozen=True):
    """The state of an agent between two events.

    card: the run's card.
    name: the agent's name.
    session: identifies its process.
    profile: the device's measurements of itself.
    now: time of the last event, in the agent's seconds.
    online: whether the agent has joined and the link is up.
    paused: why it accepts no task now; empty if it does.
    looked: time at which it last checked whether it may work.
    repeated: time at which it last repeated its profile and status because the coordinator lacked
        them, and the number of repetitions.
    said: the `paused` of its last status; None if it must publish its profile and status.
    tasks: the open tasks, in order of arrival.
    failures: of failed tasks, the oldest first; sent again if the task arrives again.
    unsaid: failures that are not sent yet.
    loss: of its last training; NaN before.
    beaten: time of the last heartbeat, and the agent's activity then.
    finished: number of trainings whose updates the coordinator accepted.
    namesake: other agents with its name.
    over: why its part in the run has ended; empty until then.
    refused: whether the coordinator rejected the agent.
    """

    card: Run
    name: str
    session: str
    profile: Profile
    now: float = 0.0
    online: bool = False
    paused: str = ""
    looked: float = 0.0
    repeated: tuple[float, int] = (-math.inf, 0)
    said: str | None = None
    tasks: tuple[OpenTask, ...] = ()
    failures: tuple[Failure, ...] = ()
    unsaid: tuple[Failure, ...] = ()
    loss: float = math.nan
    beaten: tuple[float, str] = (0.0, "")
    finished: int = 0
    namesake: Namesake = Namesake()
    over: str = ""
    refused: bool = False


# ---- queries -------------------------------------------------------------------------------------


def find(a: AgentState, task: Task) -> OpenTask | None:
    """Return the open task that is the same attempt at the same work."""
    return next((one for one in a.tasks if one.is_for(task)), None)


def find_active(a: AgentState) -> OpenTask | None:
    """Return the task being worked on: its weights are being fetched or are here, or it trains."""
    return next((one for one in a.tasks if one.stage in ("fetching", "ready", "training")), None)


def list_sending(a: AgentState) -> list[OpenTask]:
    """Return the tasks with a finished update, the oldest first."""
    return [one for one in a.tasks if one.stage == "sending"]


def describe_activity(a: AgentState) -> str:
    """Return the agent's activity in one word: the work of the task in training, download, send or
    idle.
    """
    if (one := find_active(a)) is not None:
        return one.task.work if one.stage == "training" else "download"
    return "send" if list_sending(a) else "idle"


# ---- changes -------------------------------------------------------------------------------------


def put(a: AgentState, changed: OpenTask) -> AgentState:
    """Return the agent with a changed open task."""
    return replace(a, tasks=tuple(changed if one.is_for(changed.task) else one for one in a.tasks))


def remove(a: AgentState, *gone: OpenTask) -> AgentState:
    """Return the agent without these tasks."""
    return replace(
        a, tasks=tuple(one for one in a.tasks if not any(one is other for other in gone))
    )
