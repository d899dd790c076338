"""Event readers of somebody else, in one file that no package knows."""

from __future__ import annotations

import json
from collections import Counter

from coordinator.observe.events import Event, Publish, RoundEnded, RunEnded
from coordinator.observe.readers.reader import ReaderContext

__all__ = ["count_events", "fail_at_rounds"]


def count_events(context: ReaderContext) -> Publish:
    """Counts events by type, and writes the counts at the end of the run."""
    counts = Counter[str]()

    def read(event: Event) -> None:
        counts[type(event).__name__] += 1
        if isinstance(event, RunEnded):
            (context.folder / "counts.json").write_text(json.dumps(counts))

    return read


def fail_at_rounds(context: ReaderContext) -> Publish:
    """Raises at the end of each round."""

    def read(event: Event) -> None:
        if isinstance(event, RoundEnded):
            raise ValueError(f"cannot read {type(event).__name__}")

    return read
