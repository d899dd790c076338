"""Write and read the reports of `edge-agent bench`: rows and a fingerprint of the machine, as JSON
(versioned) or CSV; and compare two of them. Does not import torch.
"""

from __future__ import annotations

import csv
import io
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import msgspec
import psutil

from edge_agent.device.board import read_board, read_governor, read_processor_name
from edge_agent.device.measurement_cache import PACKAGES
from edge_agent.device.process_limits import Limits, count_cpus
from federated.decoding_errors import describe_decoding_error
from federated.errors import ConfigError, UsageError, explain_os_errors
from federated.runtime import atomic_files
from federated.runtime.provenance import commit, versions
from federated.task import Board

__all__ = [
    "Fingerprint",
    "Ratio",
    "Report",
    "Row",
    "check_writable",
    "compare",
    "list_differences",
    "read",
    "take_fingerprint",
    "to_ms",
    "write",
]

FORMAT = 1
SUFFIXES = (".csv", ".json")


@dataclass(frozen=True)
class Row:
    """One network with one runtime. Inference runs single examples, one after the other. None:
    not measured or unknown.

    network: requested name; empty for files
    submodel: name of the submodel or the file (its path if two files share a name)
    runtime: name of the runtime
    provider: short name of the execution provider
    threads: number of threads
    parameters: number of parameters
    macs: multiply-adds of one example
    training_macs: multiply-adds of one example in training
    file_bytes: size of the weights or the graph
    load_ms: time to load the file
    runs: measured inferences
    seconds: requested duration of the inference measurement
    least_ms: fastest inference
    p50_ms, p90_ms, p95_ms, p99_ms: percentiles of one inference
    predicted_ms: predicted p50
    batch: examples of a training step
    step_least_ms: fastest training step
    step_median_ms: median training step
    predicted_step_ms: predicted fastest training step
    base_bytes: memory of the process with its runtime loaded
    peak_bytes: peak memory up to the first answers
    training_peak_bytes: peak memory up to the end of training
    predicted_bytes: predicted peak of training beyond the base
    joules: energy of one inference, for the whole package or board
    celsius_before, celsius_after: hottest sensor
    mhz_before, mhz_after: fastest processor
    throttled: whether the device throttled during the measurement
    busy: fraction of the processors that other processes used
    loaded: whether `busy` is too high to trust the times
    error: why the row has no results
    """

    network: str
    submodel: str
    runtime: str
    provider: str
    threads: int
    parameters: int | None = None
    macs: int | None = None
    training_macs: int | None = None
    file_bytes: int | None = None
    load_ms: float | None = None
    runs: int | None = None
    seconds: float | None = None
    least_ms: float | None = None
    p50_ms: float | None = None
    p90_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    predicted_ms: float | None = None
    batch: int | None = None
    step_least_ms: float | None = None
    step_median_ms: float | None = None
    predicted_step_ms: float | None = None
    base_bytes: int | None = None
    peak_bytes: int | None = None
    training_peak_bytes: int | None = None
    predicted_bytes: int | None = None
    joules: float | None = None
    celsius_before: float | None = None
    celsius_after: float | None = None
    mhz_before: float | None = None
    mhz_after: float | None = None
    throttled: bool | None = None
    busy: float | None = None
    loaded: bool | None = None
    error: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """Fields that identify a measurement."""
        return (self.network, self.submodel, self.runtime, self.provider, str(self.threads))


@dataclass(frozen=True)
class Fingerprint:
    """Everything that times depend on.

    machine: architecture
    processor: name of the processor
    cpus: processors that may be used
    memory: bytes of the machine
    system: operating system
    python: version of Python
    versions: versions of packages
    board: the board
    limits: limits in words
    commit: commit of this program, if known
    governor: how the kernel sets the processors' clocks, if known
    """

    machine: str
    processor: str
    cpus: float
    memory: int
    system: str
    python: str
    versions: dict[str, str]
    board: Board
    limits: str
    commit: str
    governor: str = ""


@dataclass(frozen=True)
class Report:
    """A benchmark.

    fingerprint: the machine
    rows: the measurements
    taken: start time, ISO 8601 in UTC
    probes: submodels timed for the predictions
    format: version of the file format
    """

    fingerprint: Fingerprint
    rows: tuple[Row, ...]
    taken: str
    probes: tuple[str, ...] = ()
    format: int = FORMAT


@dataclass(frozen=True)
class Ratio:
    """New over old times of one row: above 1 is slower. None if either is missing.

    row: the new row
    p90: ratio of the p90 latency
    step: ratio of the median training step
    """

    row: Row
    p90: float | None
    step: float | None

    @property
    def worst(self) -> float:
        return max(self.p90 or 0.0, self.step or 0.0)


def to_ms(seconds: float | None) -> float | None:
    """Return the milliseconds of a row's field."""
    return None if seconds is None else round(seconds * 1000, 6)


