"""An event reader with which a coordinator rests after each round.

A run that goes on until its test ends would otherwise keep a processor busy with rounds.
"""

from __future__ import annotations

import time

from coordinator.observe.event_readers.reader import ReaderContext
from coordinator.observe.events import Event, Publish, RoundEnded

__all__ = ["PACED", "rest"]

REST = 1.0  # seconds
PACED = ("--set", f'observe.readers=["{__name__}:rest"]')  # of `coordinator start`


def rest(context: ReaderContext) -> Publish:
    """Make an event reader that waits after each round."""

    def read(event: Event) -> None:
        if isinstance(event, RoundEnded):
            time.sleep(REST)

    return read
