"""Let fleets take turns: each waits with its next round until the benchmark starts it, and writes
how long the round took.

Each fleet shares a folder with the benchmark, since Flower itself starts the process that waits.
"""

from __future__ import annotations

import time
from pathlib import Path

__all__ = ["FOLDER", "Turns"]

FOLDER = "turns"
POLL = 0.02  # seconds between looks for a file


class Turns:
    """The turns of one fleet.

    folder: of their files; it exists.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._number, self._began = 0, 0.0

    # ---- in the fleet ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Wait until the benchmark starts the next round, or stops the fleet."""
        self._number += 1
        awaited = self._start_file(self._number), self._stop_file()
        while not any(path.exists() for path in awaited):
            time.sleep(POLL)
        self._began = time.perf_counter()

    def end(self) -> None:
        """Write how long the round took."""
        seconds = time.perf_counter() - self._began
        unfinished = self.folder / "unfinished"
        unfinished.write_text(str(seconds))
        unfinished.replace(self._end_file(self._number))

    # ---- in the benchmark ------------------------------------------------------------------------

    def start(self, number: int) -> None:
        """Start a round; the first one has the number 1."""
        self._start_file(number).touch()

    def read(self, number: int) -> float | None:
        """Return the seconds of a round, or None if it has not ended."""
        path = self._end_file(number)
        return float(path.read_text()) if path.exists() else None

    def stop(self) -> None:
        """Let the fleet go on, so that it notices signals."""
        self._stop_file().touch()

    def _start_file(self, number: int) -> Path:
        return self.folder / f"start-{number}"

    def _end_file(self, number: int) -> Path:
        return self.folder / f"end-{number}"

    def _stop_file(self) -> Path:
        return self.folder / "stop"
