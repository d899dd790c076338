"""What a run's database keeps of updates that cannot be taken on trust: how far each moved, and
what each round told of whom.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from federated.errors import StoreError

__all__ = ["SCHEMA", "WINDOW", "Evidence", "Measured"]

WINDOW = 10  # rounds before the present one whose norms bound its updates

SCHEMA = """
CREATE TABLE norms (round INTEGER, agent TEXT, submodel TEXT, kind TEXT, norm REAL NOT NULL,
                    PRIMARY KEY (round, agent, submodel, kind));
CREATE TABLE releases (release INTEGER, round INTEGER NOT NULL, agent TEXT, cost REAL NOT NULL,
                       PRIMARY KEY (release, agent));
"""


@dataclass(frozen=True)
class Measured:
    """The L2 norm of one kind of change that one update made."""

    round: int
    agent: str
    submodel: str
    kind: str
    norm: float


class Evidence:
    """These tables of an open database. What writes raises StoreError when the disk does not take
    it.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def keep(self, measured: Iterable[Measured]) -> None:
        """Writes norms; what is measured again is written over. Norms that bound nothing any more
        go.
        """
        rows = [(one.round, one.agent, one.submodel, one.kind, one.norm) for one in measured]
        try:
            with self._database:
                self._database.executemany(
                    "INSERT OR REPLACE INTO norms VALUES (?, ?, ?, ?, ?)", rows
                )
                if rows:
                    self._database.execute(
                        "DELETE FROM norms WHERE round < ?",
                        (max(row[0] for row in rows) - 2 * WINDOW,),
                    )
        except sqlite3.Error as error:
            raise StoreError(f"the norms of updates could not be written: {error}") from error

    def measured(self, round: int) -> list[Measured]:
        """The norms by which a round's updates are bounded: of the rounds before it."""
        rows = self._database.execute(
            "SELECT round, agent, submodel, kind, norm FROM norms WHERE round >= ? AND "
            "round < ? ORDER BY round, agent",
            (round - WINDOW, round),
        )
        return [Measured(*row) for row in rows]

    def release(self, round: int, costs: Mapping[str, float]) -> None:
        """Writes down what a result will tell, before it is shown to anyone; a round that ends
        twice has told twice. costs: by agent.
        """
        try:
            with self._database:
                (last,) = self._database.execute(
                    "SELECT COALESCE(MAX(release), 0) FROM releases"
                ).fetchone()
                rows = [(last + 1, round, agent, cost) for agent, cost in costs.items()]
                self._database.executemany("INSERT INTO releases VALUES (?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise StoreError(
                f"what round {round} tells of whom could not be written: {error}"
            ) from error

    def spent(self) -> dict[str, float]:
        """What all results so far have told of each agent, as a sum of costs."""
        return dict(self._database.execute("SELECT agent, SUM(cost) FROM releases GROUP BY agent"))
