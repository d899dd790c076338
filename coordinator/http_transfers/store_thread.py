"""Do the work of a store in a thread, again and again, also while the store is away."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from coordinator.http_transfers.object_store import StoreFailure

__all__ = ["StoreThread"]

log = logging.getLogger(__name__)

FIRST_WAIT, LONGEST_WAIT = 1.0, 4.0  # seconds between attempts; doubled while they fail
FAREWELL = 10.0  # seconds for work that is under way when it is closed


class StoreThread:
    """Calls `work` once it is started and when `wake` is called, until it is closed.

    work: returns the seconds until it is called again anyway; None: not before `wake`. After a
        StoreFailure or an OSError it is called again later.
    lost: why the store failed in the last attempts, at least two in a row; empty: it did not.
    """

    def __init__(self, name: str, work: Callable[[], float | None]) -> None:
        self._work, self._name, self.lost = work, name, ""
        self._woken, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        self._closed.set()
        self._woken.set()
        self._thread.join(FAREWELL)

    def _run(self) -> None:
        wait = 0.0
        while not self._closed.is_set():
            self._woken.clear()
            try:
                pause = self._work()
            except Exception as error:  # otherwise nobody would know that the thread ended
                expected = isinstance(error, StoreFailure | OSError)
                self.lost = str(error) if wait and isinstance(error, StoreFailure) else ""
                if not wait:
                    trace = None if expected else error
                    log.warning("%s: %s; trying again", self._name, error, exc_info=trace)
                wait = min(2 * wait or FIRST_WAIT, LONGEST_WAIT)
                self._closed.wait(wait)
                continue
            if wait:
                log.warning("%s: the store works again", self._name)
            wait, self.lost = 0.0, ""
            self._woken.wait(pause)
