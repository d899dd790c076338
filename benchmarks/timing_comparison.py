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

from federated.runtime.console import print_result

__all__ = ["RUNS", "Row", "compare", "print_rows", "time_interleaved"]

RUNS = 7


@dataclass(frozen=True)
class Row:
    """One comparison.

    name: what is measured
    ours: median milliseconds
    rival: what it is compared with
    theirs: median milliseconds of the rival
    ratio: theirs / ours
    goal: least ratio
    met: whether the ratio reaches the goal
    """

    name: str
    ours: float
    rival: str
    theirs: float
    ratio: float
    goal: float
    met: bool


def compare(name: str, ours: float, rival: str, theirs: float, goal: float) -> Row:
    return Row(name, ours, rival, theirs, theirs / ours, goal, theirs / ours >= goal)


def time_interleaved(tasks: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median milliseconds of each task, run in turns."""
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for turn in range(RUNS + 1):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            if turn:  # the first one is a warm-up
                times[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(each) for name, each in times.items()}


def print_rows(rows: Sequence[Row], form: str) -> None:
    """Print comparisons, with what their times depend on."""
    machine = {
        "processors": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy")},
    }
    print_result(
        {"machine": machine, "rows": [asdict(row) for row in rows]},
        form,
        lambda _: "\n".join([", ".join(f"{k} {v}" for k, v in machine.items()), *lines(rows)]),
    )


def lines(rows: Sequence[Row]) -> list[str]:
    return [
        f"{'':26}{'ours ms':>9}  {'rival':16}{'rival ms':>9}{'ratio':>7}{'goal':>6}",
        *(
            f"{r.name:26}{r.ours:9.2f}  {r.rival:16}{r.theirs:9.2f}{r.ratio:7.2f}{r.goal:6.2f} "
            f"{'met' if r.met else 'missed'}"
            for r in rows
        ),
    ]
