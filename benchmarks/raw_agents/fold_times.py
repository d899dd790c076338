"""Record how much processor time the coordinator spends on adding the updates of each round."""

from __future__ import annotations

from pathlib import Path

from coordinator.observe.event_readers.reader import ReaderContext
from coordinator.observe.events import Event, Publish, RoundEnded, StageFinished

__all__ = ["READER", "read_fold_times"]

FILE = "fold-times.txt"  # a line for each round, in the run's folder


def write_fold_times(context: ReaderContext) -> Publish:
    """Make a reader that writes the seconds of each round."""
    path, spent = context.folder / FILE, 0.0

    def read(event: Event) -> None:
        nonlocal spent
        match event:
            case StageFinished("fold", _, processor):
                spent += processor
            case RoundEnded():
                with path.open("a") as file:
                    file.write(f"{spent}\n")
                spent = 0.0

    return read


READER = f"{__name__}:{write_fold_times.__name__}"


def read_fold_times(folder: Path) -> list[float]:
    """Read the seconds of each round of the run in this folder."""
    return [float(line) for line in (folder / FILE).read_text().splitlines()]
