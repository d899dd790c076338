"""Pause, resume or stop a running coordinator, or pin agents to submodels. Requests go through the
run's database, so that no port is opened.

Any user with write access to the run's folder can control the run. The coordinator reads the
requests once a second. It deletes a request to stop when it obeys. A pause lasts until the run is
resumed, and a pin until it is removed, even if the coordinator is restarted in between.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias

from coordinator import audit_log
from coordinator.assign.submodel_pins import index_submodels
from coordinator.audit_log import Actor
from coordinator.store import run_lock
from coordinator.store.run_database_reader import open_records
from coordinator.store.run_folders import DATABASE, make_missing_error
from federated.errors import StoreError, Unknown, explain_os_errors

__all__ = [
    "Command",
    "Control",
    "Requests",
    "Stopped",
    "begin_requests",
    "pin_agent",
    "read_requests",
    "send_request",
]

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS requests (about TEXT PRIMARY KEY, command TEXT NOT NULL, at TEXT "
    "NOT NULL, seen INTEGER NOT NULL)"
)
PINS = "CREATE TABLE IF NOT EXISTS pins (agent TEXT PRIMARY KEY, submodel TEXT NOT NULL)"
POLL = 1.0  # seconds between looks
LOCKED = 5.0  # seconds that a request waits for a coordinator that is writing

Command: TypeAlias = Literal["pause", "resume", "stop", "stop now"]


class Stopped(Exception):
    """The coordinator stops on request; the run can be resumed."""


@dataclass(frozen=True)
class Requests:
    """The requests to a coordinator.

    paused: whether no further round may begin.
    stop: empty, `stop` (after the current round) or `stop now`.
    seen: whether the coordinator has read them.
    pins: agent -> name of the submodel that it gets from the next round on.
    """

    paused: bool = False
    stop: str = ""
    seen: bool = True
    pins: dict[str, str] = field(default_factory=dict)


def begin_requests(database: sqlite3.Connection, since: datetime) -> None:
    """Prepare a run's database for requests to the coordinator that locked the run at `since`.
    Delete an earlier request to stop, which was meant for another coordinator. Raises
    sqlite3.Error.
    """
    with database:
        database.execute(SCHEMA)
        database.execute(PINS)
        database.execute(
            "DELETE FROM requests WHERE about = 'stop' AND at < ?", (since.isoformat(),)
        )


def send_request(folder: Path, command: Command, by: Actor | None = None) -> Requests:
    """Send a request to the coordinator of a run; return the requests before it.

    by: who asks; None: the user of this process.
    Raises StoreError if there is no such run, or if no coordinator is running it.
    """
    _check_running(folder, command.split()[0])
    before = read_requests(folder)
    about = "stop" if command.startswith("stop") else "pause"
    with _changing(folder, command) as database:
        database.execute(
            "INSERT OR REPLACE INTO requests VALUES (?, ?, ?, 0)",
            (about, command, datetime.now(UTC).isoformat()),
        )
        audit_log.add(database, by, command)
    return before


def pin_agent(folder: Path, agent: str, submodel: str, by: Actor | None = None) -> str:
    """Pin an agent to a submodel from the next round on, or remove its pin (empty submodel); return
    its pin before, empty if it had none. Raises as `send_request`, and Unknown for an agent or a
    submodel that the run does not have.

    by: who asks; None: the user of this process.
    """
    _check_running(folder, "pin")
    with closing(open_records(folder.parent, folder.name)) as records:
        menu, agents = records.read_facts().menu, records.agents.read_profiles()
    before = read_requests(folder).pins
    if submodel and submodel not in (known := index_submodels(menu)):
        raise Unknown("submodel", submodel, {one.name for one in known.values()})
    if agent not in agents.keys() | before.keys():
        raise Unknown("agent", agent, agents, "agents are known once a round has begun")
    with _changing(folder, "pin") as database:
        database.execute("DELETE FROM pins WHERE agent = ?", (agent,))
        if submodel:
            database.execute("INSERT INTO pins VALUES (?, ?)", (agent, submodel))
        audit_log.add(database, by, "pin" if submodel else "unpin", [f"{agent} {submodel}".strip()])
    return before.get(agent, "")


def read_requests(folder: Path) -> Requests:
    """Return the requests to a run's coordinator; none if no coordinator has ever looked for any.
    Raises StoreError.
    """
    try:
        with closing(_connect(folder)) as database:
            (wanted, seen), pins = _read_rows(database), _read_pins(database)
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return Requests()
        raise StoreError(f"{folder / DATABASE}: {error}") from error
    return Requests(wanted.get("pause") == "pause", wanted.get("stop", ""), seen, pins)


class Control:
    """The coordinator's side: reads requests and obeys them.

    paused: whether no further round may begin.
    pins: agent -> name of the submodel that it gets.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._database = _connect(folder)
        # never wait for a writer: the next look is a second away
        self._database.execute("PRAGMA busy_timeout = 0")
        self._looked = clock()
        self._stop = ""
        self._within = False
        self.paused, self.pins = False, dict[str, str]()
        with contextlib.suppress(sqlite3.Error):  # as in `look`
            self._read()

    def close(self) -> None:
        self._database.close()

    @property
    def stopping(self) -> bool:
        """True if the run stops after its current round."""
        return bool(self._stop)

    def look(self) -> None:
        """Look for requests, at most once a second. Raises Stopped on a request to stop now, or to
        stop while no round is in progress.
        """
        now = self._clock()
        if now - self._looked >= POLL:
            self._looked = now
            # those who must write report a failing disk
            with contextlib.suppress(sqlite3.Error):
                self._read()
        if self._stop == "stop now" or (self._stop and not self._within):
            self._obey()

    def begin_round(self) -> None:
        self._within = True

    def end_round(self) -> None:
        """Note that no round is in progress. Raises Stopped as `look` does."""
        self._within = False
        self.look()

    def _read(self) -> None:
        wanted, seen = _read_rows(self._database)
        self.paused, self._stop = wanted.get("pause") == "pause", wanted.get("stop", "")
        self.pins = _read_pins(self._database)
        if not seen:
            with self._database:
                self._database.executemany(
                    "UPDATE requests SET seen = 1 WHERE about = ? AND command = ?", wanted.items()
                )

    def _obey(self) -> None:
        with contextlib.suppress(sqlite3.Error), self._database:
            self._database.execute("DELETE FROM requests WHERE about = 'stop'")
        raise Stopped("stopped at once" if self._stop == "stop now" else "stopped between rounds")


def _check_running(folder: Path, what: str) -> None:
    if not (folder / DATABASE).exists():
        raise make_missing_error(folder)
    if not run_lock.is_held(folder):
        raise StoreError(f"run '{folder.name}' is not running, so there is nothing to {what}")


@contextlib.contextmanager
def _changing(folder: Path, what: str) -> Iterator[sqlite3.Connection]:
    problem = f"cannot ask run '{folder.name}' to {what}"
    with (
        explain_os_errors(StoreError, problem, sqlite3.Error),
        closing(_connect(folder)) as database,
        database,
    ):
        yield database


def _connect(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(folder / DATABASE, timeout=LOCKED)


def _read_pins(database: sqlite3.Connection) -> dict[str, str]:
    return dict(database.execute("SELECT agent, submodel FROM pins"))


def _read_rows(database: sqlite3.Connection) -> tuple[dict[str, str], bool]:
    """Return what is wanted, by subject, and whether the coordinator has read all of it."""
    rows = database.execute("SELECT about, command, seen FROM requests").fetchall()
    return {about: wanted for about, wanted, _ in rows}, all(seen for *_, seen in rows)
