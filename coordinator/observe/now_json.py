"""Define and read `now.json`, a small file in the run's folder with the coordinator's present
state, for people and monitors.

`coordinator.observe.event_readers.now_json_writer` writes it. Nothing resumes from it, and it needs
no open port.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from federated.wire.messages import Condition

__all__ = ["FILE", "STATES", "TASKS", "FleetLoad", "Member", "Now", "TaskCourse", "read_now"]

FILE = "now.json"
TASKS = (
    "open",
    "lost",
    "received",
    "folded",
    "refused",
    "failed",
    "paused",
    "late",
    "gone",
    "other",
)
STATES = (
    "idle",
    "download",
    "train",
    "calibrate",
    "evaluate",
    "send",
    "paused",
    "measuring",
    "excluded",
    "refused",
    "gone",
    "other",
)


@dataclass(frozen=True)
class Member:
    """One agent as the coordinator sees it.

    agent: its name.
    state: one of STATES.
    submodel: that it trained last or trains now; empty for none.
    task: state of its task, one of TASKS; empty without a task.
    loss: of its latest training; None if unknown.
    reason: why it is absent; empty if it is not.
    condition: of its device, as last reported.
    """

    agent: str
    state: str
    submodel: str = ""
    task: str = ""
    loss: float | None = None
    reason: str = ""
    condition: Condition = field(default_factory=Condition)


@dataclass(frozen=True)
class TaskCourse:
    """The stages of one task of a phase. Times are seconds since the phase began.

    agent: its name.
    submodel: name of the submodel.
    stages: name and beginning of each: `fetch` (the weights), `train`, `calibrate` or `evaluate`,
        `send`, `wait` (for its turn in the order of folding), and `lost` while its agent is absent.
        The last stage of a settled task is its outcome, one of TASKS.
    due: end of its lease unless there is progress; None without a lease, or if it is settled.
    late: whether its lease has expired.
    """

    agent: str
    submodel: str
    stages: tuple[tuple[str, float], ...]
    due: float | None = None
    late: bool = False


@dataclass(frozen=True, kw_only=True)
class FleetLoad:
    """The load of a coordinator.

    tasks: number of tasks by state (see TASKS).
    agents: number of agents by state (see STATES).
    bytes_up, bytes_down: through the coordinator's link since it started.
    receiving: number of updates that are being received.
    waiting: number of updates that wait for a slot.
    queued: number of received messages that are not handled yet.
    spool_files, spool_bytes: on the coordinator's disk.
    """

    tasks: dict[str, int] = field(default_factory=dict)
    agents: dict[str, int] = field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    receiving: int = 0
    waiting: int = 0
    queued: int = 0
    spool_files: int = 0
    spool_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Now(FleetLoad):
    """The state and load of a coordinator. Times are UTC in ISO 8601.

    run: its name.
    pid: of the coordinator.
    started: time at which the coordinator started.
    updated: time of this record.
    phase: waiting, paused, train, calibrate, evaluate, between, over, stopped or failed.
    round: in progress, or finished last.
    rounds: number of rounds of the run.
    began: time at which the round started.
    wanted: number of agents that the run waits for.
    elapsed: seconds since the phase began; of a closed phase, until its last event.
    limit: seconds after which the phase closes; None without a deadline.
    members: the agents, up to a limit.
    courses: the tasks of the phase, or of the last one, up to a limit.
    reason: why the run ended.
    epsilon: privacy spent by all rounds so far; None without privacy or before the first round.
    broker_lost: why there is no connection to the broker; empty if there is.
    store_lost: why the store of the transfers cannot be reached; empty if it can, or there is none.
    """

    run: str
    pid: int
    started: str
    updated: str
    phase: str
    round: int
    rounds: int
    began: str = ""
    wanted: int = 0
    elapsed: float = 0.0
    limit: float | None = None
    members: tuple[Member, ...] = ()
    courses: tuple[TaskCourse, ...] = ()
    reason: str = ""
    epsilon: float | None = None
    broker_lost: str = ""
    store_lost: str = ""


def read_now(folder: Path) -> Now | None:
    """Return the last record of the coordinator; None if there is no valid file."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Now)
    except (OSError, msgspec.DecodeError):
        return None
