"""Read and write what a run's database stores for validation and privacy: the norms of the updates,
and the privacy cost of each released result.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path

from coordinator import database_row_digests
from coordinator.database_row_digests import seal
from federated.errors import StoreError, explain_os_errors

__all__ = ["SCHEMA", "WINDOW", "ChangeNorm", "TrustTables", "open_tables"]

WINDOW = 10  # earlier rounds whose norms bound the updates of a round

SCHEMA = """
CREATE TABLE norms (round INTEGER, agent TEXT, submodel TEXT, kind TEXT, norm REAL NOT NULL,
                    PRIMARY KEY (round, agent, submodel, kind));
CREATE TABLE releases (release INTEGER, round INTEGER NOT NULL, agent TEXT, cost REAL NOT NULL,
                       PRIMARY KEY (release, agent));
"""


@dataclass(frozen=True)
class ChangeNorm:
    """The L2 norm of one kind of change that one update made.

    round: of the update.
    agent: its sender.
    submodel: plain name.
    kind: weights, statistics or variates.
    norm: L2 norm.
    """

    round: int
    agent: str
    submodel: str
    kind: str
    norm: float


NORM = attrgetter(*(field.name for field in fields(ChangeNorm)))  # `astuple` is slow


class TrustTables:
    """Access to these tables of an open database. Methods that write raise StoreError if that
    fails.
    """

    def __init__(
        self, database: sqlite3.Connection, check: Callable[[], None] = lambda: None
    ) -> None:
        """check: called before each transaction; raises StoreError if writing is not allowed."""
        self._database, self._check = database, check

    def write_norms(self, norms: Iterable[ChangeNorm]) -> None:
        """Write norms, replacing those of the same update, and delete those that are too old for
        any bound.
        """
        rows = [NORM(one) for one in norms]
        if not rows:
            return
        with self._writing("the norms of updates"):
            self._database.executemany("INSERT OR REPLACE INTO norms VALUES (?, ?, ?, ?, ?)", rows)
            oldest = max(row[0] for row in rows) - 2 * WINDOW
            self._database.execute("DELETE FROM norms WHERE round < ?", (oldest,))
            seal(self._database, "norms")

    def read_norms(self, round: int) -> Iterator[ChangeNorm]:
        """Yield the norms that bound a round's updates: those of the rounds before it."""
        rows = self._database.execute(
            "SELECT round, agent, submodel, kind, norm FROM norms WHERE round >= ? AND "
            "round < ? ORDER BY round, agent",
            (round - WINDOW, round),
        )
        return (ChangeNorm(*row) for row in rows)

    def write_costs(self, round: int, costs: Mapping[str, float]) -> None:
        """Write the privacy cost of a result before anyone sees it. A round that ends twice costs
        twice. costs: by agent.
        """
        with self._writing(f"the privacy cost of round {round}"):
            (last,) = self._database.execute(
                "SELECT COALESCE(MAX(release), 0) FROM releases"
            ).fetchone()
            rows = [(last + 1, round, agent, cost) for agent, cost in costs.items()]
            self._database.executemany("INSERT INTO releases VALUES (?, ?, ?, ?)", rows)
            seal(self._database, "releases", last + 1)

    def read_costs(self) -> dict[str, float]:
        """Read the sum of each agent's costs over all results so far."""
        return dict(self._database.execute("SELECT agent, SUM(cost) FROM releases GROUP BY agent"))

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """Open a transaction that writes `what`. Raises StoreError if it fails."""
        self._check()
        with explain_os_errors(StoreError, f"cannot write {what}", sqlite3.Error), self._database:
            yield

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def open_tables(path: Path) -> TrustTables:
    """Open these tables in a file of their own, and make them if they are missing. Raises
    StoreError.
    """
    problem = f"cannot open {path}; remove it if it is damaged"
    with explain_os_errors(StoreError, problem, sqlite3.Error):
        database = sqlite3.connect(path)
        try:
            ((found,),) = database.execute("PRAGMA quick_check(1)").fetchall()
            if found != "ok":
                raise sqlite3.DatabaseError(found)
            if not database.execute("SELECT 1 FROM sqlite_master").fetchall():
                made = SCHEMA + database_row_digests.SCHEMA
                database.executescript(f"BEGIN; {made} COMMIT;")
        except sqlite3.Error:
            database.close()
            raise
    return TrustTables(database)
