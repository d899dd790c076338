"""Log a warning if the system's clock jumps."""

from __future__ import annotations

import logging

from coordinator.observe.event_readers.reader import ReaderContext
from coordinator.observe.events import Event, LoopTurned, Publish
from federated.runtime.clock_jumps import JumpDetector

__all__ = ["watch_clock"]

log = logging.getLogger(__name__)


def watch_clock(context: ReaderContext) -> Publish:
    """Make a reader that logs a warning if the system's clock jumps."""
    jumps = JumpDetector()

    def read(event: Event) -> None:
        if isinstance(event, LoopTurned) and (jumped := jumps.check()):
            log.warning("%s", jumped)

    return read
