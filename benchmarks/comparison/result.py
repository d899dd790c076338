"""The result of a benchmark, as text and as a file from which the documentation is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from benchmarks.comparison.rows import Baseline, Failure, Row
from edge_agent.bench.report import Fingerprint
from federated.errors import ConfigError, explain_os_errors
from federated.runtime import atomic_files

__all__ = [
    "FOLDER",
    "BenchmarkResult",
    "describe_surroundings",
    "find_file",
    "format_cells",
    "format_goal",
    "format_ratio",
    "format_result",
    "format_value",
    "list_absent",
    "read_result",
    "read_results",
    "read_saved",
    "write_result",
]

T = TypeVar("T")

FOLDER = Path(__file__).parents[1] / "results"
GB = 10**9


@dataclass(frozen=True)
class BenchmarkResult:
    """What a benchmark measured.

    name: of the benchmark
    options: those that were given, other than the defaults
    rows: the comparisons
    peers: versions of the other projects, by package
    machine: everything that times depend on, with the commit
    load: load average of the last minute before the start
    taken: start time, ISO 8601 in UTC
    seconds: duration
    failures: what could not be measured, or is wrong
    absent: why a peer that should have been compared with was not, by its name
    """

    name: str
    options: dict[str, str]
    rows: tuple[Row, ...]
    peers: dict[str, str]
    machine: Fingerprint
    load: float
    taken: str
    seconds: float
    failures: tuple[Failure, ...] = ()
    absent: dict[str, str] = field(default_factory=dict)


def find_file(name: str) -> Path:
    """Return the file of a benchmark's result."""
    return FOLDER / f"{name}.json"


def write_result(result: BenchmarkResult) -> Path:
    """Write a result to its file, and return the path. Raises ConfigError."""
    path = find_file(result.name)
    with explain_os_errors(ConfigError, f"--save: {path} cannot be written"):
        atomic_files.write(path, msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    return path


def read_results() -> list[BenchmarkResult]:
    """Return the saved results, by name. Raises ConfigError if a file is no result."""
    return [read_result(path, path.stem) for path in sorted(FOLDER.glob("*.json"))]


def read_result(path: Path, name: str) -> BenchmarkResult:
    """Return the result in a file. Raises ConfigError if there is none.

    name: of the benchmark whose result is expected, for the message
    """
    return read_saved(path, BenchmarkResult, f"{name} --format json")


def read_saved(path: Path, kind: type[T], command: str) -> T:
    """Return what a benchmark saved. Raises ConfigError if the file holds no such result.

    command: of `python -m benchmarks` that makes such a file, for the message
    """
    with explain_os_errors(ConfigError, f"{path}: cannot be read"):
        content = path.read_bytes()
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: expected a result of python -m benchmarks {command}: {error}"
        ) from None


def describe_surroundings(result: BenchmarkResult) -> str:
    """Return when, where and with which versions a result was measured."""
    machine = result.machine
    versions = {"Python": machine.python, **machine.versions, **result.peers}
    parts = [
        f"commit {machine.commit[:8] or 'unknown'}{'+' * machine.commit.endswith('+')}",
        machine.processor,
        f"{machine.cpus:g} processors",
        f"{machine.memory / GB:.0f} GB",
        machine.system,
        f"governor {machine.governor or 'unknown'}",
        f"load {result.load:.1f} before",
        *(f"{name} {version}" for name, version in versions.items() if version),
        f"{result.seconds:.0f} s",
        *(f"--{name} {value}" for name, value in result.options.items()),
    ]
    return f"{result.taken[:10]}: {', '.join(parts)}"


def format_result(result: BenchmarkResult) -> str:
    """Return a result as text."""
    heads = ("", "ours", "peer", "limit", "ratio", "goal", "")
    table = [heads, *map(format_cells, result.rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    failed = (f"failed: {one.name}: {one.reason}" for one in result.failures)
    lines = format_lines(table, widths)
    return "\n".join([describe_surroundings(result), *lines, *list_absent(result), *failed])


def list_absent(result: BenchmarkResult) -> Iterator[str]:
    """Yield a sentence for each peer that is missing from a result."""
    for peer, reason in result.absent.items():
        yield f"not compared with {peer}: {reason}"


def format_cells(row: Row) -> tuple[str, ...]:
    """Return the cells of a row: name, ours, peer, limit, ratio, goal, and whether it is met."""
    peer, limit = format_baseline(row.peer), format_baseline(row.limit)
    return row.name, format_value(row.ours), peer, limit, format_ratio(row.ratio), *format_goal(row)


def format_lines(table: list[tuple[str, ...]], widths: list[int]) -> Iterator[str]:
    for name, *cells in table:
        padded = (f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        yield "  ".join([f"{name:{widths[0]}}", *padded]).rstrip()


def format_value(value: float) -> str:
    """Return a value with three significant digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def format_baseline(baseline: Baseline | None) -> str:
    return "" if baseline is None else f"{baseline.name} {format_value(baseline.value)}"


def format_ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.0f}x"


def format_goal(row: Row) -> tuple[str, str]:
    """Return the least ratio, and whether the goal is met or missed; empty without a goal."""
    goal = "" if row.goal is None else f"{row.goal:.3g}x"
    return goal, "" if row.met is None else "met" if row.met else "missed"
