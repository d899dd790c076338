"""`python -m benchmarks codec-accuracy`: compare the accuracies and the uploads of whole runs with
each codec, which `python -m benchmarks reproduce codecs` logged, with those of the codec `raw` and
the same seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click

from benchmarks.comparison.command import benchmark
from benchmarks.comparison.result import FOLDER
from benchmarks.comparison.rows import Baseline, Row, compare
from benchmarks.reproduction.cells import Finished, read_log
from benchmarks.weight_encoding.command import (
    CHECKPOINTS,
    make_size_rows,
    measure_sizes,
    read_checkpoints,
)
from federated.errors import ConfigError
from federated.runtime.console import Say

__all__ = ["command", "compare_runs"]

RAW, JUDGED = "raw", "int8-zstd"  # rows of the experiment; the second has a goal
MOST_LOST = 0.5  # goal: percentage points of accuracy

Runs = Mapping[int, Finished]


def compare_runs(runs: Sequence[Finished]) -> Iterator[Row]:
    """Yield the rows of each codec. Raises ConfigError if no run of `raw` has its seed."""
    by_codec: dict[str, dict[int, Finished]] = {}
    for one in runs:
        by_codec.setdefault(one.row, {})[one.seed] = one
    raw = by_codec.pop(RAW, {})
    for codec, mine in by_codec.items():
        if not (seeds := sorted(mine.keys() & raw.keys())):
            raise ConfigError(f"{codec}: expected a run of {RAW} with the same seed, found none")
        yield compare_errors_of(codec, mine, raw, seeds)
        uploads, limit = (average(them, "uploads", seeds) / 1e6 for them in (mine, raw))
        yield compare(f"uploads of a run, {codec} (MB)", uploads, limit=Baseline(RAW, limit))


def compare_errors_of(codec: str, mine: Runs, raw: Runs, seeds: Sequence[int]) -> Row:
    """Return the row of the errors of runs with equal seeds."""
    error, limit = (100 * (1 - average(them, "global", seeds)) for them in (mine, raw))
    count = f"{len(seeds)} seed{'s' * (len(seeds) > 1)}"
    judged = codec == JUDGED
    within = f", at most {MOST_LOST:g} points more" if judged else ""
    row = compare(f"error, {codec}, {count}{within} (%)", error, limit=Baseline(RAW, limit))
    return replace(row, met=error - limit <= MOST_LOST + 1e-9) if judged else row


def average(runs: Runs, score: str, seeds: Sequence[int]) -> float:
    return statistics.fmean(runs[seed].scores[score] for seed in seeds)


@benchmark("codec-accuracy", "coordinator")
@click.option(
    "--log",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=FOLDER / "codecs-small.jsonl",
    help="finished runs of python -m benchmarks reproduce codecs  [default: the committed ones]",
)
@CHECKPOINTS
def command(log: Path, checkpoints: tuple[Path, Path] | None, say: Say) -> list[Row]:
    """Compare the accuracy of runs with each codec.

    With two checkpoints, also count the bytes of an update.
    """
    rows = list(compare_runs(read_log(log)))
    if checkpoints:
        before, after = read_checkpoints(*checkpoints)
        rows += make_size_rows(measure_sizes(after, before), trained=True)
    return rows
