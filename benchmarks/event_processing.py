"""`python -m benchmarks core`: measure how fast the coordinator processes an event.

It measures `coordinator.round.round_step.step` alone, without link, disk and model. All
agents have joined, and each works on a task with a lease, with default settings for snapshots and
the order of folding. Each measurement starts from the same state of the round.
"""

from __future__ import annotations

import gc
import heapq
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

from coordinator.round import round_actions as do
from coordinator.round import round_events as on
from coordinator.round.round_state import Round, Rules
from coordinator.round.round_step import step
from coordinator.round.task_state import Planned
from coordinator.settings.config_tables import Journal
from federated.runtime.console import FORMAT, print_result, report_errors, speaker
from federated.task import HEARTBEAT, Card, Profile, Recipe, Task
from models.submodel import Network, Submodel

__all__ = ["command", "measure"]

AGENTS = 10, 100, 1000, 5000
BEATS = 2000  # timed heartbeats, at least one per agent
TICK = 0.5  # seconds between ticks
TICKING = 240.0  # seconds of ticks on the coordinator's clock, less than a lease
PREDICTED = 25.0  # seconds of a task; its lease is three times as long
SUBMODEL = Submodel(Network("mlp", "small", (1, 8, 8), 10), 1.0, ((1, 1),))
CARD = Card("digits", (1, 8, 8), "uint8", 10, 100, 25, (4.9,), (6.0,))


@dataclass(frozen=True)
class Row:
    """Mean microseconds, with this many agents at work.

    beat_us: step of a heartbeat that shows progress
    update_us: all steps that one update causes: it arrives, it is folded (or others that waited for
        it), and sometimes a snapshot is taken; updates arrive in random order
    tick_us: step of half a second that passes, while each agent shows progress every 15 s; includes
        occasional searches for overdue agents and leases
    tick_worst_us: slowest of these ticks
    """

    agents: int
    beat_us: float
    update_us: float
    tick_us: float
    tick_worst_us: float


def measure(agents: int, seed: int = 0) -> Row:
    """Time the steps of a round with this many agents at work."""
    names = [f"a{index:05d}" for index in range(agents)]
    begun = start_round(names)
    gc.collect()
    _, beating = time_events(
        begun, islice(make_heartbeats(names), max(BEATS, agents)), on.AgentBeat
    )
    closed, updating = time_events(begun, make_updates(names, seed), on.UpdateCame)
    waiting, ticking = time_events(begun, make_ticks(names), on.Ticked)
    assert closed.phase is not None
    assert closed.phase.closed, "every update is in the total"
    assert waiting.phase is not None
    assert waiting.phase.working == agents, "no lease has ended"
    return Row(
        agents, average(beating), average(updating), average(ticking), round(1e6 * max(ticking), 2)
    )


def average(seconds: Sequence[float]) -> float:
    """Return the mean in microseconds."""
    return round(1e6 * statistics.fmean(seconds), 2)


def start_round(names: Sequence[str]) -> Round:
    """Return a round in which each agent has joined and has a training task."""
    journal = Journal()
    r = Round(Rules(every=journal.every, most=journal.waiting))
    for name in names:
        r, _ = drive(r, on.AgentConnected(0.0, name, "s"))
        profile = Profile(name, "h", "s", 1.0, 10**9, 1e6, 2**18, "torch", CARD, ())
        r, _ = drive(r, on.ProfileCame(0.0, name, profile))
    planned = tuple(Planned(make_task(name), PREDICTED) for name in names)
    return drive(r, on.PhaseBegan(0.0, "train", 1, planned, math.inf, len(names)))[0]


def make_task(agent: str) -> Task:
    return Task("r", 1, 1, agent, "train", SUBMODEL, "r0", "0" * 64, 1000, Recipe(), 3600.0)


def time_events(r: Round, events: Iterable[on.RoundEvent], kind: type) -> tuple[Round, list[float]]:
    """Return the round after all events, and the seconds of each event of this kind."""
    found = list[float]()
    for event in events:
        r, seconds = drive(r, event)
        if isinstance(event, kind):
            found.append(seconds)
    return r, found


def drive(r: Round, event: on.RoundEvent) -> tuple[Round, float]:
    """Return the round after an event and those that its actions cause, and the seconds of all
    steps.

    Folds and snapshots are done at once, as in a run.
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


def make_heartbeats(names: Sequence[str]) -> Iterator[on.AgentBeat]:
    """Yield endless heartbeats: each agent every 15 s, spread evenly, each with one more step."""
    for number in count():
        done, index = divmod(number, len(names))
        now = (done + index / len(names)) * HEARTBEAT
        yield on.AgentBeat(now, names[index], "s", "train", 0.5, done + 1)


def make_updates(names: Sequence[str], seed: int) -> Iterator[on.UpdateCame]:
    """Yield one update of each agent, in random order."""
    for name in random.Random(seed).sample(names, len(names)):  # noqa: S311  # no secret
        yield on.UpdateCame(PREDICTED, make_task(name).key, 1, "t", "d" * 64, 0.5)


def make_ticks(names: Sequence[str]) -> Iterable[on.RoundEvent]:
    """Return ticks, and the heartbeats between them."""
    beating = islice(make_heartbeats(names), int(TICKING / HEARTBEAT) * len(names))
    ticking = (on.Ticked(number * TICK) for number in range(1, int(TICKING / TICK) + 1))
    return heapq.merge(beating, ticking, key=attrgetter("now"))


HEAD = f"{'agents':>8}{'beat us':>10}{'update us':>11}{'tick us':>10}{'worst':>10}"


def format_row(row: Row) -> str:
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
    help="number of agents that train at the same time; may be repeated",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    metavar="N",
    help="seed of the order of updates",
)
@FORMAT
def command(agents: tuple[int, ...], seed: int, form: str) -> None:
    """Measure how fast the coordinator processes an event.

    Only the decisions of a round are timed, without network, disk and model.
    """
    with report_errors("python -m benchmarks core", "coordinator"):
        say, rows = speaker(form), list[Row]()
        measure(AGENTS[1])  # warm up
        say(HEAD)
        for number in agents:
            rows.append(measure(number, seed))
            say(format_row(rows[-1]))
        processors, python = len(os.sched_getaffinity(0)), platform.python_version()
        machine = {"processors": processors, "python": python}
        print_result({"machine": machine, "rows": [asdict(row) for row in rows]}, form)
