"""Scenarios of the attacks benchmark that pause, starve and kill processes: pauses longer than the
keepalive, memory that runs out, and commands killed while they export, release or enrol.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from benchmarks.attacks.command_with_short_keepalive import KEEPALIVE
from benchmarks.attacks.strangers import make_address, may_connect
from benchmarks.faults.parts.trial_parts import Process
from benchmarks.faults.real_agent_scenarios import NAMES, use_real_agents
from benchmarks.faults.trial import Trial, break_later
from benchmarks.faults.trial_certificates import TlsSetup
from benchmarks.faults.trial_settings import RUN
from coordinator.simulate.demo_fleet import python_command
from edge_agent.access.enrolment import enrol
from federated.errors import EspalierError
from federated.wire.links.catalogue import open_link

__all__ = ["PROCESS_FAULTS"]

LASTING = 1.5  # seconds of the rounds within which faults happen
SHORTEST, LONGEST = 2.0 * KEEPALIVE, 2.5 * KEEPALIVE  # seconds of a pause
STARVED = 2.0  # seconds without more memory
ROOM = 4 << 20  # bytes that are left
KILLS = 3  # of the enrolment server
ENROLLED = 30.0  # seconds for a device to enrol in spite of them
FINISHED = 120.0  # seconds for a killed command to finish when it is repeated

Scenario = Callable[[Trial], None]


# ---- pauses longer than the keepalive ------------------------------------------------------------


def pause(trial: Trial, find: Callable[[], Process]) -> None:
    """Stop a process (SIGSTOP) until the broker has disconnected it."""

    def signal_process(number: int) -> None:
        process = find()
        if process.popen is not None and process.popen.poll() is None:
            process.popen.send_signal(number)

    def cause_fault() -> None:
        signal_process(signal.SIGSTOP)
        trial.record_fault()
        seconds = trial.rng.uniform(SHORTEST, LONGEST)
        trial.call_later(seconds, lambda: signal_process(signal.SIGCONT))

    break_later(trial, cause_fault, trial.rng.uniform(0, LASTING))


def pause_coordinator(trial: Trial) -> None:
    trial.how = replace(trial.how, delay=0.5)
    trial.launcher = ("benchmarks.attacks.command_with_short_keepalive", "coordinator.cli.main")
    pause(trial, lambda: trial.coordinator)


def pause_agent(trial: Trial) -> None:
    """Pause an agent while it trains."""
    agents = use_real_agents(
        trial, ("benchmarks.attacks.command_with_short_keepalive", "edge_agent.cli.main")
    )
    victim = trial.rng.choice(NAMES)
    pause(trial, lambda: agents[victim])


# ---- memory --------------------------------------------------------------------------------------


def exhaust_memory(trial: Trial) -> None:
    """Let the coordinator allocate almost no memory for some seconds."""

    def limit(size: int) -> None:
        process = trial.coordinator.popen
        if process is not None and process.poll() is None:
            resource.prlimit(process.pid, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))

    def cause_fault() -> None:
        process = trial.coordinator.popen
        if process is None or process.poll() is not None:
            return
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[0])
        limit(pages * resource.getpagesize() + ROOM)
        trial.record_fault()
        trial.call_later(STARVED, lambda: limit(resource.RLIM_INFINITY))

    break_later(trial, cause_fault, trial.rng.uniform(0, LASTING))


# ---- killed commands -----------------------------------------------------------------------------


def kill_command(what: str) -> Scenario:
    """Kill `coordinator export` or `coordinator release` beside the run, and repeat it."""

    def prepare(trial: Trial) -> None:
        trial.settings["evaluate.every"] = 1  # only evaluated submodels are exported
        helper = Process(what, trial.folder)
        trial.stack.callback(helper.kill)

        def begin() -> None:
            broker = f"{trial.host}:{trial.broker.port}"
            arguments = (str(trial.seed), str(trial.runs), RUN, broker, what)
            module = "benchmarks.attacks.killed_command"
            helper.start(python_command(module, *arguments, str(trial.folder / "release")))
            trial.record_fault()

        def finish() -> str:
            until = time.monotonic() + FINISHED
            while helper.exit_code is None and time.monotonic() < until:
                time.sleep(0.05)
            return "" if helper.exit_code == 0 else f"{what}: {helper.tail(3)}"

        trial.after_begin.append(begin)
        trial.at_end.append(finish)

    return prepare


def find_child(parent: int, words: bytes) -> int | None:
    """Return a child process with these words in its command line."""
    for path in Path(f"/proc/{parent}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            if words in Path(f"/proc/{child}/cmdline").read_bytes():
                return child
    return None


def kill_enrolment(trial: Trial) -> None:
    """Kill the enrolment server while a device enrols. It must get one certificate in the end."""
    tls = trial.tls = trial.tls or TlsSetup(trial.folder / "pki")
    trial.how = replace(trial.how, delay=2.0)  # the server ends with the run
    failed = list[str]()

    def kill() -> None:
        with contextlib.suppress(OSError):  # it has ended in the meantime
            assert trial.coordinator.popen is not None
            pid = find_child(trial.coordinator.popen.pid, b"enrolment_server_process")
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
                trial.record_fault()

    def enrol_device() -> None:
        token = tls.authority.invite("newcomer", "localhost", tls.enrolment, 60)
        until = time.monotonic() + ENROLLED
        while time.monotonic() < until:
            with contextlib.suppress(EspalierError):
                found = enrol(token, trial.folder / "newcomer")
                count = len(tls.authority.registry.list_valid("newcomer", time.time()))
                if count != 1:
                    failed.append(f"{count} certificates for one token")
                open_link(make_address(tls, found.pem), f"{RUN}-newcomer").close()
                trial.intruded += may_connect(tls, None)
                return
            time.sleep(0.05)
        failed.append(f"a device could not enrol in {ENROLLED:.0f} s")

    thread = threading.Thread(target=enrol_device, daemon=True)
    break_later(trial, thread.start, 0.0)
    for _ in range(KILLS):
        break_later(trial, kill, trial.rng.uniform(0, 3 * LASTING))

    def finish() -> str:
        thread.join(ENROLLED)
        return "; ".join(failed)

    trial.at_end.append(finish)


PROCESS_FAULTS: Mapping[str, Scenario] = MappingProxyType(
    {
        "agent pauses past its keepalive": pause_agent,
        "coordinator pauses past its keepalive": pause_coordinator,
        "memory exhausted": exhaust_memory,
        "export killed": kill_command("export"),
        "release killed": kill_command("release"),
        "enrolment killed": kill_enrolment,
    }
)
