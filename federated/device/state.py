"""The values of an agent: its tasks, and what it knows, said and remembers. Nothing here changes or
waits.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from federated.device.namesake import Namesake
from federated.task import Profile, Task
from federated.wire.messages import Failure, Run

__all__ = ["AgentState", "OpenTask", "active", "activity", "find", "put", "sending", "without"]

Stage: TypeAlias = Literal["waiting", "fetching", "ready", "training", "sending"]


class OpenTask(Struct, frozen=True):
    """A task that is not answered yet.

    task: as it was asked for last.
    until: when it is given up unless it is done, in the agent's seconds.
    stage: waiting (for its turn), fetching (its weights), ready (they are here), training, or
    sending (its update).
    offered: whether its update was offered on the present connection.
    """

    task: Task
    until: float = math.inf
    stage: Stage = "waiting"
    offered: bool = False

    def is_for(self, task: Task) -> bool:
        """Whether this is the same attempt at the same work."""
        return self.task.key == task.key and self.task.attempt == task.attempt


class AgentState(Struct, frozen=True):
    """An agent between two events.

    card: of the run.
    name, session: of the agent, and of its process.
    profile: what the device measured of itself.
    now: when the last event happened, in the agent's seconds.
    online: whether the link is up, and the agent has joined.
    paused: why it takes no task at present; empty where it does.
    looked: when it last looked whether it may work.
    said: the `paused` of its last status; None where it has to introduce itself.
    tasks: the open ones, in the order in which they came.
    failures: of tasks that failed, the oldest first; each is told again if its task is asked for
    again.
    unsaid: failures that the coordinator is to be told.
    loss: of its last training; NaN before.
    beaten: when the last heartbeat went, and what the agent was doing then.
    finished: trainings whose updates the coordinator accepted.
    namesake: what it knows of other agents of its name.
    over: why its part is over; empty while it is not.
    refused: whether it was turned away.
    """

    card: Run
    name: str
    session: str
    profile: Profile
    now: float = 0.0
    online: bool = False
    paused: str = ""
    looked: float = 0.0
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
    """The open task that is the same attempt at the same work."""
    return next((one for one in a.tasks if one.is_for(task)), None)


def active(a: AgentState) -> OpenTask | None:
    """The task whose turn it is: its weights are on their way or here, or it is being trained."""
    return next((one for one in a.tasks if one.stage in ("fetching", "ready", "training")), None)


def sending(a: AgentState) -> list[OpenTask]:
    """Tasks whose updates are finished, the oldest first."""
    return [one for one in a.tasks if one.stage == "sending"]


def activity(a: AgentState) -> str:
    """What the agent does, in one word: the work of the task in training, download, send or
    idle.
    """
    if (one := active(a)) is not None:
        return one.task.work if one.stage == "training" else "download"
    return "send" if sending(a) else "idle"


# ---- changes -------------------------------------------------------------------------------------


def put(a: AgentState, changed: OpenTask) -> AgentState:
    """The agent with an open task changed."""
    return replace(a, tasks=tuple(changed if one.is_for(changed.task) else one for one in a.tasks))


def without(a: AgentState, *gone: OpenTask) -> AgentState:
    """The agent without these tasks."""
    return replace(
        a, tasks=tuple(one for one in a.tasks if not any(one is other for other in gone))
    )
