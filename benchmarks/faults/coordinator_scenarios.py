"""Scenarios of the faults benchmark that kill or suspend the coordinator, with and without a
standby.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import replace

from benchmarks.faults.parts.trial_parts import Process
from benchmarks.faults.real_agent_scenarios import choose_agents
from benchmarks.faults.trial import Trial, break_later
from benchmarks.faults.trial_settings import LIMIT, ROUNDS, RUN
from coordinator.simulate.demo_fleet import python_command
from coordinator.store.run_lock import SHORTEST
from federated.errors import FleetError, Superseded

__all__ = [
    "LASTING",
    "PACE",
    "kill_at_random",
    "kill_at_stage",
    "kill_with_standby",
    "suspend_with_standby",
]

PACE = 0.5  # seconds of a training in scenarios with a random time
LASTING = ROUNDS * PACE  # least seconds of the rounds
PER_UPDATE = {"fold": 1, "snapshot": 2}  # updates per time of a stage; others: once per round


def kill_at_stage(stage: str, when: str, *, but_last: int = 0) -> Callable[[Trial], None]:
    """Kill the coordinator (kill -9) at one of the times of a stage, except for the last ones."""

    def prepare(trial: Trial) -> None:
        choose_agents(trial)
        each = PER_UPDATE.get(stage)
        times = ROUNDS if each is None else ROUNDS * len(trial.names) // each
        chosen = trial.rng.randint(1, times - but_last)
        trial.fuse = (stage, when, str(chosen), f"{trial.rng.random():.3f}")

    return prepare


def kill_at_random(trial: Trial) -> None:
    """Kill the coordinator (kill -9) at a random moment of its three rounds."""
    choose_agents(trial)
    trial.how = replace(trial.how, delay=PACE)

    def cause_fault() -> None:
        trial.coordinator.kill()
        trial.record_fault()

    break_later(trial, cause_fault, trial.rng.uniform(0, LASTING))


def kill_with_standby(trial: Trial) -> None:
    """Kill the coordinator (kill -9) at a random moment; its standby goes on."""
    start_standby(trial, lambda coordinator: coordinator.kill())


def suspend_with_standby(trial: Trial) -> None:
    """Suspend the coordinator at a random moment. It wakes up once its standby goes on, and must
    leave the run to it.
    """
    suspended: list[Process] = []

    def suspend(coordinator: Process) -> None:
        coordinator.send_signal(signal.SIGSTOP)
        suspended.append(coordinator)

    def each() -> None:
        if suspended and trial.healed:
            suspended[0].send_signal(signal.SIGCONT)

    def check() -> str:
        until = time.monotonic() + LIMIT
        while suspended[0].exit_code is None and time.monotonic() < until:
            time.sleep(0.05)
        if suspended[0].exit_code == Superseded.exit_code:
            return ""
        return f"the earlier coordinator ended with {suspended[0].exit_code}"

    trial.each_turn.append(each)
    trial.at_end.append(check)
    start_standby(trial, suspend)


def start_standby(trial: Trial, disable: Callable[[Process], None]) -> None:
    """Start a standby before the agents, and disable the coordinator at a random moment."""
    choose_agents(trial)
    trial.how = replace(trial.how, delay=PACE)

    def begin() -> None:
        wait_for_words(trial.coordinator, "waiting: ")
        standby = trial.add_process("standby")
        run = ["--name", RUN, "--runs", str(trial.runs), "--standby", f"{SHORTEST:g}"]
        arguments = ["start", *trial.broker_arguments, *run]
        standby.start(python_command("coordinator.cli", *arguments))
        wait_for_words(standby, "standing by until")

        def cause_fault() -> None:
            disable(trial.coordinator)
            standby.starts += trial.coordinator.starts  # of coordinators of the run
            trial.coordinator = standby
            trial.record_fault()

        break_later(trial, cause_fault, trial.rng.uniform(0, LASTING))

    trial.after_begin.insert(0, begin)


def wait_for_words(process: Process, words: str) -> None:
    """Wait until a process has printed the words. FleetError: it has not."""
    until = time.monotonic() + LIMIT
    while not process.count(words):
        if process.exit_code is not None or time.monotonic() > until:
            raise FleetError(f"{process.name} did not print '{words}':\n{process.tail()}")
        time.sleep(0.05)
