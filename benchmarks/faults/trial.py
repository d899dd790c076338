"""Run one fault trial: a coordinator, a broker and a few agents with one kind of fault, until the
run ends or hangs.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.faults.outcome import Outcome
from benchmarks.faults.parts.brokers import Broker
from benchmarks.faults.parts.trial_parts import Process, Space
from benchmarks.faults.recorded_tasks import (
    describe_unfolded,
    find_refused,
    read_entries,
    read_planned,
)
from benchmarks.faults.trial_certificates import TlsSetup
from benchmarks.faults.trial_settings import (
    AGENTS,
    LIMIT,
    ROUNDS,
    RUN,
    coordinator_arguments,
)
from benchmarks.final_model_recomputation import (
    Make,
    ReplayResult,
    make_raw_update,
    read_durations,
    replay,
)
from benchmarks.raw_agents.raw_agent import Raw
from benchmarks.raw_agents.raw_fleet import RawFleet
from benchmarks.raw_agents.updates import Array
from coordinator.simulate.demo_fleet import python_command
from federated.errors import EspalierError, StoreError
from federated.task import Task, Update

__all__ = ["Trial", "break_later", "conduct", "fill_later", "run_trial"]


@dataclass
class Trial:
    """One run, which scenarios configure and break.

    fuse: instant at which the coordinator's first process dies, as arguments of
        `benchmarks.faults.self_killing_coordinator`
    launcher: module and arguments that restart the coordinator
    variables: of the coordinator's environment, in addition to those of this process
    forked: True to fork coordinators from a process that has imported PyTorch; recovery then lacks
        the seconds of the imports
    tls: certificates of the agents; the coordinator then starts the broker, with TLS
    names: of the honest agents
    others: of raw agents that attack
    rounds: number of rounds
    real: repeats the training of a task in this process, if agents are processes that train
        instead of raw ones
    after_begin: called once all parts are started
    each_turn: called at every turn, to break things
    planned: called once, these seconds after the first task
    before_restart: called before each restart of the coordinator
    at_end: called once the run is over; each returns what went wrong, or an empty text
    intruded: number of forbidden actions in which attackers succeeded
    """

    folder: Path
    seed: int
    kind: str = "mosquitto"
    rng: random.Random = field(init=False)
    stack: ExitStack = field(default_factory=ExitStack)
    how: Raw = field(default_factory=Raw)
    settings: dict[str, object] = field(default_factory=dict)
    fuse: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    forked: bool = False
    tls: TlsSetup | None = None
    persistent: bool = True
    host: str = "127.0.0.1"
    under: Sequence[str] = ()
    names: Sequence[str] = AGENTS
    others: list[str] = field(default_factory=list)
    rounds: int = ROUNDS
    after_begin: list[Callable[[], None]] = field(default_factory=list)
    each_turn: list[Callable[[], None]] = field(default_factory=list)
    planned: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    before_restart: list[Callable[[], None]] = field(default_factory=list)
    at_end: list[Callable[[], str]] = field(default_factory=list)
    real: Make | None = None
    runs: Path = field(init=False)
    fault_times: list[float] = field(default_factory=list)
    intruded: int = 0
    healed: list[float] = field(default_factory=list)
    progress: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)  # noqa: S311  # repeatable, not secret
        self.runs = self.folder / "runs"
        self._due: list[tuple[float, Callable[[], object]]] = []

    # ---- parts -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start broker, coordinator and agents."""
        where = self._start_broker()
        self.started = time.monotonic()
        self.coordinator = self.add_process("coordinator")
        self.start_coordinator()
        self.fleet = RawFleet(
            RUN,
            () if self.real is not None else (*self.names, *self.others),
            where,
            self.how,
        )
        self.stack.callback(self.fleet.close)
        for function in self.after_begin:
            function()

    def _start_broker(self) -> tuple[str, int]:
        """Start the broker, unless the coordinator does. Return its address for agents."""
        if self.tls is not None:
            self.stack.callback(self.tls.close)
            everyone = [*self.names, *self.others]
            self.how = replace(self.how, certificates=self.tls.enrol(everyone))
            return "localhost", self.tls.port
        self.broker = Broker(
            self.folder / "broker",
            self.kind,
            persistent=self.persistent,
            host=self.host,
            under=self.under,
        )
        self.stack.callback(self.broker.close)
        self.how = replace(self.how, wildcards=self.kind != "rabbitmq")
        return self.host, self.broker.agent_port

    def add_process(self, name: str) -> Process:
        """Return a process of the coordinator's machine, which is killed at the end."""
        process = Process(
            name, self.folder, self.under, forked=self.forked, variables=self.variables
        )
        self.stack.callback(process.kill)
        return process

    @property
    def broker_arguments(self) -> list[str]:
        """Arguments of the coordinator that select its broker."""
        if self.tls is not None:
            return self.tls.arguments
        return ["--broker", f"127.0.0.1:{self.broker.port}"]

    @property
    def begun(self) -> bool:
        """True once the run exists."""
        return (self.runs / RUN / "run.sqlite").exists()

    def start_coordinator(self) -> None:
        """Start or restart the coordinator, with --resume if the run exists."""
        arguments = coordinator_arguments(
            self.broker_arguments,
            self.runs,
            {
                "rounds": self.rounds,
                "fleet.min_agents": len(self.names) + len(self.others),
                **self.settings,
            },
            resume=self.begun,
        )
        if self.fuse and self.coordinator.starts == 0:
            self.coordinator.start(
                [
                    sys.executable,
                    "-m",
                    "benchmarks.faults.self_killing_coordinator",
                    *self.fuse,
                    *arguments,
                ]
            )
        else:
            module, *more = self.launcher or ("coordinator.cli",)
            self.coordinator.start(python_command(module, *more, *arguments))

    def call_later(self, seconds: float, function: Callable[[], object]) -> None:
        """Call a function once, in this many seconds."""
        self._due.append((time.monotonic() + seconds, function))

    def _call_due(self) -> None:
        if self.planned and self.round:
            for seconds, function in self.planned:
                self.call_later(seconds, function)
            self.planned.clear()
        now, waiting = time.monotonic(), self._due
        self._due = [(due, function) for due, function in waiting if due > now]
        for due, function in waiting:
            if due <= now:
                function()

    def record_fault(self) -> None:
        """Record a fault at the present time."""
        self.fault_times.append(time.monotonic())

    @property
    def round(self) -> int:
        """Latest round that an agent was asked for."""
        if self.real is not None:
            return self.coordinator.count(f" of {self.rounds}: ")
        return max(
            (agent.task.round for agent in self.fleet.agents if agent.task is not None), default=0
        )

    @property
    def accepted(self) -> int:
        """Number of acknowledged updates; with real agents, of finished rounds."""
        if self.real is not None:
            return self.coordinator.count(" took ")
        return len(self.acknowledged)

    @property
    def acknowledged(self) -> set[tuple[int, str]]:
        """Round and agent of each update that a raw agent sent and the coordinator accepted."""
        return {(number, agent.name) for agent in self.fleet.agents for number in agent.accepted}

    # ---- course ------------------------------------------------------------------------------

    def turn(self) -> bool:
        """Give every part a turn. Return False once the run is over."""
        self.fleet.turn(0.02)
        if self.accepted > self.progress:
            self.progress = self.accepted
            self._heal()
        self._call_due()
        for function in self.each_turn:
            function()
        ended = self.coordinator.exit_code
        if ended == 0:
            self._heal()
            return False
        if ended is not None:
            if ended == -9 and self.fuse and not self.fault_times:
                self.record_fault()
            for function in self.before_restart:
                function()
            self.start_coordinator()
        return time.monotonic() - self.started < LIMIT

    def _heal(self) -> None:
        now = time.monotonic()
        self.healed += [now - then for then in self.fault_times[len(self.healed) :]]

    def read_durations(self) -> list[float]:
        """Return the seconds of the finished rounds."""
        return read_durations(self.runs, RUN)

    def judge(self, name: str) -> Outcome:
        """Return the outcome."""
        survived = self.coordinator.exit_code == 0
        why = (
            ""
            if survived
            else f"unfinished after {time.monotonic() - self.started:.0f} s: "
            f"{self.coordinator.tail(3)}{self.fleet.describe_refusals()}"
        )
        found = ReplayResult({}, 0, 0, equal=False)
        with contextlib.suppress(StoreError):
            found = replay(
                self.runs,
                RUN,
                # all attempts of a task: one per coordinator of the run so far
                *(
                    (self.coordinator.starts, self.make_update)
                    if self.real is None
                    else (0, self.real)
                ),
            )
        folded = {(number, agent) for number, agents in found.folded.items() for agent in agents}
        asked = {(number, agent) for number in range(1, self.rounds + 1) for agent in self.names}
        entries = read_entries(self.runs / RUN, self.rounds) if survived else []
        if survived and self.real is not None:
            asked -= find_refused(entries)
        if survived and self.others and self.coordinator.starts > 1:
            # A round that begins after a restart may lack an honest agent that is not back yet,
            # because the attacker counts among the agents that a round needs.
            asked &= self.acknowledged | read_planned(self.runs / RUN, self.names)
        if survived and asked - folded:
            why = f"in no model: {sorted(asked - folded)}; {describe_unfolded(entries)}"
        if survived and (wrong := "; ".join(filter(None, (check() for check in self.at_end)))):
            survived, why = False, wrong
        if survived and not (asked - folded) and (found.foreign or not found.equal):
            why = (
                f"{found.foreign} updates differ from those sent, the model is "
                f"{'equal' if found.equal else 'different'}"
            )
        return Outcome(
            name,
            self.seed,
            len(self.fault_times),
            survived and bool(self.fault_times),
            len(asked - folded),
            found.doubled,
            found.equal and not found.foreign,
            tuple(round(seconds, 2) for seconds in self.healed),
            round(time.monotonic() - self.started, 1),
            why if self.fault_times else f"no fault happened; {why}",
        )

    def make_update(self, task: Task, weights: Mapping[str, Array]) -> Update:
        """Return the update that a raw agent must have sent."""
        update = make_raw_update(task, weights)
        if (falsify := self.how.falsify.get(task.agent)) is None:
            return update
        false, values = falsify(replace(update, tensors={}), dict(update.tensors))
        return replace(false, tensors=values)


