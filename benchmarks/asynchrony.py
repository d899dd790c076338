"""`python -m benchmarks async`: compare synchronous with buffered (asynchronous) rounds on a fleet
of three tiers, whose devices take 100, 200 and 400 units of time.

Simulated devices train on the handwritten digits and hold each update back until their tier's time
is over, so that both runs have the same fleet, in real seconds. The benchmark compares the seconds
until as many updates are folded, and until the network reaches the same accuracy on held-out
digits.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

import click

from coordinator.run.config_sources import ConfigSources
from coordinator.simulate.simulation import simulate
from coordinator.store.run_store import Store
from federated.runtime.console import FORMAT, FiniteRange, Say, print_result, report_errors, speaker

__all__ = ["Course", "command", "compare", "find_time", "run_mode"]

TIERS = (100, 200, 400)  # units per round, for each third of the devices
DEVICES, BUFFER, ROUNDS = 12, 4, 20  # rounds of the synchronous run
EXPERIMENT = """
[method]
name = "fedavg"
widths = [0.5, 1.0]
[model]
name = "mlp-small"
[train]
batch = 16
epochs = 1
lr = 0.02
[assign.submodels]
"d0[0-7]" = "w1-d2"
"*" = "w0.5-d2"
[evaluate]
every = 1
devices = false
[fleet]
staleness = 20
[simulate]
partition = "dirichlet:1.0"
"""


@dataclass(frozen=True)
class Course:
    """Progress of a run after each round.

    seconds: since its start
    updates: folded so far
    accuracy: of the largest network on held-out digits
    """

    seconds: tuple[float, ...]
    updates: tuple[int, ...]
    accuracy: tuple[float, ...]


@dataclass(frozen=True)
class Row:
    """Result of one mode.

    updates: number that both modes folded
    seconds: until they were folded
    accuracy: accuracy that both modes reached
    to_accuracy: seconds until then; None if never
    last: last accuracy
    late: fraction of updates made from weights that had changed since
    """

    mode: str
    updates: int
    seconds: float
    accuracy: float
    to_accuracy: float | None
    last: float
    late: float


def find_time(marks: Sequence[float], seconds: Sequence[float], wanted: float) -> float | None:
    """Return the first time at which a mark reaches the wanted value; None if none does."""
    return next(
        (second for mark, second in zip(marks, seconds, strict=True) if mark >= wanted), None
    )


def compare(runs: dict[str, tuple[Course, float]]) -> list[Row]:
    """Return a row for each run, up to the updates that both folded and the best accuracy that both
    reached.

    runs: course and fraction of late updates, by mode
    """
    updates = min(course.updates[-1] for course, _ in runs.values())
    accuracy = min(max(course.accuracy) for course, _ in runs.values())
    return [
        Row(
            mode,
            updates,
            find_time(course.updates, course.seconds, updates) or math.nan,
            accuracy,
            find_time(course.accuracy, course.seconds, accuracy),
            course.accuracy[-1],
            late,
        )
        for mode, (course, late) in runs.items()
    ]


def run_mode(mode: str, unit: float, seed: int, folder: Path, say: Say) -> tuple[Course, float]:
    """Run one mode. Return its course, and the fraction of late updates. unit: seconds."""
    file = folder / f"{mode}.toml"
    file.write_text(EXPERIMENT)
    rounds = ROUNDS if mode == "sync" else ROUNDS * DEVICES // BUFFER
    settings = [
        f"name={mode}",
        f"rounds={rounds}",
        f"fleet.mode={mode}",
        f"fleet.buffer={BUFFER}",
        f"simulate.agents={DEVICES}",
        f"simulate.delays={[tier * unit for tier in TIERS]}",
        f"simulate.seeds=[{seed}]",
    ]
    sources = ConfigSources(file, settings=settings)
    simulate(sources, folder / "runs", folder / "out", say=say)
    with closing(Store.open(folder / "runs", f"{mode}-seed{seed}", read_only=True)) as store:
        history = store.read_history()
        folded = [
            [entry for entry in store.read_entries(number) if entry.outcome == "folded"]
            for number, *_ in history
        ]
        scores = {
            number: score.accuracy
            for number, score in store.read_all_scores()
            if score.view == "central" and score.submodel == "w1-d2"
        }
    seconds = tuple(accumulate(seconds for _, seconds, *_ in history))
    late = sum(bool(entry.task) for entries in folded for entry in entries) / max(
        1, sum(map(len, folded))
    )
    return Course(
        seconds,
        tuple(accumulate(map(len, folded))),
        tuple(scores[number] for number, *_ in history),
    ), late


def format_table(rows: Sequence[Row]) -> list[str]:
    table = [
        f"{'':10}{'updates':>9}{'seconds':>9}{'accuracy':>10}{'seconds':>9}{'last':>8}{'late':>7}"
    ]
    for row in rows:
        reached = f"{row.to_accuracy:.1f}" if row.to_accuracy is not None else "never"
        table.append(
            f"{row.mode:10}{row.updates:9}{row.seconds:9.1f}{row.accuracy:10.3f}"
            f"{reached:>9}{row.last:8.3f}{row.late:7.0%}"
        )
    return table


@click.command("async")
@click.option(
    "--unit",
    type=FiniteRange(min=0),
    default=0.005,
    show_default=True,
    metavar="SECONDS",
    help="length of a time unit; devices take 100, 200 or 400 units per round",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    metavar="N",
    help="seed of the data and the networks",
)
@FORMAT
def command(unit: float, seed: int, form: str) -> None:
    """Compare synchronous and buffered rounds.

    Devices have three speeds. Print the time in which each mode reaches the same number of updates,
    and the same accuracy.
    """
    say = speaker(form)
    with (
        report_errors("python -m benchmarks async", "simulate"),
        tempfile.TemporaryDirectory() as folder,
    ):
        runs = {
            mode: run_mode(mode, unit, seed, Path(folder), say) for mode in ("sync", "buffered")
        }
    rows = compare(runs)
    print_result([asdict(row) for row in rows], form, lambda _: "\n".join(format_table(rows)))
