"""Scenarios of the attacks benchmark without an attacker: flip bits of files, let clocks jump,
pause or kill processes, and block one direction of a link.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from types import MappingProxyType

from benchmarks.faults.parts.proxy import Proxy
from benchmarks.faults.parts.trial_parts import Process
from benchmarks.faults.trial import Trial, break_later
from benchmarks.faults.trial_settings import RUN, coordinator_arguments
from coordinator.broker.local_addresses import find_free_port
from coordinator.simulate.demo_fleet import process_environment, python_command
from federated.wire import topics
from federated.wire.links.catalogue import open_link

__all__ = ["DAMAGE"]

DAMAGED = 7  # exit code of a coordinator whose files are damaged
REPLACED = 9  # exit code of a coordinator that another one replaced
LASTING = 1.5  # seconds of the rounds within which faults happen
DESCRIPTORS = 128  # limit of a coordinator's open files
RETAINED = 1000  # messages that a broker forgets at most
CONNECTIONS = 300  # that a stranger opens

Scenario = Callable[[Trial], None]


# ---- files ---------------------------------------------------------------------------------------


def flip_run_bit(pattern: str) -> Scenario:
    """Kill the coordinator in its second round, and flip a bit of one of these files."""

    def prepare(trial: Trial) -> None:
        trial.fuse = ("fold", "after", str(trial.rng.randint(6, 7)), "0")

        def damage() -> None:
            if trial.coordinator.starts == 1:
                flip_bit(trial, pattern)
            elif trial.coordinator.exit_code == DAMAGED:
                repair(trial)

        trial.before_restart.append(damage)

    return prepare


def flip_bit(trial: Trial, pattern: str) -> None:
    """Flip a random bit of a random file of the run, if there is one."""
    found = sorted(path for path in (trial.runs / RUN).glob(pattern) if path.is_file())
    found = [path for path in found if path.stat().st_size]
    if not found:
        return
    path = trial.rng.choice(found)
    data = bytearray(path.read_bytes())
    data[trial.rng.randrange(len(data))] ^= 1 << trial.rng.randrange(8)
    path.write_bytes(data)
    trial.record_fault()


def repair(trial: Trial) -> None:
    """Do what the coordinator's error says. Restart the agents, whose rounds may be repeated."""
    subprocess.run(  # noqa: S603
        python_command("coordinator.cli", "check", RUN, "--repair", "--runs", str(trial.runs)),
        env=process_environment(),
        check=False,
        capture_output=True,
        timeout=60,
    )
    for one in trial.fleet.sockets.values():
        one.kill()


# ---- processes -----------------------------------------------------------------------------------


def kill_twice(trial: Trial) -> None:
    """Kill the coordinator, and again while it resumes."""
    trial.how = replace(trial.how, delay=0.5)
    due = 0.0

    def cause_fault() -> None:
        nonlocal due
        trial.coordinator.kill()
        trial.record_fault()
        due = time.monotonic() + trial.rng.uniform(1.5, 5.0)

    def kill_again() -> None:
        nonlocal due
        if due and time.monotonic() > due:
            due = 0.0
            trial.coordinator.kill()
            trial.record_fault()

    break_later(trial, cause_fault, trial.rng.uniform(0, LASTING))
    trial.each_turn.append(kill_again)


def kill_in_evaluation(trial: Trial) -> None:
    trial.settings["evaluate.every"] = 1
    trial.fuse = ("evaluate", "during", str(trial.rng.randint(1, 2)), f"{trial.rng.random():.3f}")


def pause(name: str, shortest: float, longest: float) -> Scenario:
    """Stop a process of the trial for some seconds (SIGSTOP)."""

    def prepare(trial: Trial) -> None:
        due = 0.0

        def signal_process(number: int) -> None:
            process = trial.broker.process if name == "broker" else trial.coordinator
            if process.popen is not None and process.popen.poll() is None:
                process.popen.send_signal(number)

        def cause_fault() -> None:
            nonlocal due
            signal_process(signal.SIGSTOP)
            trial.record_fault()
            due = time.monotonic() + trial.rng.uniform(shortest, longest)

        def wake_up() -> None:
            nonlocal due
            if due and time.monotonic() > due:
                due = 0.0
                signal_process(signal.SIGCONT)

        break_later(trial, cause_fault, trial.rng.uniform(0, LASTING))
        trial.each_turn.append(wake_up)

    return prepare


