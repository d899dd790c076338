"""Let a coordinator wait for its turns, as the other fleets of the benchmark do."""

from __future__ import annotations

from benchmarks.round.turns import FOLDER, Turns
from coordinator.observe.event_readers.reader import ReaderContext
from coordinator.observe.events import Event, Publish, RoundEnded, RoundStarted

__all__ = ["wait_for_turns"]


def wait_for_turns(context: ReaderContext) -> Publish:
    """Make an event reader that waits before each round. A turn also includes what the coordinator
    does between two rounds.
    """
    turns, first = Turns(context.folder.parent / FOLDER), True

    def read(event: Event) -> None:
        nonlocal first
        if isinstance(event, RoundStarted) and first:
            first = False
            turns.begin()
        elif isinstance(event, RoundEnded):
            turns.end()
            turns.begin()

    return read
