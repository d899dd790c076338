"""Run one schedule: a coordinator and agents in virtual time, with faults and final checks."""

from __future__ import annotations

import random
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest import mock

from benchmarks.fault_schedules import virtual_disks
from benchmarks.fault_schedules.random_schedules import (
    CHARACTERS,
    COORDINATOR,
    DEATHS,
    Fault,
    Schedule,
)
from benchmarks.fault_schedules.schedule_checks import Oracle
from benchmarks.fault_schedules.virtual_agent import RESTART, RUN, Device
from benchmarks.fault_schedules.virtual_clock import Killed, Process, Stalled, World
from benchmarks.fault_schedules.virtual_disks import Disks
from benchmarks.fault_schedules.virtual_links import Network, VirtualLink
from coordinator.fleet.message_loop import MessageLoop
from coordinator.run.run_preparation import prepare
from coordinator.run.runner import RunOptions
from coordinator.run.runner import run as run_coordinator
from coordinator.settings.config import Config, load
from federated.errors import LinkError, StoreError

__all__ = ["REPLACED", "Outcome", "run_schedule"]

WATCHED = "coordinator.fleet.round_event_loop.step"  # wrapped by the oracle
REPLACED = *virtual_disks.REPLACED, "time.monotonic", WATCHED
"""Names replaced in production code during a schedule. Links, broker and task runner are passed in,
as elsewhere.
"""

Tell = Callable[[float, object], None]
"""Function that receives the time in seconds and each event or fault."""

LIMIT = 20_000.0  # virtual seconds until a run counts as stalled
MAX_STARTS = 40  # most starts of the coordinator
KEEPALIVE = 45.0  # seconds until a broker disconnects a silent client
PARTING = 300.0  # seconds for agents to learn that the run is over
# files with bit flips; a damaged journal or checkpoint cannot be resumed
FILES = ".have", ".part", ".task", ".update", ".weights"
BASE = {
    "name": RUN,
    "seed": 0,
    "data.name": "agents",
    "model.name": "mlp-small",
    "method.widths": [0.5, 1.0],
    "train.steps": 1,
    "fleet.wait": 0.0,
    "wire.chunk": 8192,
}


@dataclass
class Outcome:
    """Outcome of a schedule.

    seed: of the schedule
    wrong: first failed check; empty if none
    finished: True if all rounds are complete
    injected: faults by kind
    seconds: of virtual time
    starts: starts of the coordinator
    folded: updates
    trainings: begun by agents
    """

    seed: int
    wrong: str = ""
    finished: bool = False
    injected: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    starts: int = 1
    folded: int = 0
    trainings: int = 0