def take_over(trial: Trial) -> None:
    """Stop the coordinator, start another one from a copy of the run, and wake up the first."""
    trial.how = replace(trial.how, delay=0.5)
    earlier: list[Process] = []
    woken = False

    def cause_fault() -> None:
        first = trial.coordinator
        assert first.popen is not None
        first.popen.send_signal(signal.SIGSTOP)
        earlier.append(first)
        copy = trial.folder / "copy"
        shutil.copytree(trial.runs, copy)
        trial.runs = copy
        trial.coordinator = Process("later", trial.folder, forked=trial.forked)
        trial.coordinator.starts = first.starts
        trial.stack.callback(trial.coordinator.kill)
        where = ["--broker", f"127.0.0.1:{trial.broker.port}"]
        arguments = coordinator_arguments(
            where, copy, {"rounds": trial.rounds, **trial.settings}, resume=True
        )
        trial.coordinator.start(python_command("coordinator.cli", *arguments))
        trial.record_fault()

    def wake_up() -> None:
        """Wake up the first one once the other one has asked an agent."""
        nonlocal woken
        if earlier and not woken and trial.coordinator.count("round ") > 0:
            woken = True
            assert earlier[0].popen is not None
            earlier[0].popen.send_signal(signal.SIGCONT)
        if woken and earlier[0].exit_code not in (None, REPLACED):
            trial.intruded += 1
            earlier.clear()
            woken = False

    break_later(trial, cause_fault, trial.rng.uniform(0.1, LASTING))
    trial.each_turn.append(wake_up)


def jump(seconds: float) -> Scenario:
    """Let the coordinator's clock jump after some folds."""

    def prepare(trial: Trial) -> None:
        after = str(trial.rng.randint(1, 8))
        trial.launcher = ("benchmarks.attacks.coordinator_with_jumping_clock", str(seconds), after)
        break_later(trial, trial.record_fault, 0.1)

    return prepare


# ---- links and broker ----------------------------------------------------------------------------


def partition(way: str) -> Scenario:
    """Hold back everything that one agent sends, or receives, for some seconds."""

    def prepare(trial: Trial) -> None:
        trial.how = replace(trial.how, delay=0.5)

        def begin() -> None:
            proxy = Proxy((trial.host, trial.broker.port))
            trial.stack.callback(proxy.close)
            addresses = {**trial.how.addresses, trial.names[1]: ("127.0.0.1", proxy.port)}
            trial.fleet.how = replace(trial.fleet.how, addresses=addresses)

            def cause_fault() -> None:
                until = time.monotonic() + trial.rng.uniform(1.0, 4.0)
                if way == "up":
                    proxy.hold_up = until
                else:
                    proxy.hold_down = until
                trial.record_fault()

            break_later(trial, cause_fault, trial.rng.uniform(0, LASTING))

        trial.after_begin.append(begin)

    return prepare


def flap(trial: Trial) -> None:
    """Restart the broker three times in a row."""
    trial.how = replace(trial.how, delay=0.5)

    def cause_fault() -> None:
        for _ in range(3):
            trial.broker.kill()
            trial.broker.start()
            time.sleep(0.3)
        trial.record_fault()

    break_later(trial, cause_fault, trial.rng.uniform(0, LASTING))


def drop_retained(trial: Trial) -> None:
    """Remove all retained messages, as a broker that lost them."""
    trial.how = replace(trial.how, delay=0.5)

    def cause_fault() -> None:
        with closing(open_link(f"{trial.host}:{trial.broker.port}", "broker-itself")) as link:
            link.subscribe(topics.all_topics())
            found: list[str] = []
            while (delivery := link.receive(0.3)) is not None and len(found) < RETAINED:
                found += [delivery.topic] if delivery.retained else []
            for topic in found:
                link.publish(topic, b"", retain=True)
        trial.record_fault()

    break_later(trial, cause_fault, trial.rng.uniform(0, LASTING))


def exhaust_descriptors(trial: Trial) -> None:
    """Open more silent connections to the metrics server than the coordinator may have files."""
    trial.under = ("/bin/sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh")
    port = find_free_port("127.0.0.1", 0)
    trial.settings["metrics.listen"] = f"127.0.0.1:{port}"
    opened: list[socket.socket] = []

    def cause_fault() -> None:
        for _ in range(CONNECTIONS):
            try:
                opened.append(socket.create_connection(("127.0.0.1", port), 0.2, ("127.0.0.2", 0)))
            except OSError:
                break
        trial.record_fault()

    def close() -> None:
        for one in opened:
            one.close()

    trial.stack.callback(close)
    break_later(trial, cause_fault, 0.1)


DAMAGE: Mapping[str, Scenario] = MappingProxyType(
    {
        "bit flip in a checkpoint": flip_run_bit("round-*"),
        "bit flip in a snapshot": flip_run_bit("total-*"),
        "bit flip in the journal": flip_run_bit("journal-*"),
        "bit flip in the spool": flip_run_bit("spool/**/*"),
        "bit flip in the database": flip_run_bit("run.sqlite*"),
        "coordinator killed while it resumes": kill_twice,
        "coordinator killed in an evaluation": kill_in_evaluation,
        "coordinator pauses": pause("coordinator", 1.0, 6.0),
        "broker pauses": pause("broker", 1.0, 6.0),
        "two coordinators": take_over,
        "clock jumps a year ahead": jump(3e7),
        "clock jumps to 1970": jump(-1.7e9),
        "one-way partition, up": partition("up"),
        "one-way partition, down": partition("down"),
        "broker flaps": flap,
        "broker drops retained messages": drop_retained,
        "descriptors exhausted": exhaust_descriptors,
    }
)