def break_later(trial: Trial, cause: Callable[[], object], seconds: float) -> None:
    """Break something once, this many seconds after the first task."""
    trial.planned.append((seconds, cause))


def fill_later(trial: Trial, space: Space, latest: float) -> None:
    """Fill a disk for two seconds, except for up to 300 kB."""
    left = trial.rng.randrange(300_000)

    def cause_fault() -> None:
        space.fill(left)
        trial.record_fault()
        trial.call_later(2.0, space.empty)

    break_later(trial, cause_fault, trial.rng.uniform(0, latest))


def run_trial(
    name: str,
    prepare: Callable[[Trial], None],
    folder: Path,
    seed: int,
    kind: str = "mosquitto",
    *,
    forked: bool = False,
) -> Outcome:
    """Run a scenario once. Errors are outcomes."""
    folder.mkdir(parents=True)
    trial = Trial(folder, seed, kind, forked=forked)
    with trial.stack:
        return conduct(trial, name, prepare)


def conduct(trial: Trial, name: str, prepare: Callable[[Trial], None]) -> Outcome:
    """Prepare a trial, run it to its end, and return its outcome. Errors are outcomes."""
    start = time.monotonic()
    try:
        prepare(trial)
        trial.begin()
        while trial.turn():
            pass
        return trial.judge(name)
    except EspalierError as error:
        return Outcome(
            name,
            trial.seed,
            len(trial.fault_times),
            False,
            trial.rounds * len(trial.names),
            0,
            False,
            (),
            round(time.monotonic() - start, 1),
            str(error),
        )
