"""`python -m benchmarks schedules`: simulates fleets in virtual time under random faults, each
schedule drawn from a seed, and shortens every schedule that fails.
"""

from __future__ import annotations

import gc
import json
import logging
import secrets
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import click
import msgspec
import torch

from benchmarks.fault_schedules.injected_defects import DEFECTS
from benchmarks.fault_schedules.random_schedules import Fault, Schedule, draw
from benchmarks.fault_schedules.schedule_run import REPLACED, Outcome, run_schedule
from benchmarks.output_path_checks import check_log
from federated.errors import ConfigError, Unknown
from federated.runtime.console import FORMAT, Say, print_result, report_errors, speaker

__all__ = ["Summary", "command", "follow", "shrink"]

BATCH = 20  # schedules per report of a worker
AT_ONCE = 4  # batches with a planted defect in progress
ENOUGH = 200  # schedules to run before their costs are compared with those without the defect
COSTLY = 1.02  # ratio of costs from which a defect counts as found

Job: TypeAlias = tuple[int, int, str]
"""First seed of a batch, number of its schedules, and planted defect ("": none)."""
Cost: TypeAlias = tuple[float, int]
"""Seconds of virtual time, and trainings."""


@dataclass
class Summary:
    """Outcomes of schedules.

    schedules: number of schedules
    faults: kind -> number of injected faults
    finished: number of schedules that completed all rounds
    stalled: number of schedules in which a run made no progress
    lost, doubled: number of schedules in which an update was lost, or folded twice
    unequal: number of schedules whose weights or journal do not match the folded updates
    other: number of schedules with another failure
    failed: seed -> failure
    seconds: processor seconds
    """

    schedules: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    finished: int = 0
    stalled: int = 0
    lost: int = 0
    doubled: int = 0
    unequal: int = 0
    other: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, outcome: Outcome) -> None:
        self.schedules += 1
        self.finished += outcome.finished
        self.faults.update(outcome.injected)
        if outcome.wrong:
            kind = outcome.wrong.partition(":")[0]
            kind = kind if kind in ("stalled", "lost", "doubled", "unequal") else "other"
            setattr(self, kind, getattr(self, kind) + 1)
            self.failed[outcome.seed] = outcome.wrong


def try_schedule(schedule: Schedule) -> Outcome:
    """Return a schedule's outcome; an unexpected error is an outcome too."""
    try:
        return run_schedule(schedule)
    except Exception as error:  # report it with its seed
        return Outcome(schedule.seed, f"crashed: {type(error).__name__}: {error}")


def run_batch(job: Job) -> tuple[list[Outcome], float]:
    """Return the outcomes of a batch, and the seconds that it took."""
    first, count, defect = job
    silence()
    start = time.process_time()
    with DEFECTS[defect].plant():
        outcomes = [try_schedule(draw(seed)) for seed in range(first, first + count)]
    gc.collect()
    return outcomes, time.process_time() - start


def silence() -> None:
    """Use one thread, and log nothing: every schedule would log its injected faults."""
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore", ResourceWarning)  # killed processes close nothing
    gc.freeze()  # skip PyTorch's modules in every collection


def split_batches(first: int, count: int, defect: str = "") -> Iterator[Job]:
    """Yield schedules in batches."""
    for start in range(first, first + count, BATCH):
        yield start, min(BATCH, first + count - start), defect


def shrink(schedule: Schedule) -> Schedule:
    """Remove faults one at a time while the schedule still fails, and return the shortest one."""
    faults = list(schedule.faults)
    index = 0
    while index < len(faults):
        fewer = [*faults[:index], *faults[index + 1 :]]
        if try_schedule(replace(schedule, faults=tuple(fewer))).wrong:
            faults, index = fewer, 0
        else:
            index += 1
    return replace(schedule, faults=tuple(faults))


