"""Write finished rounds and their scores to CSV files in the run's folder.

rounds.csv has a line for each round. scores.csv has a line for each number: its round, submodel,
view and agent (empty: all examples together), its name, and its value. A resumed run continues both
files.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from coordinator.observe.event_readers.reader import ReaderContext
from coordinator.observe.events import Event, Publish, RoundEnded
from coordinator.observe.round_records import RoundRecord

__all__ = ["ROUNDS", "SCORES", "write_csv"]

ROUNDS, SCORES = "rounds.csv", "scores.csv"
ROUND_COLUMNS = ("round", "seconds", "asked", "folded", "bytes_up", "bytes_down")
SCORE_COLUMNS = ("round", "submodel", "view", "agent", "examples", "metric", "value")


def write_csv(context: ReaderContext) -> Publish:
    """Make a reader that appends each finished round to the CSV files."""
    folder = context.folder

    def read(event: Event) -> None:
        if isinstance(event, RoundEnded):
            append(folder / ROUNDS, ROUND_COLUMNS, [list_round_values(event.done)])
            append(folder / SCORES, SCORE_COLUMNS, list_score_rows(event.done))

    return read


def append(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Append rows to a CSV file; a new file starts with the names of the columns."""
    with path.open("a", newline="") as file:
        lines = csv.writer(file)
        if file.tell() == 0:
            lines.writerow(columns)
        lines.writerows(rows)


def list_round_values(done: RoundRecord) -> Sequence[object]:
    folded = sum(entry.outcome == "folded" for entry in done.entries)
    asked = len(done.entries)
    return done.round, round(done.seconds, 3), asked, folded, done.bytes_up, done.bytes_down


def list_score_rows(done: RoundRecord) -> Iterable[Sequence[object]]:
    for score in done.scores:
        about = (done.round, score.submodel, score.view, score.agent, score.examples)
        for name, value in score.metrics.items():
            yield *about, name, value
