"""What people ask of a coordinator that runs: to pause, to go on, to stop. Wishes go through the
run's database, so no port is opened.

Whoever may write the run's folder may steer it. The coordinator looks once a second; it takes a
wish to stop away as it heeds it, while a pause stays until it is taken back, whoever starts the
coordinator again in between.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

from coordinator.store import run_lock
from coordinator.store.runs import DATABASE, absent
from federated.errors import StoreError

__all__ = ["Helm", "Stopped", "Wish", "Wishes", "wish", "wishes"]

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS wishes (about TEXT PRIMARY KEY, wanted TEXT NOT NULL, at TEXT "
    "NOT NULL, heard INTEGER NOT NULL)"
)
LOOK = 1.0  # seconds between looks
LOCKED = 5.0  # seconds that a wish waits for a coordinator that writes

Wish: TypeAlias = Literal["pause", "go on", "stop", "stop now"]


class Stopped(Exception):
    """The coordinator was asked to stop, and does so in order: the run can be resumed."""


@dataclass(frozen=True)
class Wishes:
    """paused: no round is to begin. stop: empty, `stop` (after the present round) or `stop now`.
    heard: whether the coordinator knows.
    """

    paused: bool = False
    stop: str = ""
    heard: bool = True


def wish(folder: Path, wanted: Wish) -> Wishes:
    """Leaves a wish for the coordinator of a run; what was asked of it before.

    Raises StoreError where there is no such run, or no coordinator to hear it.
    """
    if not (folder / DATABASE).exists():
        raise absent(folder)
    if not run_lock.held(folder):
        raise StoreError(
            f"run '{folder.name}' has no coordinator at the moment: there is nothing to "
            f"{wanted.split()[0]}"
        )
    before = wishes(folder)
    about = "stop" if wanted.startswith("stop") else "pause"
    try:
        with _opened(folder) as database, database:
            database.execute(
                "INSERT OR REPLACE INTO wishes VALUES (?, ?, ?, 0)",
                (about, wanted, datetime.now(UTC).isoformat()),
            )
    except sqlite3.Error as error:
        raise StoreError(f"run '{folder.name}' could not be asked to {wanted}: {error}") from error
    return before


def wishes(folder: Path) -> Wishes:
    """What is asked of a run's coordinator; nothing where no coordinator ever listened. Raises
    StoreError.
    """
    try:
        with _opened(folder) as database:
            rows = {
                about: (wanted, heard)
                for about, wanted, heard in database.execute(
                    "SELECT about, wanted, heard FROM wishes"
                )
            }
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return Wishes()
        raise StoreError(f"{folder / DATABASE}: {error}") from error
    return Wishes(
        rows.get("pause", ("", 1))[0] == "pause",
        rows.get("stop", ("", 1))[0],
        all(heard for _, heard in rows.values()),
    )


class Helm:
    """The coordinator's side: looks for wishes, and heeds them. paused: whether no round is to
    begin.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes away a stop that was meant for an earlier coordinator. Raises StoreError where the
        run's database is not to be written.
        """
        self._clock = clock
        self._database = sqlite3.connect(folder / DATABASE, timeout=LOCKED)
        try:
            with self._database:
                self._database.execute(SCHEMA)
                self._database.execute("DELETE FROM wishes WHERE about = 'stop'")
        except sqlite3.Error as error:
            raise StoreError(f"{folder / DATABASE}: {error}") from error
        # whoever writes at the moment, the next look is a second away
        self._database.execute("PRAGMA busy_timeout = 0")
        self._looked = -LOOK
        self._stop = ""
        self._within = False
        self.paused = False
        self.look()

    def close(self) -> None:
        self._database.close()

    @property
    def stopping(self) -> bool:
        """Whether the run stops once its present round is done."""
        return bool(self._stop)

    def look(self) -> None:
        """Called often, looks once a second. Raises Stopped where the wish is to stop now, or to
        stop and no round is under way.
        """
        now = self._clock()
        if now - self._looked >= LOOK:
            self._looked = now
            # a disk in trouble is said by those who must write
            with contextlib.suppress(sqlite3.Error):
                self._read()
        if self._stop == "stop now" or (self._stop and not self._within):
            self._obey()

    def within(self) -> None:
        """A round is under way."""
        self._within = True

    def between(self) -> None:
        """None is. Raises Stopped as `look` does."""
        self._within = False
        self.look()

    def _read(self) -> None:
        rows = self._database.execute("SELECT about, wanted, heard FROM wishes").fetchall()
        wanted = {about: asked for about, asked, _ in rows}
        self.paused, self._stop = wanted.get("pause") == "pause", wanted.get("stop", "")
        if not all(heard for *_, heard in rows):
            with self._database:
                self._database.executemany(
                    "UPDATE wishes SET heard = 1 WHERE about = ? AND wanted = ?", wanted.items()
                )

    def _obey(self) -> None:
        with contextlib.suppress(sqlite3.Error), self._database:
            self._database.execute("DELETE FROM wishes WHERE about = 'stop'")
        raise Stopped("stopped at once" if self._stop == "stop now" else "stopped between rounds")


@contextmanager
def _opened(folder: Path) -> Iterator[sqlite3.Connection]:
    database = sqlite3.connect(folder / DATABASE, timeout=LOCKED)
    try:
        yield database
    finally:
        database.close()
