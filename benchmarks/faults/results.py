"""Results of the fault campaign: a file for each kind of broker, shown as text and in the
documentation.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from benchmarks.comparison.result import read_saved
from benchmarks.faults.outcome import Outcome
from edge_agent.bench.report import Fingerprint, take_fingerprint
from edge_agent.device.process_limits import Limits
from federated.errors import ConfigError, explain_os_errors
from federated.runtime import atomic_files

__all__ = [
    "Campaign",
    "Summary",
    "format_table",
    "merge",
    "read_campaign",
    "read_campaigns",
    "summarise",
    "write_campaign",
]

FOLDER = Path(__file__).parents[1] / "results" / "faults"


@dataclass(frozen=True)
class Summary:
    """Results of a scenario.

    runs: number of runs
    injected: faults
    survived: runs with a fault that finished
    lost_updates, double_folded: over all runs, including those that did not recover
    equal: runs with the model of an undisturbed run
    recovery_s: median seconds from a fault to the next progress
    longest_s: longest such time
    why: failure and seed of each run that failed
    commit: of the program
    taken: day
    load: load average of the last minute at the end
    forked: True if processes were forked from one that had imported PyTorch
    """

    scenario: str
    runs: int
    injected: int
    survived: int
    lost_updates: int
    double_folded: int
    equal: int
    recovery_s: float
    longest_s: float
    why: tuple[str, ...] = ()
    commit: str = ""
    taken: str = ""
    load: float = 0.0
    forked: bool = False


@dataclass(frozen=True)
class Campaign:
    """What was found with one kind of broker.

    broker: its kind
    version: its name and version
    machine: on which the latest runs took place
    rows: by scenario
    """

    broker: str
    version: str
    machine: Fingerprint
    rows: tuple[Summary, ...]


def summarise(name: str, outcomes: Sequence[Outcome]) -> Summary:
    """Return the summary of a scenario's runs."""
    waits = [seconds for outcome in outcomes for seconds in outcome.recovery]
    return Summary(
        name,
        len(outcomes),
        sum(outcome.injected for outcome in outcomes),
        sum(outcome.survived for outcome in outcomes),
        sum(outcome.lost for outcome in outcomes),
        sum(outcome.doubled for outcome in outcomes),
        sum(outcome.equal for outcome in outcomes),
        round(statistics.median(waits), 2) if waits else 0.0,
        round(max(waits, default=0.0), 2),
        tuple(f"seed {outcome.seed}: {outcome.why}" for outcome in outcomes if outcome.why),
    )


def merge(kind: str, version: str, found: Iterable[Summary], *, forked: bool) -> Campaign:
    """Return the saved results of a kind of broker with these in place of earlier ones. Raises
    ConfigError.
    """
    machine = take_fingerprint(Limits())
    known = {
        row.scenario: row for row in (read_campaign(kind).rows if _find(kind).exists() else ())
    }
    day, load = datetime.now(UTC).date().isoformat(), round(os.getloadavg()[0], 1)
    for row in found:
        known[row.scenario] = replace(
            row, commit=machine.commit, taken=day, load=load, forked=forked
        )
    return Campaign(kind, version, machine, tuple(known.values()))


def write_campaign(campaign: Campaign) -> None:
    """Write results to their file. Raises ConfigError."""
    path = _find(campaign.broker)
    with explain_os_errors(ConfigError, f"--save: {path} cannot be written"):
        path.parent.mkdir(exist_ok=True)
        atomic_files.write(path, msgspec.json.format(msgspec.json.encode(campaign)) + b"\n")


def read_campaign(kind: str) -> Campaign:
    """Return the saved results of a kind of broker. Raises ConfigError if there are none."""
    return read_saved(_find(kind), Campaign, "faults --save")


def read_campaigns() -> list[Campaign]:
    """Return all saved results. Raises ConfigError."""
    return [read_campaign(path.stem) for path in sorted(FOLDER.glob("*.json"))]


def format_table(found: Sequence[Summary]) -> Iterator[str]:
    """Yield the table for the terminal, and the reasons of failures."""
    yield (
        f"{'scenario':30}{'runs':>6}{'injected':>10}{'survived':>10}{'lost':>6}"
        f"{'doubled':>9}{'equal':>7}{'recovery':>10}{'longest':>9}"
    )
    for s in found:
        yield (
            f"{s.scenario:30}{s.runs:6}{s.injected:10}{s.survived:10}"
            f"{s.lost_updates:6}{s.double_folded:9}{s.equal:7}"
            f"{s.recovery_s:8.1f} s{s.longest_s:7.1f} s"
        )
    for s in found:
        yield from (f"{s.scenario}: {why}" for why in s.why)


def _find(kind: str) -> Path:
    return FOLDER / f"{kind}.json"