def follow(seed: int) -> Outcome:
    """Run a schedule, and print it event by event."""
    torch.set_num_threads(1)
    now = [0.0]

    class Printer(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            click.echo(f"{now[0]:9.2f}  {record.name}: {record.getMessage()[:200]}")

    def tell(at: float, event: object) -> None:
        now[0] = at
        if isinstance(event, Fault):
            click.echo(f"{at:9.2f}  {event}")

    handler, root = Printer(), logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        return run_schedule(draw(seed), tell)
    finally:
        root.removeHandler(handler)


def read_log(log: Path | None) -> Summary:
    """Return the summary of an earlier call with the same seed. Raises ConfigError."""
    check_log(log)
    if log is None or not log.exists():
        return Summary()
    try:
        data = json.loads(log.read_text())
        return Summary(
            **{
                **data,
                "faults": Counter(data["faults"]),
                "failed": {int(seed): why for seed, why in data["failed"].items()},
            }
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"--log {log}: expected a file that this benchmark wrote: {error}; choose another file"
        ) from error


@dataclass
class Hunt:
    """A search for one planted defect.

    name: name of the defect
    tried: number of schedules run with the defect
    wrong: failure that revealed the defect; empty if none did
    costs: seconds of virtual time and trainings of these schedules, with and without the defect
    """

    name: str
    tried: int = 0
    wrong: str = ""
    costs: tuple[Cost, Cost] = ((0.0, 0), (0.0, 0))

    @property
    def costly(self) -> str:
        """Description of the time or work that the defect wastes; empty if it wastes none."""
        (seconds, trainings), (before, usual) = self.costs
        if self.tried < ENOUGH:
            return ""
        if seconds > COSTLY * before:
            return f"slow: {seconds / before:.3f} times the time"
        return (
            f"wasteful: {trainings / usual:.3f} times the trainings"
            if trainings > COSTLY * usual
            else ""
        )


def hunt(
    pool: ProcessPoolExecutor, name: str, seed: int, count: int, usual: dict[int, Cost]
) -> Hunt:
    """Try schedules with a planted defect until one fails, or until the costs reveal it.

    usual: cost of a batch without the defect by first seed; missing ones are added
    """
    found = Hunt(name)
    for jobs in group(split_batches(seed, count, name), AT_ONCE):
        missing = [(first, many, "") for first, many, _ in jobs if first not in usual]
        for (first, _, _), (outcomes, _) in zip(missing, pool.map(run_batch, missing), strict=True):
            usual[first] = sum_costs(outcomes)
        for (first, _, _), (outcomes, _) in zip(jobs, pool.map(run_batch, jobs), strict=True):
            for outcome in outcomes:
                found.tried += 1
                if outcome.wrong:
                    found.wrong = outcome.wrong
                    return found
            found.costs = (
                add_costs(found.costs[0], sum_costs(outcomes)),
                add_costs(found.costs[1], usual[first]),
            )
        if found.costly:
            found.wrong = found.costly
            return found
    return found


def sum_costs(outcomes: Sequence[Outcome]) -> Cost:
    return sum(outcome.seconds for outcome in outcomes), sum(
        outcome.trainings for outcome in outcomes
    )


def add_costs(one: Cost, other: Cost) -> Cost:
    return one[0] + other[0], one[1] + other[1]


def group(jobs: Iterator[Job], count: int) -> Iterator[list[Job]]:
    while made := list(islice(jobs, count)):
        yield made


@click.command("schedules")
@click.option(
    "--count",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    metavar="N",
    help="number of schedules",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    help="seed of the first schedule; later ones count up from it  [default: random; it is "
    "printed]",
)
@click.option(
    "--planted",
    is_flag=True,
    help="insert each known defect into the code, and run schedules until one detects it",
)
@click.option(
    "--defect",
    "names",
    multiple=True,
    metavar="NAME",
    help="insert only this defect; may be repeated",
)
@click.option(
    "--replay",
    type=click.IntRange(min=0),
    metavar="SEED",
    help="run one schedule, and print its events",
)
@click.option(
    "--log",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="save the results in this file, and resume from it",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    metavar="N",
    help="number of processes",
)
@FORMAT
def command(
    count: int,
    seed: int | None,
    planted: bool,
    names: tuple[str, ...],
    replay: int | None,
    log: Path | None,
    workers: int,
    form: str,
) -> None:
    """Simulate fleets with random faults.

    A schedule is a simulated run in virtual time, with faults that its seed selects. Check that no
    update is lost or counted twice, that a restart restores the same state, and that no run stalls.
    """
    with report_errors("python -m benchmarks schedules", "coordinator"):
        if replay is not None:
            outcome = follow(replay)
            click.echo(f"seed {replay}: {outcome.wrong or 'no failure'}")
            sys.exit(bool(outcome.wrong))
        if unknown := [name for name in names if name not in DEFECTS]:
            raise Unknown("defect", unknown[0], filter(None, DEFECTS))
        say = speaker(form)
        first = secrets.randbelow(2**31) if seed is None else seed
        say(
            f"seed {first}; replaced: {', '.join(REPLACED)}, the links, the broker and the task "
            "runner"
        )
        with ProcessPoolExecutor(workers) as pool:
            done = (
                try_defects(pool, names, first, count, say)
                if planted or names
                else try_schedules(pool, first, count, log, say)
            )
        print_result({"seed": first, **done}, form)
        if done["wrong"]:
            sys.exit(1)


def try_schedules(
    pool: ProcessPoolExecutor, seed: int, count: int, log: Path | None, say: Say
) -> dict[str, Any]:
    """Run schedules. Print each that fails, with its shortest list of faults that still fails."""
    found, start = read_log(log), time.perf_counter()
    before = found.schedules
    for outcomes, seconds in pool.map(run_batch, split_batches(seed + before, count - before)):
        found.seconds += seconds
        for outcome in outcomes:
            found.add(outcome)
        if log is not None:
            log.write_text(json.dumps(vars(found)))
        if found.schedules % (50 * BATCH) == 0:
            say(f"{found.schedules} of {count}, {len(found.failed)} failed")
    silence()
    for failed, why in found.failed.items():
        say(f"seed {failed}: {why}")
        shortest = shrink(draw(failed))
        for fault in shortest.faults:
            say(f"    {fault}")
        say(
            "    line for tests/benchmarks/failed_schedules.jsonl: "
            f"{msgspec.json.encode({'found': why, 'schedule': shortest}).decode()}"
        )
    rate = round((found.schedules - before) / (time.perf_counter() - start), 2)
    faults = sum(found.faults.values())
    say(
        f"{found.schedules} schedules with {faults} faults: {found.finished} finished, "
        f"{len(found.failed)} failed; {rate} a second"
    )
    return {
        **vars(found),
        "finished": found.finished / max(1, found.schedules),
        "per_second": rate,
        "wrong": len(found.failed),
    }


def try_defects(
    pool: ProcessPoolExecutor, names: Sequence[str], seed: int, count: int, say: Say
) -> dict[str, Any]:
    """Try each planted defect until a schedule finds it, then the same schedules without any."""
    found, usual = list[Hunt](), dict[int, Cost]()
    for name in names or [name for name in DEFECTS if name]:
        one = hunt(pool, name, seed, count, usual)
        found_it = f"found after {one.tried} schedules: {one.wrong}"
        say(f"{name}: {found_it if one.wrong else f'not found in {one.tried} schedules'}")
        found.append(one)
    unplanted = try_schedules(pool, seed, max(one.tried for one in found), None, say)
    planted = [
        {"name": one.name, "found_after": one.tried if one.wrong else 0, "wrong": one.wrong}
        for one in found
    ]
    return {
        **unplanted,
        "planted": planted,
        "wrong": unplanted["wrong"] + sum(not one.wrong for one in found),
    }
