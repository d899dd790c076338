"""Measure one flood: a run with TLS and an inference server on one processor, and an attacker on
another that is idle, floods, and is idle again.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.attacks.malicious_agents import DEADLINE, LIAR
from benchmarks.faults.parts.trial_parts import Process
from benchmarks.faults.trial import Trial
from benchmarks.faults.trial_certificates import TlsSetup
from benchmarks.faults.trial_settings import RUN
from benchmarks.floods.attacker import AGENT_FLOODS, STRANGER_FLOODS, Attacker, Order
from coordinator.broker.local_addresses import find_free_port
from coordinator.simulate.demo_fleet import python_command
from coordinator.store.run_store import Store
from edge_agent.access.enrolment import enrol
from federated.errors import EspalierError, FleetError, UsageError

__all__ = ["FLOODS", "Arm", "Subject", "Watch", "measure"]

RULE = Path(__file__).parents[2] / "deploy" / "mosquitto" / "connection-limit.nft"
FLOODS = (*STRANGER_FLOODS, *AGENT_FLOODS)
DELAY = 0.3  # seconds of an honest training
CHUNK = 256 << 10  # bytes
ROUNDS = 100_000  # more than any row needs
WARM_UP = 8  # rounds before the first measured one: caches fill, and agents are measured
SAMPLING = 0.05  # seconds between two samples of memory
PROBING = 0.5  # seconds between two honest enrolments
STARTING = 60.0  # seconds for the inference server to answer
LONGEST = 90.0  # seconds of an arm


@dataclass(frozen=True)
class Subject:
    """Network of a trial.

    settings: of the coordinator
    graph: exported network for the inference server
    question: one example as JSON
    bytes: size of its float32 weights
    """

    settings: dict[str, object]
    graph: Path
    question: bytes
    bytes: int


@dataclass
class Arm:
    """Measurements of a part of a trial.

    rounds: seconds of each round that began and ended in it
    enrolments: seconds of each honest enrolment, failed ones included
    failed: enrolments that failed
    answers: seconds of each honest question to the inference server, failed ones included
    unanswered: questions that failed
    memory: samples in MB, by process
    """

    rounds: list[float] = field(default_factory=list)
    enrolments: list[float] = field(default_factory=list)
    failed: int = 0
    answers: list[float] = field(default_factory=list)
    unanswered: int = 0
    memory: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Watch:
    """Measurements of a flood.

    before, during, after: the flood
    count: connections, questions or messages of the flood
    seconds: duration of the flood
    """

    before: Arm
    during: Arm
    after: Arm
    count: int
    seconds: float

    @property
    def calm(self) -> list[float]:
        """Seconds of all undisturbed rounds."""
        return [*self.before.rounds, *self.after.rounds]


class Helpers:
    """Threads that sample memory and enrol honest devices, until closed. `arm` may be exchanged."""

    def __init__(
        self, ports: dict[str, int], tls: TlsSetup, subject: Subject, folder: Path
    ) -> None:
        self.arm, self._ports, self._tls = Arm(), ports, tls
        self._subject, self._folder = subject, folder
        self._stop, self._number = threading.Event(), 0
        self.processes: dict[str, int] = {}
        self._threads = [
            threading.Thread(target=repeat, args=(function, pause, self._stop), daemon=True)
            for function, pause in ((self._sample, SAMPLING), (self._probe, PROBING))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30.0)

    def _sample(self) -> None:
        for name, pid in self.processes.items():
            self.arm.memory.setdefault(name, []).append(read_resident(pid))

    def _probe(self) -> None:
        self._number += 1
        arm, name = self.arm, f"honest-{self._number}"
        token = self._tls.authority.invite(name, "localhost", self._ports["enrolment"], 60)
        start = time.monotonic()
        try:
            enrol(token, self._folder / "honest" / name)
        except EspalierError:
            arm.failed += 1
        arm.enrolments.append(time.monotonic() - start)
        start = time.monotonic()
        if not ask(self._ports["inference"], self._subject.question):
            arm.unanswered += 1
        arm.answers.append(time.monotonic() - start)


def repeat(function: Callable[[], None], pause: float, stop: threading.Event) -> None:
    """Call a function until `stop` is set."""
    while not stop.wait(pause):
        function()


def read_resident(pid: int) -> float:
    """Return the resident memory of a process in MB; 0 once it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1000
    return 0.0


def ask(port: int, question: bytes) -> bool:
    """Ask the inference server. Return True if it answered."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with closing(link), contextlib.suppress(OSError, http.client.HTTPException):
        link.request("POST", "/infer", question, {"Content-Type": "application/json"})
        return link.getresponse().status == 200
    return False


def serve_inference(stack: ExitStack, subject: Subject, folder: Path) -> tuple[int, int]:
    """Start an inference server. Return its port and process id. FleetError: it does not start."""
    port = find_free_port("127.0.0.1", 0)
    server = Process("inference", folder)
    stack.callback(server.kill)
    where = ("--model", str(subject.graph), "--serve", f"127.0.0.1:{port}")
    server.start(python_command("edge_agent.cli", "infer", *where, "--threads", "1"))
    until = time.monotonic() + STARTING
    while not ask(port, subject.question):
        if time.monotonic() > until or server.exit_code is not None:
            raise FleetError(f"the inference server does not answer:\n{server.tail()}")
        time.sleep(0.2)
    assert server.popen is not None
    return port, server.popen.pid


@contextmanager
def pin(processor: int) -> Iterator[None]:
    """Keep this thread, and the processes that it starts, on one processor."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {processor})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def load_rule(port: int, folder: Path) -> Iterator[None]:
    """Limit the connections to a port with the firewall rule. Raises UsageError."""
    rule = folder / RULE.name
    rule.write_text(RULE.read_text().replace("define PORT = 8883", f"define PORT = {port}"))
    run_nft("-f", str(rule))
    try:
        yield
    finally:
        run_nft("delete", "table", "inet", "espalier_broker")


