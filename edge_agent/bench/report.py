"""What a benchmark found, as a file: rows and the machine they are of, as JSON (versioned) or CSV,
and the comparison of two. No torch here.
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

from edge_agent.device.board import processor, read_board
from edge_agent.device.limits import Limits, available_cpus
from edge_agent.device.measurement_cache import PACKAGES
from federated.errors import ConfigError, UsageError
from federated.runtime import files
from federated.runtime.provenance import commit, versions
from federated.task import Board

__all__ = [
    "Fingerprint",
    "Ratio",
    "Report",
    "Row",
    "compare",
    "differences",
    "fingerprint",
    "read",
    "writable",
    "write",
]

FORMAT = 1
SUFFIXES = (".csv", ".json")


@dataclass(frozen=True)
class Row:
    """One network with one runtime. Inference is of one example, one after the other; milliseconds
    and bytes; None: not measured, or not to be known.

    network: as asked for, empty of files. submodel: its name, or the file's (its path, where two
    have one name). file_bytes: of the weights or the graph. runs, seconds: of inference, at least
    so long. predicted_ms: of p50; predicted_step_ms: of the quickest step of `batch` examples;
    predicted_bytes: of training, beyond the base. base_bytes: the process with its runtime loaded;
    peak_bytes: at the most by its first answers; training_peak_bytes: by the end of training.
    joules: of one inference, all that the package or the board took. celsius, mhz: of the hottest
    sensor and the fastest processor, before and after inference. throttled: at any time between.
    busy: share of the processors that others used meanwhile; loaded: so much that the times are not
    to be trusted. error: why there is nothing.
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
        """What makes two rows the same measurement."""
        return (self.network, self.submodel, self.runtime, self.provider, str(self.threads))


@dataclass(frozen=True)
class Fingerprint:
    """What times depend on. cpus: that may be used; memory: bytes of the machine; limits: in words,
    as given; commit: of this program, if known.
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


@dataclass(frozen=True)
class Report:
    """A benchmark. taken: when it began, ISO 8601 in UTC. probes: what was timed to predict the
    rows from.
    """

    fingerprint: Fingerprint
    rows: tuple[Row, ...]
    taken: str
    probes: tuple[str, ...] = ()
    format: int = FORMAT


@dataclass(frozen=True)
class Ratio:
    """New over old of one row: above 1 is slower. None where either has none."""

    row: Row
    p90: float | None
    step: float | None

    @property
    def worst(self) -> float:
        return max(self.p90 or 0.0, self.step or 0.0)


def fingerprint(limits: Limits) -> Fingerprint:
    """Of this machine, with what the rows are limited to."""
    memory = "" if limits.memory is None else f"{limits.memory / 10**6:g} MB"
    cpus = "" if limits.cpus is None else f"{limits.cpus:g} cpus"
    return Fingerprint(
        machine=platform.machine(),
        processor=processor(),
        cpus=available_cpus(limits),
        memory=psutil.virtual_memory().total,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        versions=versions(PACKAGES),
        board=read_board(),
        limits=", ".join(part for part in (cpus, memory) if part),
        commit=commit(),
    )


def compare(new: Report, old: Report) -> tuple[Ratio, ...]:
    """A ratio for each row that both measured, in the order of the new one. Submodels of one name
    for other inputs or classes are not the same.
    """
    before = {row.key: row for row in old.rows}
    pairs = [
        (row, before[row.key])
        for row in new.rows
        if row.key in before and _same(row, before[row.key])
    ]
    return tuple(
        Ratio(row, _over(row.p90_ms, past.p90_ms), _step(row, past)) for row, past in pairs
    )


def differences(new: Report, old: Report) -> tuple[str, ...]:
    """What differs between two reports, in words: their ratios may tell of that alone."""
    now, was = _flat(new.fingerprint), _flat(old.fingerprint)
    found = [
        f"{name} was {was.get(name) or 'none'}, is {now.get(name) or 'none'}"
        for name in {**now, **was}
        if now.get(name) != was.get(name)
    ]
    shared = {row.key: row for row in old.rows}
    others = [row for row in new.rows if row.key in shared and not _same(row, shared[row.key])]
    found += [
        f"{row.submodel} {row.runtime} is of other inputs or classes: not compared"
        for row in others
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
            f"inference was measured for {before:g} s, is for {after:g} s"
            for before, after in spans
            if before != after
        ),
    )


def read(path: Path) -> Report:
    """A report of `write`, as JSON. Raises ConfigError for a file that is none."""
    try:
        found = msgspec.json.decode(path.read_bytes())
        if isinstance(found, dict) and found.get("format", FORMAT) != FORMAT:
            raise ConfigError(
                f"{path}: expected format {FORMAT}, found {str(found['format'])[:20]}: "
                "measure again with this version"
            )
        return msgspec.convert(found, Report)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}; edge-agent bench --out FILE.json writes one"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(
            f"{path}: expected the JSON of edge-agent bench --out, found {error}"
        ) from None


def write(report: Report, path: Path) -> None:
    """Writes a report, whole or not at all, as the suffix says: all of it as JSON, or its rows as
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
    try:
        files.write(path, content)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error


def writable(path: Path, suffixes: Sequence[str] = SUFFIXES) -> Path:
    """The path, if a file of such a kind can be written there: better known before an hour of
    measuring. Raises UsageError.
    """
    if path.suffix not in suffixes:
        raise UsageError(f"{path}: expected a file that ends in {' or '.join(suffixes)}")
    partial = path.with_name(f"{path.name}.part")
    try:
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error
    return path


def _same(new: Row, old: Row) -> bool:
    """Whether two rows of one key are of one network; a file may have changed, which is what its
    owner then compares.
    """
    return not new.network or (new.parameters, new.macs) == (old.parameters, old.macs)


def _over(new: float | None, old: float | None) -> float | None:
    return new / old if new and old else None


def _step(new: Row, old: Row) -> float | None:
    return _over(new.step_median_ms, old.step_median_ms) if new.batch == old.batch else None


def _flat(found: Fingerprint) -> dict[str, Any]:
    known = asdict(found)
    for name in ("board", "versions"):
        known |= {f"{name}.{key}": value for key, value in sorted(known.pop(name).items())}
    return known
