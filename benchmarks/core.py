"""`python -m benchmarks core`: how long the coordinator takes to decide what follows from an event.

Measured is `coordinator.round.step.step` alone: no link, no disk, no model. All agents have joined,
and each is at work on a task with a lease, under the settings that a run has by default for
snapshots and for the order of folding. Each measurement starts from the same value of this round.
"""

from __future__ import annotations

import gc
import heapq
import json
import math
import os
import platform
import random
import statistics
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count, islice
from operator import attrgetter

import click

from coordinator.round import actions as do
from coordinator.round import round_events as on
from coordinator.round.round import Round, Rules
from coordinator.round.step import step
from coordinator.round.task_state import Planned
from coordinator.settings.tables import Journal
from federated.runtime.console import FORMAT, speaker, speaking_plainly
from federated.task import HEARTBEAT, Card, Profile, Recipe, Task
from models.submodel import Network, Submodel

__all__ = ["Row", "command", "measure"]

AGENTS = 10, 100, 1000, 5000
BEATS = 2000  # heartbeats that are timed, or one of each agent where there are more
TICK = 0.5  # seconds between ticks
TICKING = 240.0  # seconds of ticks, of the coordinator's clock: within the longest a lease can last
PREDICTED = 25.0  # seconds of a task; its lease is three times as long
SUBMODEL = Submodel(Network("mlp", "small", (1, 8, 8), 10), 1.0, ((1, 1),))
CARD = Card("digits", (1, 8, 8), "uint8", 10, 100, 25, (4.9,), (6.0,))


@dataclass(frozen=True)
class Row:
    """Mean microseconds, with so many agents at work.

    beat_us: of the step for a heartbeat that shows progress.
    update_us: of all steps that one update causes, together: it came, it was folded (or others that
        waited for it), and once in a while a snapshot was taken. Updates come in a drawn order.
    tick_us: of the step for half a second that passed, while each agent shows progress every 15 s;
        looks for agents and leases that are overdue, which happen now and then, are included.
    tick_worst_us: of the slowest of these ticks.
    """

    agents: int
    beat_us: float
    update_us: float
    tick_us: float
    tick_worst_us: float


def measure(agents: int, seed: int = 0) -> Row:
    """Times the steps of a round with so many agents at work."""
    names = [f"a{index:05d}" for index in range(agents)]
    begun = at_work(names)
    gc.collect()
    _, beating = timed(begun, islice(beats(names), max(BEATS, agents)), on.AgentBeat)
    closed, updating = timed(begun, updates(names, seed), on.UpdateCame)
    waiting, ticking = timed(begun, ticks(names), on.Ticked)
    assert closed.phase is not None
    assert closed.phase.closed, "every update is in the total"
    assert waiting.phase is not None
    assert waiting.phase.working == agents, "no lease has ended"
    return Row(agents, mean(beating), mean(updating), mean(ticking), round(1e6 * max(ticking), 2))


def mean(seconds: Sequence[float]) -> float:
    """Microseconds."""
    return round(1e6 * statistics.fmean(seconds), 2)


def at_work(names: Sequence[str]) -> Round:
    """A round in which each agent has joined and was asked for a training."""
    journal = Journal()
    r = Round(Rules(every=journal.every, most=journal.waiting))
    for name in names:
        r, _ = drive(r, on.AgentConnected(0.0, name, "s"))
        profile = Profile(name, "h", "s", 1.0, 10**9, 1e6, 2**18, "torch", CARD, ())
        r, _ = drive(r, on.ProfileCame(0.0, name, profile))
    planned = tuple(Planned(task(name), PREDICTED) for name in names)
    return drive(r, on.PhaseBegan(0.0, "train", 1, planned, math.inf, len(names)))[0]


def task(agent: str) -> Task:
    return Task("r", 1, 1, agent, "train", SUBMODEL, "r0", "0" * 64, 1000, Recipe(), 3600.0)


def timed(r: Round, events: Iterable[on.RoundEvent], kind: type) -> tuple[Round, list[float]]:
    """The round after all events, and the seconds of each of this kind."""
    found = list[float]()
    for event in events:
        r, seconds = drive(r, event)
        if isinstance(event, kind):
            found.append(seconds)
    return r, found


def drive(r: Round, event: on.RoundEvent) -> tuple[Round, float]:
    """The round after an event and after those that its actions cause; the seconds of all steps.

    Folds and snapshots are done at once, as a run's driver does them.
    """
    seconds, events = 0.0, deque([event])
    while events:
        start = time.perf_counter()
        r, actions = step(r, events.popleft())
        seconds += time.perf_counter() - start
        for action in actions:
            if isinstance(action, do.Fold):
                events.append(on.UpdateFolded(event.now, action.key))
            elif isinstance(action, do.Snapshot):
                events.append(on.SnapshotTaken(event.now, action.keys, written=True))
    return r, seconds


def beats(names: Sequence[str]) -> Iterator[on.AgentBeat]:
    """Heartbeats without end: every 15 s of each agent, spread evenly, each with one more step."""
    for number in count():
        done, index = divmod(number, len(names))
        now = (done + index / len(names)) * HEARTBEAT
        yield on.AgentBeat(now, names[index], "s", "train", 0.5, done + 1)


def updates(names: Sequence[str], seed: int) -> Iterator[on.UpdateCame]:
    """One of each agent, in a drawn order."""
    for name in random.Random(seed).sample(names, len(names)):  # noqa: S311  # no secret
        yield on.UpdateCame(PREDICTED, task(name).key, 1, "t", "d" * 64, 0.5)


def ticks(names: Sequence[str]) -> Iterable[on.RoundEvent]:
    """Ticks, and the heartbeats that come between them."""
    beating = islice(beats(names), int(TICKING / HEARTBEAT) * len(names))
    ticking = (on.Ticked(number * TICK) for number in range(1, int(TICKING / TICK) + 1))
    return heapq.merge(beating, ticking, key=attrgetter("now"))


HEAD = f"{'agents':>8}{'beat us':>10}{'update us':>11}{'tick us':>10}{'worst':>10}"


def line(row: Row) -> str:
    steps = f"{row.beat_us:10.1f}{row.update_us:11.1f}{row.tick_us:10.1f}{row.tick_worst_us:10.0f}"
    return f"{row.agents:8}{steps}"


@click.command("core")
@click.option(
    "--agents",
    type=click.IntRange(min=1),
    multiple=True,
    default=AGENTS,
    show_default=True,
    metavar="N",
    help="at work at the same time; may be repeated",
)
@click.option("--seed", type=int, default=0, show_default=True, help="draws the order of updates")
@FORMAT
def command(agents: tuple[int, ...], seed: int, form: str) -> None:
    """How long the coordinator takes to decide what follows from an event, all else aside."""
    with speaking_plainly("python -m benchmarks core", "coordinator", "interrupted"):
        say, rows = speaker(form), list[Row]()
        measure(AGENTS[1])  # warms up
        say(HEAD)
        for number in agents:
            rows.append(measure(number, seed))
            say(line(rows[-1]))
        if form == "json":
            processors, python = len(os.sched_getaffinity(0)), platform.python_version()
            machine = {"processors": processors, "python": python}
            click.echo(json.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}))
