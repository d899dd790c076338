"""Time tasks in turns with what they are compared to (other projects, plain copies), and print the
ratios.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TypeVar

from federated.runtime.console import print_result
from federated.runtime.provenance import commit

__all__ = ["RUNS", "Row", "compare", "print_rows", "time_interleaved"]

RUNS = 7
T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One comparison.

    name: what is measured
    ours: median
    baseline: what it is compared with
    theirs: median of the baseline
    ratio: theirs / ours
    goal: least ratio; None: no such goal
    met: whether the goal is reached; None: no goal
    unit: of ours and theirs, of which less is better
    """

    name: str
    ours: float
    baseline: str
    theirs: float
    ratio: float
    goal: float | None
    met: bool | None
    unit: str = "ms"


def compare(
    name: str, ours: float, baseline: str, theirs: float, goal: float | None, unit: str = "ms"
) -> Row:
    ratio = theirs / ours
    return Row(
        name, ours, baseline, theirs, ratio, goal, None if goal is None else ratio >= goal, unit
    )


def time_interleaved(
    tasks: Mapping[T, Callable[[], object]], clock: Callable[[], float] = time.perf_counter
) -> dict[T, float]:
    """Return the median milliseconds of each task, run in turns. clock: returns seconds."""
    times: dict[T, list[float]] = {name: [] for name in tasks}
    for turn in range(RUNS + 1):
        for name, task in tasks.items():
            start = clock()
            task()
            if turn:  # the first one is a warm-up
                times[name].append(1000 * (clock() - start))
    return {name: statistics.median(each) for name, each in times.items()}


def print_rows(rows: Sequence[Row], form: str, peers: Mapping[str, str]) -> None:
    """Print comparisons, with what their times depend on. peers: versions of their packages."""
    machine = {
        "commit": commit()[:8],
        "processors": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy")},
        **peers,
    }
    print_result(
        {"machine": machine, "rows": [asdict(row) for row in rows]},
        form,
        lambda _: "\n".join([", ".join(f"{k} {v}" for k, v in machine.items()), *lines(rows)]),
    )


def lines(rows: Sequence[Row]) -> list[str]:
    heads = f"{'':32}{'ours':>9}{'':8}{'baseline':18}{'theirs':>9}{'ratio':>7}{'goal':>6}"
    return [heads, *map(format_row, rows)]


def format_row(row: Row) -> str:
    goal = "" if row.goal is None else f"{row.goal:.2f}"
    met = "" if row.met is None else "met" if row.met else "missed"
    compared = f"{row.name:32}{row.ours:9.2f} {row.unit:7}{row.baseline:18}{row.theirs:9.2f}"
    return f"{compared}{row.ratio:7.2f}{goal:>6} {met}".rstrip()
