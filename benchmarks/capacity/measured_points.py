"""Read saved results of `python -m benchmarks scale` as points, and fit a line to each quantity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from benchmarks.comparison.result import BenchmarkResult, read_result
from benchmarks.scale import UPDATE_BYTES, Size
from federated.errors import ConfigError

__all__ = [
    "BROKER",
    "COORDINATOR",
    "MEMORY",
    "WORKERS",
    "Line",
    "MeasuredPoints",
    "fit_lines",
    "read_points",
]

COORDINATOR, WORKERS, BROKER = "coordinator", "workers", "broker"  # seconds of processor time
MEMORY = "memory"  # bytes of the coordinator
# names of scale's rows
TIME_ROWS = {
    COORDINATOR: "coordinator's processor time per agent (ms)",
    WORKERS: "workers' processor time per agent (ms)",
    BROKER: "broker's processor time per agent (ms)",
}
MEMORY_ROW = "coordinator's memory (MB)"
# settings that must be equal at all points, with scale's defaults, as a result records them
SETTINGS = {name: str(getattr(Size, name)) for name in ("workers", "kind", "whole")}
Value = TypeVar("Value")


@dataclass(frozen=True)
class MeasuredPoints:
    """Points that were measured with the same settings, on the same kind of machine.

    agents: number of agents of each point, ascending
    values: for each quantity, its value in one round at each point (seconds, bytes)
    settings: options of scale that all points share
    update_bytes: bytes of one update, and of the weights that an agent downloads
    machine: processor of the machine, and how many there are
    commits: what was measured; more than one may hide a change
    """

    agents: tuple[int, ...]
    values: dict[str, tuple[float, ...]]
    settings: dict[str, str]
    update_bytes: int
    machine: str
    commits: tuple[str, ...]


@dataclass(frozen=True)
class Line:
    """A quantity of one round as a linear function of the agents that take part.

    fixed: value with no agent; below 0 if the cost of an agent rises with their number
    per_agent: slope
    largest: largest measured number of agents
    measured: value there (mean, if there are several)
    predicted: value there by a line through the smaller points only; None: too few points
    error: of that prediction, relative to the measured value
    """

    fixed: float
    per_agent: float
    largest: int
    measured: float
    predicted: float | None = None
    error: float | None = None

    def predict(self, agents: float) -> float:
        """Return the value with this many agents, at least 0."""
        return max(0.0, self.fixed + self.per_agent * agents)


def read_points(paths: Sequence[Path]) -> MeasuredPoints:
    """Read results of scale. Raises ConfigError if a file is none, settings or machines differ, or
    all have the same number of agents.
    """
    found = sorted(
        ((count_agents(path, one), one) for path, one in read_all(paths)),
        key=lambda point: point[0],
    )
    numbers = tuple(agents for agents, _ in found)
    if len(set(numbers)) < 2:
        raise ConfigError(
            "expected results at two or more numbers of agents, found "
            f"{', '.join(map(str, numbers))} only: measure another with "
            "python -m benchmarks scale --agents N --format json > FILE"
        )
    settings = require_same("settings", numbers, [list_settings(one) for _, one in found])
    machine = require_same("machine", numbers, [describe_machine(one) for _, one in found])
    values = {
        name: tuple(find_value(one, agents, row) * agents / 1000 for agents, one in found)
        for name, row in TIME_ROWS.items()
        if name != WORKERS or settings["workers"] != "0"
    }
    values[MEMORY] = tuple(find_value(one, agents, MEMORY_ROW) * 1e6 for agents, one in found)
    commits = tuple(sorted({one.machine.commit for _, one in found}))
    size = UPDATE_BYTES[settings["whole"] == str(True)]
    return MeasuredPoints(numbers, values, settings, size, machine, commits)


def require_same(what: str, agents: Sequence[int], values: Sequence[Value]) -> Value:
    """Return what all points share. Raises ConfigError if one differs from the first."""
    for number, value in zip(agents, values, strict=True):
        if value != values[0]:
            raise ConfigError(
                f"expected results with the same {what}, found {values[0]} with {agents[0]} "
                f"agents and {value} with {number}"
            )
    return values[0]


def read_all(paths: Sequence[Path]) -> list[tuple[Path, BenchmarkResult]]:
    """Return the results. Raises ConfigError if one is not of scale, or reports a failure."""
    found = [(path, read_result(path, "scale")) for path in paths]
    for path, one in found:
        if one.name != "scale":
            raise ConfigError(f"{path}: expected a result of scale, found one of {one.name}")
        if one.failures:
            raise ConfigError(f"{path}: the measurement failed: {one.failures[0].reason}")
    return found


def count_agents(path: Path, result: BenchmarkResult) -> int:
    """Return the number of agents of a result. Raises ConfigError if it is none."""
    agents = result.options.get("agents", str(Size.agents))
    if not agents.isdecimal() or int(agents) == 0:
        raise ConfigError(f"{path}: options.agents: expected a number from 1, found {agents!r}")
    return int(agents)


def list_settings(result: BenchmarkResult) -> dict[str, str]:
    return {name: result.options.get(name, default) for name, default in SETTINGS.items()}


def describe_machine(result: BenchmarkResult) -> str:
    return f"{result.machine.processor}, {result.machine.cpus:g} processors"


def find_value(result: BenchmarkResult, agents: int, row: str) -> float:
    """Return what a row of the large fleet states. Raises ConfigError if there is no such row."""
    name = f"{agents:,} agents, {row}"
    for one in result.rows:
        if one.name == name:
            return one.ours
    raise ConfigError(f"the result with {agents} agents lacks the row {name!r}: measure it again")


def fit_lines(measured: MeasuredPoints) -> dict[str, Line]:
    """Return the line through the points of each quantity, by least squares. Raises ConfigError if
    a time does not rise with the number of agents.
    """
    lines = {name: fit_line(measured.agents, values) for name, values in measured.values.items()}
    for name, line in lines.items():
        if name != MEMORY and line.per_agent <= 0:
            raise ConfigError(
                f"the {name}'s processor time of a round does not rise from "
                f"{measured.agents[0]} to {measured.agents[-1]} agents "
                f"({1000 * line.per_agent:.3g} ms per agent): measure again on an idle machine, "
                "with numbers of agents that differ more"
            )
    return lines


def fit_line(agents: Sequence[int], values: Sequence[float]) -> Line:
    """Return the line through these points, and its check: the largest point, predicted from the
    others.
    """
    slope, fixed = fit(agents, values)
    largest = max(agents)
    measured = float(np.mean([v for n, v in zip(agents, values, strict=True) if n == largest]))
    smaller = [(n, v) for n, v in zip(agents, values, strict=True) if n < largest]
    if len({n for n, _ in smaller}) < 2:
        return Line(fixed, slope, largest, measured)
    rise, base = fit([n for n, _ in smaller], [v for _, v in smaller])
    predicted = base + rise * largest
    error = predicted / measured - 1 if measured > 0 else None
    return Line(fixed, slope, largest, measured, predicted, error)


def fit(agents: Sequence[int], values: Sequence[float]) -> tuple[float, float]:
    """Return slope and value at 0 of the line with the least squared error."""
    x, y = np.asarray(agents, np.float64), np.asarray(values, np.float64)
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    return slope, float(y.mean() - slope * x.mean())
