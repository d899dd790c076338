"""Write the present state of the coordinator to the run's `now.json` about once a second, in a
large fleet less often (see `coordinator.observe.now_json`).
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from coordinator.fleet.message_loop import MessageLoop
from coordinator.fleet.run_clock import TimeShare
from coordinator.observe import events
from coordinator.observe.event_readers.reader import ReaderContext
from coordinator.observe.event_readers.task_courses import TaskCourses, classify_task
from coordinator.observe.events import Publish
from coordinator.observe.now_json import FILE, STATES, FleetLoad, Member, Now, TaskCourse
from coordinator.round.round_state import Agent, Round
from federated.wire.messages import Condition

__all__ = ["measure_load", "write_now"]

EVERY = 1.0  # seconds between two writes, at least
MAX_MEMBERS = 1000  # agents that are listed one by one


def classify_agent(agent: Agent) -> str:
    """Return an agent's state, one of STATES."""
    if agent.refused:
        return "refused"
    if not agent.online:
        return "gone"
    if agent.profile is None:
        return "measuring"
    if agent.absence:
        return "paused" if agent.paused and not agent.excluded else "excluded"
    return agent.state if agent.state in STATES else "other"


def write_now(context: ReaderContext) -> Publish:
    """Make a reader that keeps the file up to date."""
    return NowWriter(context).read


class NowWriter:
    """A writer of the file, about once a second and at the run's end."""

    def __init__(self, context: ReaderContext) -> None:
        self._context, self.rounds = context, context.config.rounds
        self.phase, self.round, self.wanted, self.reason = "between", 0, 0, ""
        self.lost = {"broker": "", "store": ""}
        self.epsilon: float | None = None
        self._started, self._began, self._courses = _utc(), "", TaskCourses()
        self._share = TimeShare(context.clock, EVERY)

    def read(self, event: events.Event) -> None:
        match event:
            case events.AgentsAwaited(_, wanted):
                self.phase, self.wanted = "waiting", wanted
            case events.RoundDelayed():
                self.phase = "waiting"
            case events.RunPaused():
                self.phase = "paused"
            case events.RoundStarted(number, rounds, _):
                self.round, self.rounds, self.phase, self._began = number, rounds, "train", _utc()
            case events.LinkChanged(lost, to):
                self.lost[to] = lost
            case events.PrivacySpent(epsilon):
                self.epsilon = epsilon
            case events.RoundEnded():
                self.phase = "between"
            case events.RunEnded(phase, reason):
                self.phase, self.reason = phase, reason
            case events.FleetChanged(agent) if agent:
                self._note(agent)
            case events.UpdateFolded(entry):
                self._note(entry.agent)
            case _:
                pass
        self._write(now=isinstance(event, events.RunEnded | events.LinkChanged))

    def _note(self, agent: str) -> None:
        if self._context.fleet is not None:
            self._courses.note(self._context.fleet.round, agent)

    # ---- the file --------------------------------------------------------------------------------

    def _write(self, *, now: bool) -> None:
        """Write the file if it is due."""
        fleet, folder = self._context.fleet, self._context.folder
        if fleet is None or not (now or not self._share.pause):
            return
        part = folder / f"{FILE}.part"
        # code that must write reports a full disk
        with self._share.spend(), contextlib.suppress(OSError):
            part.write_bytes(msgspec.json.encode(self.describe(fleet)))
            part.replace(folder / FILE)

    def describe(self, fleet: MessageLoop) -> Now:
        """Return the state of the coordinator and its fleet."""
        entries = fleet.tasks
        phase = self.phase if self.phase != "train" or not entries else entries[0].task.work
        states = {entry.task.agent: classify_task(entry) for entry in entries}
        agents = sorted(fleet.agents.values(), key=lambda agent: agent.name)[:MAX_MEMBERS]
        courses = self._courses.describe(fleet.round, MAX_MEMBERS)
        elapsed, limit = measure_phase(fleet.round, courses)
        return Now(
            run=self._context.config.name,
            pid=os.getpid(),
            started=self._started,
            updated=_utc(),
            phase=phase,
            round=self.round,
            rounds=self.rounds,
            began=self._began,
            wanted=self.wanted,
            elapsed=elapsed,
            limit=limit,
            courses=courses,
            members=tuple(
                Member(
                    a.name,
                    classify_agent(a),
                    a.submodel,
                    states.get(a.name, ""),
                    None if math.isnan(a.loss) else a.loss,
                    a.absence[:200],
                    a.condition if a.online else Condition(),
                )
                for a in agents
            ),
            reason=self.reason[:1000],
            epsilon=self.epsilon,
            broker_lost=self.lost["broker"][:200],
            store_lost=self.lost["store"][:200],
            **asdict(measure_load(fleet)),
        )


def measure_phase(r: Round, courses: Sequence[TaskCourse]) -> tuple[float, float | None]:
    """Return the seconds since the current phase began, or until the last event of a closed one,
    and its deadline if it has one. courses: of its tasks.
    """
    if r.phase is None:
        return 0.0, None
    last = max((time for course in courses for _, time in course.stages), default=0.0)
    has_limit = r.rules.timeouts and math.isfinite(r.phase.limit)
    return (
        last if r.phase.closed else round(r.now - r.phase.began, 3),
        round(r.phase.limit, 3) if has_limit else None,
    )


def measure_load(fleet: MessageLoop) -> FleetLoad:
    """Return the present load of a fleet's coordinator."""
    (receiving, waiting), (files, size) = fleet.inbox.load, measure_spool(fleet.inbox.spool)
    up, down = fleet.count_bytes()
    return FleetLoad(
        tasks=dict(Counter(map(classify_task, fleet.tasks))),
        agents=dict(Counter(map(classify_agent, fleet.agents.values()))),
        bytes_up=up,
        bytes_down=down,
        receiving=receiving,
        waiting=waiting,
        queued=fleet.link.backlog,
        spool_files=files,
        spool_bytes=size,
    )


def measure_spool(spool: Path) -> tuple[int, int]:
    """Return the number of files in the spool, and their bytes."""
    files, size = 0, 0
    for folder, _, names in os.walk(spool):
        for name in names:
            with contextlib.suppress(OSError):  # deleted meanwhile
                # not pathlib, which is slow for a thousand files each second
                size += os.stat(os.path.join(folder, name)).st_size  # noqa: PTH116, PTH118
                files += 1
    return files, size


def _utc() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
