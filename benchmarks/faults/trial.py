"""One run with one thing broken: a coordinator, a broker and a few agents, until the run is over or
nothing helps any more.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.faults.places import Broker, Process
from benchmarks.raw.agent import Raw
from benchmarks.raw.fleet import RawFleet
from benchmarks.replay import Make, Replayed, replay
from benchmarks.scale import spelled
from coordinator.simulate.demo_fleet import module
from coordinator.store.store import Store
from federated.errors import EspalierError, StoreError

__all__ = ["AGENTS", "ROUNDS", "RUN", "Outcome", "Real", "Trial", "command_of", "later", "turn"]

RUN = "faults"
ROUNDS = 3
AGENTS = ("a0", "a1", "a2", "a3")
LIMIT = 150.0  # seconds after which a run counts as one that did not recover
CHUNK = 16 << 10  # bytes: an update of 0.3 MB has 20 of them
SETTINGS: dict[str, object] = {
    "method.name": "fedavg",
    "method.widths": [0.5, 1.0],
    "method.depths": [1],
    "model.name": "preresnet",
    "data.name": "digits",
    "assign.submodels": {"a0": "w0.5-d1.1.1", "*": "w1-d1.1.1"},
    "train.steps": 1,
    "rounds": ROUNDS,
    "evaluate.every": 1000,
    "evaluate.between": False,
    "evaluate.devices": False,
    "evaluate.calibrate": "coordinator",
    "evaluate.examples": 8,
    "fleet.min_agents": len(AGENTS),
    "fleet.wait": LIMIT,
    "fleet.deadline": LIMIT,
    "wire.chunk": CHUNK,
    "journal.every": 2,
}


@dataclass(frozen=True)
class Outcome:
    """How one run stood it. injected: faults; survived: whether it came to its end. lost: updates
    that were asked for and are in no model.

    doubled: updates that are in a model twice; equal: whether the model is, bit for bit, that of an
    undisturbed run which folds the same. recovery: seconds from each fault until the next update
    was taken or the run was over. why: what went wrong, where something did.
    """

    scenario: str
    seed: int
    injected: int
    survived: bool
    lost: int
    doubled: int
    equal: bool
    recovery: tuple[float, ...]
    seconds: float
    why: str = ""


def command_of(address: str, runs: Path, settings: dict[str, object], *, resume: bool) -> list[str]:
    """The arguments of a coordinator."""
    given = [
        part
        for key, value in {**SETTINGS, **settings}.items()
        for part in ("--set", f"{key}={spelled(value)}")
    ]
    return [
        "start",
        "--name",
        RUN,
        "--broker",
        address,
        "--runs",
        str(runs),
        *given,
        *(["--resume"] if resume else []),
    ]


@dataclass
class Real:
    """Real agents. make: what one makes of a task, in this process."""

    make: Make


@dataclass
class Trial:
    """What a scenario may break, and when. fuse: the instant at which the coordinator's first life
    ends, as `benchmarks.faults.fuse` takes it.

    names: of raw agents; real: agents that are processes and train, in their place. each: called at
    every turn, to break things.
    """

    folder: Path
    seed: int
    kind: str = "mosquitto"
    rng: random.Random = field(init=False)
    stack: ExitStack = field(default_factory=ExitStack)
    how: Raw = field(default_factory=Raw)
    settings: dict[str, object] = field(default_factory=dict)
    fuse: tuple[str, ...] = ()
    persistent: bool = True
    host: str = "127.0.0.1"
    under: Sequence[str] = ()
    names: Sequence[str] = AGENTS
    each: Callable[[], None] = lambda: None
    real: Real | None = None
    runs: Path = field(init=False)
    struck: list[float] = field(default_factory=list)
    healed: list[float] = field(default_factory=list)
    progress: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)  # noqa: S311  # repeatable, not secret
        self.runs = self.folder / "runs"

    # ---- parts -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Starts the broker, the coordinator and the agents."""
        self.started = time.monotonic()
        self.broker = Broker(
            self.folder / "broker",
            self.kind,
            persistent=self.persistent,
            host=self.host,
            under=self.under,
        )
        self.stack.callback(self.broker.kill)
        self.coordinator = Process("coordinator", self.folder, self.under)
        self.stack.callback(self.coordinator.kill)
        self.start_coordinator()
        self.fleet = RawFleet(
            RUN,
            () if self.real is not None else self.names,
            (self.host, self.broker.port),
            self.how,
        )
        self.stack.callback(self.fleet.close)

    def start_coordinator(self) -> None:
        """Starts it, or starts it again: with --resume, once there is something to go on with."""
        begun = (self.runs / RUN / "run.sqlite").exists()
        arguments = command_of(
            f"127.0.0.1:{self.broker.port}", self.runs, self.settings, resume=begun
        )
        if self.fuse and self.coordinator.lives == 0:
            self.coordinator.start(
                [sys.executable, "-m", "benchmarks.faults.fuse", *self.fuse, *arguments]
            )
        else:
            self.coordinator.start(module("coordinator.cli", *arguments))

    def strike(self) -> None:
        """Notes that something was broken now."""
        self.struck.append(time.monotonic())

    @property
    def round(self) -> int:
        """The latest round that an agent was asked for."""
        if self.real is not None:
            return self.coordinator.said("w1-d1.1.1, ")
        return max(
            (agent.task.round for agent in self.fleet.agents if agent.task is not None), default=0
        )

    @property
    def accepted(self) -> int:
        """Updates that agents were told were taken; of real ones, rounds that are over."""
        if self.real is not None:
            return self.coordinator.said(" updates, ")
        return sum(len(agent.accepted) for agent in self.fleet.agents)

    # ---- its course ------------------------------------------------------------------------------

    def turn(self) -> bool:
        """One turn of everything; False once the run is over."""
        self.fleet.turn(0.02)
        if self.accepted > self.progress:
            self.progress = self.accepted
            self._heal()
        self.each()
        ended = self.coordinator.ended
        if ended == 0:
            self._heal()
            return False
        if ended is not None:
            if ended == -9 and self.fuse and not self.struck:
                self.strike()
            self.start_coordinator()
        return time.monotonic() - self.started < LIMIT

    def _heal(self) -> None:
        now = time.monotonic()
        self.healed += [now - then for then in self.struck[len(self.healed) :]]

    def judge(self, name: str) -> Outcome:
        """What became of it."""
        survived = self.coordinator.ended == 0
        why = (
            ""
            if survived
            else f"not over after {time.monotonic() - self.started:.0f} s: "
            f"{self.coordinator.tail(3)}"
        )
        found = Replayed({}, 0, 0, equal=False)
        with contextlib.suppress(StoreError):
            found = replay(
                self.runs,
                RUN,
                *((self.coordinator.lives,) if self.real is None else (0, self.real.make)),
            )
        folded = {(number, agent) for number, agents in found.folded.items() for agent in agents}
        asked = {(number, agent) for number in range(1, ROUNDS + 1) for agent in self.names}
        told = self.told_of() if survived else set()
        asked -= told if self.real is not None else set()
        if survived and asked - folded:
            why = f"not in a model: {sorted(asked - folded)}; {self.outcomes()}"
        if survived and not (asked - folded) and (found.foreign or not found.equal):
            why = (
                f"{found.foreign} updates are foreign, the model is "
                f"{'the same' if found.equal else 'another'}"
            )
        return Outcome(
            name,
            self.seed,
            len(self.struck),
            survived and bool(self.struck),
            len(asked - folded),
            found.doubled,
            found.equal and not found.foreign,
            tuple(round(seconds, 2) for seconds in self.healed),
            round(time.monotonic() - self.started, 1),
            why if self.struck else f"nothing was broken; {why}",
        )

    def told_of(self) -> set[tuple[int, str]]:
        """Tasks that came to nothing because their device could not do them, and said so: no update
        was made that could be lost.
        """
        store = Store.open(self.runs, RUN, read_only=True)
        try:
            return {
                (n, e.agent)
                for n in range(1, ROUNDS + 1)
                for e in store.entries(n)
                if e.outcome.startswith("paused: no room")
            }
        finally:
            store.close()

    def outcomes(self) -> str:
        """What the record says of updates that were not folded."""
        store = Store.open(self.runs, RUN, read_only=True)
        try:
            return "; ".join(
                f"{n} {e.agent} {e.outcome}"
                for n in range(1, ROUNDS + 1)
                for e in store.entries(n)
                if e.outcome != "folded"
            )
        finally:
            store.close()


def later(trial: Trial, strike: Callable[[], object], seconds: float) -> None:
    """Breaks something, once, so many seconds after the first task."""
    due, done = 0.0, False

    def each() -> None:
        nonlocal due, done
        if not due:
            due = time.monotonic() + seconds if trial.round else 0.0
        elif not done and time.monotonic() >= due:
            done = True
            strike()

    trial.each = each


def turn(
    name: str, prepare: Callable[[Trial], None], folder: Path, seed: int, kind: str = "mosquitto"
) -> Outcome:
    """One run of a scenario; whatever goes wrong in it is its outcome."""
    folder.mkdir(parents=True)
    trial = Trial(folder, seed, kind)
    start = time.monotonic()
    with trial.stack:
        try:
            prepare(trial)
            trial.begin()
            while trial.turn():
                pass
            return trial.judge(name)
        except EspalierError as error:
            missing = ROUNDS * len(trial.names)
            return Outcome(
                name,
                seed,
                len(trial.struck),
                False,
                missing,
                0,
                False,
                (),
                round(time.monotonic() - start, 1),
                str(error),
            )


def middle(values: Sequence[float]) -> float:
    """The median, 0 of none."""
    return statistics.median(values) if values else 0.0
