"""Read what may take seconds, such as the output of a hanging program, without waiting for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["BackgroundReading"]

T = TypeVar("T")


class BackgroundReading(Generic[T]):
    """The latest result of `read`, which runs in a thread, except for the first time.

    latest: the result.
    """

    def __init__(self, read: Callable[[], T]) -> None:
        self._read, self.latest = read, read()
        self._thread: threading.Thread | None = None

    def refresh(self) -> T:
        """Start the next reading, unless one is running, and return the latest result."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="reading", daemon=True)
            self._thread.start()
        return self.latest

    def _run(self) -> None:
        self.latest = self._read()
