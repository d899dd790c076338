"""Make the interrupted run whose files are damaged: a fleet in virtual time whose coordinator is
killed twice, and leaves its files as a killed process does. Files that no restart reads, those of
a robust rule, are damaged while the coordinator runs.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.fault_schedules.random_schedules import COORDINATOR, Schedule
from benchmarks.fault_schedules.schedule_checks import Happened, Oracle
from benchmarks.fault_schedules.schedule_run import Trial
from benchmarks.fault_schedules.virtual_agent import RUN
from benchmarks.fault_schedules.virtual_clock import Killed, Process
from benchmarks.fault_schedules.virtual_training import learn
from benchmarks.final_model_recomputation import ReplayResult, replay
from coordinator.fleet.message_loop import MessageLoop
from coordinator.views.run_damage_check import check_folder, check_run
from federated.errors import StoreError

__all__ = [
    "CHECKPOINTS",
    "PARTS",
    "ROUNDS",
    "SCHEDULE",
    "SNAPSHOTS",
    "Interrupted",
    "Refusal",
    "capture_log",
    "copy_run",
    "find_stops",
    "list_checked_files",
    "open_scratch_folder",
]

ROUNDS = 4
SETTINGS: Mapping[str, Any] = {
    "method.name": "heterofl",
    "rounds": ROUNDS,
    "journal.every": 2,
    "evaluate.every": 1,
    "evaluate.local": True,
    "fleet.min_agents": 5,
}
SCHEDULE = Schedule(0, {f"a{index}": 2.0 + index for index in range(5)}, SETTINGS)
ROBUST = replace(SCHEDULE, settings={**SETTINGS, "robust.rule": "median"})
EARLY = 520  # action before which the first coordinator dies, so that the second one resumes
CHECKPOINTS = "round-*.safetensors"
SNAPSHOTS = "total-*.safetensors"
PARTS = "kept/*.parts"


class Refusal(Exception):
    """The run cannot be resumed or repaired."""


class Dying(Process):
    """Coordinator whose files are copied at its death, as a killed process leaves them.

    watch: called before each action
    """

    def __init__(self, runs: Path, copy: Path, watch: Callable[[int], object]) -> None:
        super().__init__(COORDINATOR)
        self._runs, self._copy, self._watch = runs, copy, watch

    def count_action(self) -> None:
        if not self.dead:
            self._watch(self.actions + 1)
        was_dead = self.dead
        try:
            super().count_action()
        except Killed:
            if not was_dead:
                shutil.rmtree(self._copy, ignore_errors=True)
                shutil.copytree(self._runs, self._copy)
            raise


class Witness(Oracle):
    """Observer that only repeats the run at its end: damaged files are expected."""

    result: ReplayResult | None = None

    def check_death(self, fleet: MessageLoop) -> None:
        pass

    def check_kept(self, *, damaged: bool) -> None:
        pass

    def check_end(
        self, honest: Set[str], happened: Happened, repeated: Sequence[str]
    ) -> ReplayResult:
        self.result = replay(self.runs, self.run, make=learn)
        return self.result


class Interrupted(Trial):
    """The schedule, with a coordinator that dies twice, and damage after its second death. With a
    robust rule it dies once, and the damage comes later while it runs.
    """

    def __init__(
        self,
        folder: Path,
        stop: int,
        damage: Callable[[Path], object],
        watch: Callable[[int], object] = lambda at: None,
        *,
        robust: bool = False,
    ) -> None:
        """stop: action before which the coordinator dies, or, with a rule, before which the damage
        comes. damage: called with the run's folder. robust: use a robust rule.
        """
        (folder / "trial").mkdir()
        super().__init__(ROBUST if robust else SCHEDULE, folder / "trial", self._hear)
        self._copy, self._damage = folder / "copy", damage
        self._stop, self._robust, self._seen = stop, robust, watch
        self.runs = self.folder / "runs"
        self.oracle = self.witness = Witness(self.runs, RUN, lambda why: None)
        self.coordinator = Dying(self.runs, self._copy, self._watch)
        self.coordinator.deaths = {EARLY: lambda: None}
        if stop and not robust:
            self.coordinator.deaths[stop] = self._restore
        self.refused = ""

    def _hear(self, at: float, event: object) -> None:
        if isinstance(event, StoreError):
            self.refused = str(event)

    def _watch(self, at: int) -> None:
        with self.world.turn_of(None):
            self._seen(at)
            if self._robust and at == self._stop:
                self._damage(self.runs / RUN)

    def _restore(self) -> None:
        """Put back the files as they were at the death, and damage them."""
        shutil.rmtree(self.runs)
        shutil.copytree(self._copy, self.runs)
        self._damage(self.runs / RUN)

    def _run_coordinator_once(self) -> bool:
        before, self.refused = self.refused, ""
        done = super()._run_coordinator_once()
        if self.refused:
            found = check_run(RUN, self.runs, repair=True)
            left = [one for one in found["damaged"] if not one["repaired"]]
            if before or left or not (found["damaged"] or self._robust):
                raise Refusal(self.refused)
        return done


def find_stops(*, robust: bool = False) -> list[int]:
    """Return the numbers of the coordinator's actions at which the run's folder holds all kinds of
    files. robust: those at which it holds the files of a robust rule, after a restart.
    """
    found = list[int]()

    def watch(at: int) -> None:
        run = folder / "trial" / "runs" / RUN
        if robust:
            if at > EARLY and any(run.glob(PARTS)):
                found.append(at)
        elif (
            len(list(run.glob(CHECKPOINTS))) == 2
            and any(run.glob(SNAPSHOTS))
            and any(run.glob("*-wal"))
            and (names := frozenset(list_checked_files(run)))
            and any(name.endswith(".update") for name in names)
            and any(Path(name).match(SNAPSHOTS) for name in names)
        ):
            found.append(at)

    with capture_log(logging.NullHandler()), open_scratch_folder() as folder:
        Interrupted(folder, 0, lambda folder: None, watch, robust=robust).run()
    return found


def list_checked_files(folder: Path) -> Iterator[str]:
    """Yield the names of the files whose digests the run has recorded, such as complete updates."""
    with copy_run(folder) as copy:
        yield from (one.file for one in check_folder(copy / RUN))


@contextmanager
def copy_run(folder: Path) -> Iterator[Path]:
    """Yield a folder with a copy of the run; SQLite changes the files that it reads."""
    with tempfile.TemporaryDirectory(prefix="espalier-check-", dir=find_memory_folder()) as made:
        shutil.copytree(folder, Path(made) / RUN)
        yield Path(made)


@contextmanager
def capture_log(handler: logging.Handler) -> Iterator[None]:
    """Send the log to this handler alone, and use one thread."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ResourceWarning)  # killed processes close nothing
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.handlers = before
        root.setLevel(level)


@contextmanager
def open_scratch_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(
        prefix="espalier-bitflips-", dir=find_memory_folder(), ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def find_memory_folder() -> str | None:
    """Return a folder in memory, if there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108
