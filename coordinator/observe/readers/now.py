"""Keeps a run's `now.json` up to date (see `coordinator.observe.now_file`), about once a second
while the coordinator turns.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from coordinator.fleet.fleet import Fleet
from coordinator.observe import events
from coordinator.observe.events import Publish
from coordinator.observe.now_file import FILE, STATES, TASKS, Member, Now
from coordinator.observe.readers.reader import ReaderContext
from coordinator.round.round import Agent
from coordinator.round.task_state import TaskState

__all__ = ["FleetLoad", "NowWriter", "fleet_load", "standing", "state_of", "write_now"]

EVERY = 1.0  # seconds between two writings
AGENTS = 1000  # at most so many are written one by one


def state_of(agent: Agent) -> str:
    """How an agent is, in one of STATES."""
    if agent.refused:
        return "refused"
    if not agent.online:
        return "gone"
    if agent.profile is None:
        return "measuring"
    if agent.absence:
        return "paused" if agent.paused and not agent.excluded else "excluded"
    return agent.state if agent.state in STATES else "other"


def standing(entry: TaskState) -> str:
    """How a task stands, in one of TASKS."""
    if entry.outcome:
        word = entry.outcome.partition(":")[0]
        return word if word in TASKS else "other"
    if entry.came:
        return "received"
    return "lost" if entry.lost >= 0 else "open"


def write_now(context: ReaderContext) -> Publish:
    """Make a reader that keeps the file up to date."""
    return NowWriter(context).read


class NowWriter:
    """Keeps the file up to date, about once a second and at each round's start and end."""

    def __init__(self, context: ReaderContext) -> None:
        self._context, self.rounds = context, context.config.rounds
        self.phase, self.round, self.wanted, self.reason = "between", 0, 0, ""
        self.epsilon: float | None = None
        self._started, self._began = _utc(), ""
        self._written = -math.inf

    def read(self, event: events.Event) -> None:
        match event:
            case events.AgentsAwaited(_, wanted):
                self.phase, self.wanted = "waiting", wanted
            case events.RoundDelayed():
                self.phase = "waiting"
            case events.RunPaused():
                self.phase = "paused"
            case events.RoundBegan(number, rounds, _):
                self.round, self.rounds, self.phase, self._began = number, rounds, "train", _utc()
            case events.PrivacySpent(epsilon):
                self.epsilon = epsilon
            case events.RoundEnded():
                self.phase = "between"
            case events.RunEnded(phase, reason):
                self.phase, self.reason = phase, reason
            case _:
                pass
        self._write(now=isinstance(event, events.RoundBegan | events.RoundEnded | events.RunEnded))

    # ---- the file --------------------------------------------------------------------------------

    def _write(self, *, now: bool) -> None:
        """Write the file, if it is time to."""
        at, fleet, folder = self._context.clock(), self._context.fleet, self._context.folder
        if fleet is None or not (now or at - self._written >= EVERY):
            return
        self._written = at
        part = folder / f"{FILE}.part"
        with contextlib.suppress(OSError):  # a full disk is said by those who must write
            part.write_bytes(msgspec.json.encode(self.now(fleet)))
            part.replace(folder / FILE)

    def now(self, fleet: Fleet) -> Now:
        entries = fleet.tasks
        phase = self.phase if self.phase != "train" or not entries else entries[0].task.work
        agents = sorted(fleet.agents.values(), key=lambda agent: agent.name)
        return Now(
            self._context.config.name,
            os.getpid(),
            self._started,
            _utc(),
            phase,
            self.round,
            self.rounds,
            self._began,
            self.wanted,
            members=tuple(members(agents[:AGENTS], entries)),
            reason=self.reason[:1000],
            epsilon=self.epsilon,
            **asdict(fleet_load(fleet)),
        )


@dataclass(frozen=True)
class FleetLoad:
    """What a coordinator has to do, by the fields of the same names in `Now`."""

    tasks: dict[str, int]
    agents: dict[str, int]
    bytes_up: int
    bytes_down: int
    receiving: int
    waiting: int
    queued: int
    spool_files: int
    spool_bytes: int


def fleet_load(fleet: Fleet) -> FleetLoad:
    """What the coordinator of a fleet has to do at this moment."""
    (receiving, waiting), (files, size) = fleet.inbox.load, spooled(fleet.inbox.spool)
    return FleetLoad(
        tasks=dict(Counter(map(standing, fleet.tasks))),
        agents=dict(Counter(map(state_of, fleet.agents.values()))),
        bytes_up=fleet.link.received_bytes,
        bytes_down=fleet.link.sent_bytes,
        receiving=receiving,
        waiting=waiting,
        queued=fleet.link.backlog,
        spool_files=files,
        spool_bytes=size,
    )


def members(agents: list[Agent], entries: list[TaskState]) -> list[Member]:
    tasks = {entry.task.agent: standing(entry) for entry in entries}
    return [
        Member(
            a.name,
            state_of(a),
            a.submodel,
            tasks.get(a.name, ""),
            None if math.isnan(a.loss) else a.loss,
            a.absence[:200],
        )
        for a in agents
    ]


def spooled(spool: Path) -> tuple[int, int]:
    """Files in the spool, and their bytes together."""
    files, size = 0, 0
    for folder, _, names in os.walk(spool):
        for name in names:
            with contextlib.suppress(OSError):  # gone meanwhile
                # of a thousand files, each second
                size += os.stat(os.path.join(folder, name)).st_size  # noqa: PTH116, PTH118
                files += 1
    return files, size


def _utc() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