def take_fingerprint(limits: Limits) -> Fingerprint:
    """Describe this machine and the limits of the rows."""
    memory = "" if limits.memory is None else f"{limits.memory / 10**6:g} MB"
    cpus = "" if limits.cpus is None else f"{limits.cpus:g} cpus"
    return Fingerprint(
        machine=platform.machine(),
        processor=read_processor_name(),
        cpus=count_cpus(limits),
        memory=psutil.virtual_memory().total,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        versions=versions(PACKAGES),
        board=read_board(),
        limits=", ".join(part for part in (cpus, memory) if part),
        commit=commit(),
        governor=read_governor(),
    )


def compare(new: Report, old: Report) -> tuple[Ratio, ...]:
    """Return a ratio for each row in both reports, in the order of the new one. Submodels of the
    same name for other inputs or classes are skipped.
    """
    before = {row.key: row for row in old.rows}
    pairs = [
        (row, before[row.key])
        for row in new.rows
        if row.key in before and _is_same_network(row, before[row.key])
    ]
    return tuple(
        Ratio(row, _divide(row.p90_ms, past.p90_ms), _divide_steps(row, past))
        for row, past in pairs
    )


def list_differences(new: Report, old: Report) -> tuple[str, ...]:
    """Describe the differences between two reports other than their times, which may explain the
    ratios.
    """
    now, was = _flatten(new.fingerprint), _flatten(old.fingerprint)
    found = [
        f"{name} was {was.get(name) or 'none'}, is {now.get(name) or 'none'}"
        for name in {**now, **was}
        if now.get(name) != was.get(name)
    ]
    shared = {row.key: row for row in old.rows}
    others = [
        row for row in new.rows if row.key in shared and not _is_same_network(row, shared[row.key])
    ]
    found += [
        f"{row.submodel} {row.runtime} has other inputs or classes: not compared" for row in others
    ]
    spans = sorted(
        {
            (old_row.seconds, row.seconds)
            for row in new.rows
            if (old_row := shared.get(row.key)) and row.seconds and old_row.seconds
        }
    )
    return (
        *found,
        *(
            f"inference was measured for {before:g} s, now for {after:g} s"
            for before, after in spans
            if before != after
        ),
    )


def read(path: Path) -> Report:
    """Read a JSON report. ConfigError: the file is not a report."""
    try:
        found = msgspec.json.decode(path.read_bytes())
        if isinstance(found, dict) and found.get("format", FORMAT) != FORMAT:
            raise ConfigError(
                f"--compare {path}: expected format {FORMAT}, found {str(found['format'])[:20]}; "
                "measure again with this version"
            )
        return msgspec.convert(found, Report)
    except OSError as error:
        raise ConfigError(
            f"--compare {path}: cannot be read: {error.strerror}; create one with: edge-agent "
            "bench --out FILE.json"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(
            f"--compare {path}: not the JSON of edge-agent bench --out: "
            f"{describe_decoding_error(error)}"
        ) from None


def write(report: Report, path: Path) -> None:
    """Write a report atomically in the format of the suffix: all of it as JSON, or the rows as
    CSV. Raises ConfigError.
    """
    if path.suffix == ".json":
        content = msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"
    else:
        text = io.StringIO(newline="")
        table = csv.DictWriter(text, [field.name for field in fields(Row)])
        table.writeheader()
        table.writerows(asdict(row) for row in report.rows)
        content = text.getvalue().encode()
    with explain_os_errors(ConfigError, f"{path}: cannot be written"):
        atomic_files.write(path, content)


def check_writable(flag: str, path: Path, suffixes: Sequence[str] = SUFFIXES) -> None:
    """Check the suffix of a flag's path and that it can be written, before a long measurement.
    Raises UsageError, ConfigError.
    """
    if path.suffix not in suffixes:
        raise UsageError(
            f"{flag} {path}: expected a file name that ends in one of {', '.join(suffixes)}"
        )
    with explain_os_errors(ConfigError, f"{flag} {path}: cannot be written"):
        atomic_files.check_writable(path)


def _is_same_network(new: Row, old: Row) -> bool:
    """Return True if two rows with one key measure the same network. A file may have changed: that
    is what its owner compares.
    """
    return not new.network or (new.parameters, new.macs) == (old.parameters, old.macs)


def _divide(new: float | None, old: float | None) -> float | None:
    return new / old if new and old else None


def _divide_steps(new: Row, old: Row) -> float | None:
    return _divide(new.step_median_ms, old.step_median_ms) if new.batch == old.batch else None


def _flatten(found: Fingerprint) -> dict[str, Any]:
    known = asdict(found)
    for name in ("board", "versions"):
        known |= {f"{name}.{key}": value for key, value in sorted(known.pop(name).items())}
    return known
