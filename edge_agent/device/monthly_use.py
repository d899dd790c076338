"""Count what this user's agents use in each calendar month, such as bytes or joules, in a file that
outlives them. Does not import torch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from federated.runtime import atomic_files
from federated.system.file_locks import lock_file

__all__ = ["MonthlyUse"]

log = logging.getLogger(__name__)

KEPT = 12  # latest months in the file
# How often the file is written, seconds: not for each heartbeat, which would wear out an SD card.
EVERY = 60.0
Count = Annotated[int, Meta(ge=0)]


class MonthlyUse:
    """What this user's agents use, of which this process adds its own part.

    A month is a key of the file, so that a wrong clock, such as that of a device without a battery
    before it knows the time, adds to another month and resets nothing.
    """

    def __init__(
        self,
        path: Path,
        worth: int,
        month: Callable[[], str] = lambda: date.today().strftime("%Y-%m"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """path: of the file. worth: amount that is written at once. month: the present one, local
        time. clock: seconds.
        """
        self._path, self._worth, self._month, self._clock = path, worth, month, clock
        self._count: Callable[[], int] = lambda: 0
        self._counted = 0  # amount of this process that is in the file
        self._written, self._known = "", 0  # month and amount of the file when it was written last
        self._due = 0.0
        self._guard = threading.Lock()

    def watch(self, count: Callable[[], int]) -> None:
        """Count the use of this process. count: returns its amount so far, which never decreases;
        raises OSError if it is unknown.
        """
        self._count = count

    def read(self) -> int:
        """Return the amount of this month so far. Raises OSError if the file cannot be written."""
        with self._guard:
            new, now = self._count() - self._counted, self._clock()
            month = self._month()
            if month != self._written or new >= self._worth or now >= self._due:
                self._known = self._add(month, new)
                self._written, self._counted = month, self._counted + new
                self._due, new = now + EVERY, 0
            return self._known + new

    def close(self) -> None:
        """Write what was counted since the last time. An error is logged."""
        self._due = 0.0
        try:
            self.read()
        except OSError as error:
            log.error("cannot write the use of this month to %s: %s", self._path, error)

    def _add(self, month: str, new: int) -> int:
        """Add an amount to a month in the file, and return its sum, with that of other agents."""
        with self._locked():
            months = self._load()
            total = months.get(month, 0) + new
            if new or month not in months:
                months[month] = total
                # the present one also if a wrong clock says that it is older than the others
                latest = dict(sorted(months.items())[-KEPT:]) | {month: total}
                atomic_files.write(self._path, msgspec.json.encode(latest))
            return total

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            lock_file(handle, wait=True)
            yield
        finally:
            os.close(handle)

    def _load(self) -> dict[str, int]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, Count])
        except FileNotFoundError:
            return {}
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            log.error("%s is damaged (%s): counting from 0 again", self._path, error)
            return {}