class Trial:
    """Execution of a schedule, in a folder of its own."""

    def __init__(self, schedule: Schedule, folder: Path, tell: Tell) -> None:
        self.schedule, self.folder, self.tell = schedule, folder, tell
        self.world = World(schedule.seed, LIMIT)
        self.rng = random.Random(schedule.seed + 1)  # noqa: S311  # no secret
        self.network = Network(self.world)
        self.disks = Disks(self.world, folder)
        self.outcome = Outcome(schedule.seed)
        self.happened = set[tuple[str, str]]()
        self.coordinator = Process(COORDINATOR)
        self.devices: dict[str, Device] = {}
        self.namesakes: list[Device] = []
        self.fleet: MessageLoop | None = None
        self.oracle = Oracle(folder / "runs", RUN, self._fail)
        self._wait = RESTART

    def run(self) -> Outcome:
        """Run the schedule, and return its outcome."""
        for fault in self.schedule.faults:
            self._plan(fault)
        for index, (name, pace) in enumerate(self.schedule.paces.items()):
            self.world.after(0.1 * index, partial(self._join, name, pace))
        with ExitStack() as stack:
            stack.enter_context(self.disks.replace_files())
            stack.enter_context(
                mock.patch("time.monotonic", partial(self.world.clock, self.coordinator))
            )
            stack.enter_context(mock.patch(WATCHED, self.oracle.step))
            try:
                self._run_coordinator()
            except Stalled:
                self._fail(f"stalled: unfinished after {LIMIT:.0f} s")
            for device in (*self.devices.values(), *self.namesakes):
                device.close()
        if self.outcome.finished and not self.outcome.wrong:
            honest = {name for name, device in self.devices.items() if not device.character}
            found = self.oracle.check_end(honest, self.happened, self.world.repeated)
            self.outcome.folded = sum(map(len, found.folded.values()))
        self.outcome.seconds, self.outcome.trainings = self.world.now, self.world.trainings
        return self.outcome

    # ---- the coordinator -------------------------------------------------------------------------

    def _run_coordinator(self) -> None:
        """Run the coordinator again and again, until it finishes the run."""
        self._set_deaths(self.coordinator)
        for start in range(1, MAX_STARTS + 1):
            self.outcome.starts, self._wait = start, RESTART
            if self._run_coordinator_once():
                self.outcome.finished = True
                self._dismiss_agents()
                return
            until = self.world.now + self._wait
            while self.world.step(until):
                pass
        self._fail(f"stalled: unfinished after {MAX_STARTS} starts of the coordinator")

    def _run_coordinator_once(self) -> bool:
        """Run the coordinator once. Return True if the run is finished."""
        prepared, link, runs, replaying = None, None, self.folder / "runs", False
        try:
            with self.world.turn_of(self.coordinator):
                prepared = prepare(
                    self._config(), runs, resume=(runs / RUN / "run.sqlite").exists()
                )
                link = VirtualLink(self.network, self.coordinator, sent=self.oracle.hear)
                tell = lambda event: self.tell(self.world.now, event)  # noqa: E731
                run_coordinator(
                    prepared,
                    link,
                    tell,
                    self._bind,
                    RunOptions(clock=partial(self.world.clock, self.coordinator)),
                )
            return True
        except Killed as death:
            replaying = was_raised_in(death, "replay")
        except (StoreError, LinkError, OSError) as error:
            # a person or systemd would restart it
            self.tell(self.world.now, error)
        finally:
            # a death in a replay leaves a state between two events
            if self.coordinator.dead and self.fleet is not None and not replaying:
                self.oracle.check_death(self.fleet)
            if prepared is not None:
                prepared.close()
            if link is not None:
                link.kill()
            self.fleet = None
        if self.coordinator.dead:
            self.coordinator.end_death()
            self.oracle.check_kept(damaged=("bit", COORDINATOR) in self.happened)
        return False

    def _config(self) -> Config:
        return load(None, {}, list({**BASE, **self.schedule.settings}.items()))

    def _bind(self, fleet: MessageLoop) -> None:
        self.fleet = fleet

    def _dismiss_agents(self) -> None:
        """Let agents learn that the run is over."""
        until = self.world.now + PARTING
        while not all(device.over for device in self.devices.values()) and self.world.step(until):
            pass
        # these can lose the last message, and no coordinator is left to repeat it
        forgetful = self.outcome.injected.keys() & {
            "broker forgets",
            "damage",
            "lose",
            "retained lost",
        }
        if (
            waiting := [name for name, device in self.devices.items() if not device.over]
        ) and not forgetful:
            self._fail(f"stalled: {', '.join(waiting)} did not learn that the run is over")

    def _start_another(self) -> None:
        """Check that a second coordinator of the run does not start while the first one runs."""
        if self.fleet is None or self.coordinator.dead:
            return
        try:
            prepare(self._config(), self.folder / "runs", resume=True).close()
        except StoreError:
            return
        self._fail("two coordinators ran one run")

    def _fail(self, why: str) -> None:
        self.outcome.wrong = self.outcome.wrong or why

    # ---- faults ----------------------------------------------------------------------------------

    def _plan(self, fault: Fault) -> None:
        if fault.kind not in (*DEATHS, *CHARACTERS):
            self.world.after(fault.at, partial(self._break, fault))

    def _join(self, name: str, pace: float) -> None:
        characters = [
            fault.kind
            for fault in self.schedule.faults
            if fault.who == name and fault.kind in CHARACTERS
        ][:1]
        self.outcome.injected.update(characters)
        device = self.devices[name] = Device(
            self.network, self.folder / name, name, pace, "".join(characters), self._fail
        )
        self._set_deaths(device.process)
        device.begin()
        device.tick()

    def _set_deaths(self, process: Process) -> None:
        """Set when a process dies."""
        for fault in self.schedule.faults:
            if fault.kind in DEATHS and fault.who == process.name:
                process.deaths[int(fault.at)] = partial(self._kill, fault)

    def _record_fault(self, fault: Fault) -> None:
        """Record that a fault happens."""
        self.outcome.injected[fault.kind] += 1
        self.happened.add((fault.kind, fault.who))
        self.tell(self.world.now, fault)

    def _kill(self, fault: Fault) -> None:
        """Damage the disk of a process that has died, and plan its restart."""
        self._record_fault(fault)
        folder = self.folder / ("runs" if fault.who == COORDINATOR else fault.who)
        if fault.kind == "power":
            self.disks.cut_power(folder, self.rng)
        elif fault.kind == "bit" and (
            files := [path for path in sorted(folder.rglob("*")) if path.suffix in FILES]
        ):
            self.disks.flip_bit(self.rng.choice(files), self.rng)
        if fault.who == COORDINATOR:
            self._wait = fault.lasts
        else:
            self.world.after(fault.lasts, self.devices[fault.who].begin)

    def _break(self, fault: Fault) -> None:
        self._record_fault(fault)
        process = (
            self.coordinator
            if fault.who == COORDINATOR
            else self.devices[fault.who].process
            if fault.who in self.devices
            else None
        )
        match fault.kind:
            case "cut":
                self.network.cut_links([fault.who], fault.lasts)
            case "broker restart" | "broker forgets":
                self.network.restart(fault.lasts, forget=fault.kind == "broker forgets")
            case "retained lost":
                self.network.drop_retained(fault.much)
            case "disk full":
                self.disks.full.add(fault.who)
                self.world.after(fault.lasts, partial(self.disks.full.discard, fault.who))
            case "clock" if process is not None:
                # an agent's clock never jumps back
                process.leap += fault.much if fault.who == COORDINATOR else abs(fault.much)
            case "pause" if process is not None:
                process.paused = self.world.now + fault.lasts
                if fault.lasts > KEEPALIVE:
                    self.world.after(
                        KEEPALIVE,
                        partial(self.network.cut_links, [fault.who], fault.lasts - KEEPALIVE),
                    )
            case "namesake" if fault.who in self.devices:
                copied = self.rng.choice(("", *self.devices))
                folder = self.folder / f"{fault.who}-namesake"
                # its disk can be a copy of another device's
                if copied and (self.folder / copied).is_dir() and not folder.exists():
                    shutil.copytree(self.folder / copied, folder)
                namesake = Device(self.network, folder, fault.who, 1.0, "namesake")
                self.namesakes.append(namesake)
                namesake.begin()
                namesake.tick()
            case "two coordinators":
                self._start_another()
            case _:
                self.network.begin(fault)


def was_raised_in(error: BaseException | None, function: str) -> bool:
    """Return True if an error, or one in its context, passed through a function of this name."""
    while error is not None:
        if any(
            frame.f_code.co_name == function for frame, _ in traceback.walk_tb(error.__traceback__)
        ):
            return True
        error = error.__context__
    return False


def run_schedule(schedule: Schedule, tell: Tell = lambda at, event: None) -> Outcome:
    """Run a schedule in a folder in memory."""
    folder = Path(
        tempfile.mkdtemp(
            prefix="espalier-schedule-",
            dir="/dev/shm" if Path("/dev/shm").is_dir() else None,  # noqa: S108
        )
    )
    try:
        return Trial(schedule, folder, tell).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