def run_nft(*words: str) -> None:
    """Change the firewall. Raises UsageError."""
    try:
        subprocess.run(["nft", *words], check=True, capture_output=True, text=True)  # noqa: S603, S607
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", "") or error
        raise UsageError(f"--firewall: expected root and nft (nftables): {why}") from error


def measure(
    flood: str,
    subject: Subject,
    times: int,
    processors: tuple[int, int],
    folder: Path,
    *,
    firewall: bool,
) -> Watch:
    """Measure a flood over `times` rounds and enrolments, and as many without it.

    processors: of the run, and of the attacker. firewall: load the rule for the broker. Raises
    UsageError; FleetError: a part does not start or a round does not end.
    """
    folder.mkdir(parents=True)
    trial = Trial(folder, 0)
    with trial.stack, pin(processors[0]):
        prepare(trial, subject)
        assert trial.tls is not None
        metrics = find_free_port("127.0.0.1", 0)
        trial.settings["metrics.listen"] = f"127.0.0.1:{metrics}"
        port, server = serve_inference(trial.stack, subject, folder)
        ports = {"enrolment": trial.tls.enrolment, "broker": trial.tls.port}
        ports |= {"metrics": metrics, "inference": port}
        if firewall:
            trial.stack.enter_context(load_rule(ports["broker"], folder))
        helpers = Helpers(ports, trial.tls, subject, folder)
        trial.begin()
        attacker = start_attacker(trial, flood, ports, processors[1])
        assert trial.coordinator.popen is not None
        helpers.processes = {"coordinator": trial.coordinator.popen.pid, "inference": server}
        wait_for_rounds(trial, helpers, WARM_UP, 0)
        trial.stack.callback(helpers.close)
        helpers.start()
        return conduct(trial, helpers, attacker, times)


def prepare(trial: Trial, subject: Subject) -> None:
    """Configure a run with TLS that lasts longer than the measurement."""
    trial.tls = TlsSetup(trial.folder / "pki")
    trial.rounds = ROUNDS
    trial.how = replace(trial.how, delay=DELAY, chunk=CHUNK)
    trial.settings |= {"fleet.deadline": DEADLINE, "wire.chunk": CHUNK, **subject.settings}


def start_attacker(trial: Trial, flood: str, ports: dict[str, int], processor: int) -> Attacker:
    """Start the attacker of a trial, which waits."""
    assert trial.tls is not None
    authority, own = trial.tls.enrol([LIAR])[LIAR]
    server = STRANGER_FLOODS[flood][0] if flood in STRANGER_FLOODS else "broker"
    order = Order(flood, processor, ports[server], (str(authority), str(own)), DELAY)
    attacker = Attacker(order, trial.folder / "attacker.log")
    trial.stack.callback(attacker.close)
    return attacker


def conduct(trial: Trial, helpers: Helpers, attacker: Attacker, times: int) -> Watch:
    """Measure before, during and after the flood."""
    arms = [Arm(), Arm(), Arm()]
    spans: list[range] = []
    half = (times + 1) // 2
    helpers.arm = arms[0]
    spans.append(wait_for_rounds(trial, helpers, half, half))
    start = time.monotonic()
    attacker.start()
    helpers.arm = arms[1]
    spans.append(wait_for_rounds(trial, helpers, times, times))
    count, seconds = attacker.stop(), time.monotonic() - start
    helpers.arm = arms[2]
    spans.append(wait_for_rounds(trial, helpers, half, half))
    durations = read_durations(trial)
    for arm, span in zip(arms, spans, strict=True):
        arm.rounds = [durations[number] for number in span if number in durations]
    return Watch(arms[0], arms[1], arms[2], count, seconds)


def wait_for_rounds(trial: Trial, helpers: Helpers, rounds: int, enrolments: int) -> range:
    """Drive the fleet until it has completed this number of rounds and of enrolments. Return the
    numbers of the rounds. FleetError: it takes too long.
    """
    arm, first, until = helpers.arm, trial.round + 1, time.monotonic() + LONGEST
    while trial.round < first + rounds or len(arm.enrolments) < enrolments:
        trial.turn()
        if time.monotonic() > until:
            raise FleetError(
                f"{trial.round - first} rounds and {len(arm.enrolments)} enrolments in "
                f"{LONGEST:.0f} s:\n{trial.coordinator.tail()}"
            )
    return range(first, trial.round)


def read_durations(trial: Trial) -> dict[int, float]:
    """Return the seconds of each finished round by its number."""
    with closing(Store.open(trial.runs, RUN, read_only=True)) as store:
        return {number: seconds for number, seconds, *_ in store.read_history()}
