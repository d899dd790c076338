"""Scenarios of the faults benchmark that cut the power of a coordinator or an agent, on a disk that
loses unsynced writes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.faults.parts.trial_parts import Process, run_system
from benchmarks.faults.real_agent_scenarios import (
    NAMES,
    choose_agents,
    start_agent,
    use_real_agents,
)
from benchmarks.faults.trial import Trial
from coordinator.simulate.demo_fleet import python_command
from federated.errors import FleetError

__all__ = ["cut_power_of_agent", "cut_power_of_coordinator", "explain_unmountable"]

MOUNTING = 15.0  # seconds
KILLED = -9  # exit code of a process that the disk killed
# A run of three rounds changes its disk 1,000 times, an agent the disk of its spool 90 times.
CHANGES, CHANGES_RESUMED, CHANGES_OF_AGENT = 950, 50, 25


def explain_unmountable() -> str:
    """Return why this machine cannot mount a disk with FUSE; empty if it can."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be opened"
    if os.geteuid() != 0:
        return "only root may mount"
    try:
        import mfusepy  # noqa: F401
    except ModuleNotFoundError:
        return "mfusepy is not installed; install the extra dev"
    except OSError as error:  # it needs the library of the system
        return f"{error}; install libfuse2"
    return ""


class Power:
    """The power of a disk that is mounted at a folder."""

    def __init__(self, folder: Path, process: Process) -> None:
        self.folder, self._process = folder, process
        self._wait()

    def cut(self) -> None:
        """Lose what was not synced, once its killed processes have ended. It is then mounted again.

        FleetError: it is still in use.
        """
        until = time.monotonic() + MOUNTING
        while True:
            try:
                run_system("umount", str(self.folder))
                break
            except FleetError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)
        self._wait()

    def _wait(self) -> None:
        until = time.monotonic() + MOUNTING
        while not self.folder.is_mount():
            if time.monotonic() > until or self._process.exit_code is not None:
                raise FleetError(f"the disk was not mounted:\n{self._process.tail()}")
            time.sleep(0.02)


@contextmanager
def mount_lossy_disk(
    folder: Path, logs: Path, seed: int, instants: Sequence[int]
) -> Iterator[Power]:
    """Mount a disk of `benchmarks.faults.parts.lossy_disk`. FleetError: this machine cannot."""
    if why := explain_unmountable():
        raise FleetError(f"cannot mount a disk: {why}")
    folder.mkdir(parents=True, exist_ok=True)
    process = Process("disk", logs)
    numbers = map(str, (seed, *instants))
    process.start(python_command("benchmarks.faults.parts.lossy_disk", str(folder), *numbers))
    try:
        yield Power(folder, process)
    finally:
        process.kill()
        with contextlib.suppress(FleetError):
            run_system("umount", "-l", str(folder))


def cut_power_of_coordinator(trial: Trial) -> None:
    """Cut the power of the coordinator at a change of its disk, and again after it resumed."""
    choose_agents(trial)
    instants = trial.rng.randint(1, CHANGES), trial.rng.randint(1, CHANGES_RESUMED)
    power = trial.stack.enter_context(
        mount_lossy_disk(trial.runs, trial.folder, trial.seed, instants)
    )

    def cut() -> None:
        if trial.coordinator.exit_code == KILLED:
            trial.record_fault()
            power.cut()

    trial.before_restart.append(cut)


def cut_power_of_agent(trial: Trial) -> None:
    """Cut the power of an agent that trains at a change of its spool."""
    agents, victim = use_real_agents(trial), trial.rng.choice(NAMES)
    instants = trial.rng.randint(1, CHANGES_OF_AGENT), trial.rng.randint(1, CHANGES_OF_AGENT)
    power = trial.stack.enter_context(
        mount_lossy_disk(trial.folder / "spool" / victim, trial.folder, trial.seed, instants)
    )

    def each() -> None:
        if agents[victim].exit_code == KILLED:
            trial.record_fault()
            power.cut()
            start_agent(trial, agents[victim])

    trial.each_turn.append(each)
