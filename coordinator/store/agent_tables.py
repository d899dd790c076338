"""What a run's database keeps of its agents: as they measured themselves, what was decided of them
in each round, and how they stand.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping

import msgspec

from coordinator.assign.decision_record import Decision
from coordinator.assign.standing import Standing
from federated.errors import StoreError
from federated.task import Profile

__all__ = ["SCHEMA", "Ledger"]

SCHEMA = """
CREATE TABLE profiles (agent TEXT PRIMARY KEY, profile TEXT NOT NULL);
CREATE TABLE standings (agent TEXT PRIMARY KEY, standing TEXT NOT NULL);
CREATE TABLE decisions (round INTEGER, agent TEXT, submodel TEXT NOT NULL, asked INTEGER NOT NULL,
                        reason TEXT NOT NULL, step REAL NOT NULL,
                        seconds REAL NOT NULL, memory INTEGER NOT NULL,
                        PRIMARY KEY (round, agent));
"""


class Ledger:
    """These tables of an open database."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._profiles: dict[str, Profile] = {}  # as they were last written: most never change

    def decided(
        self, round: int, decisions: Mapping[str, Decision], profiles: Mapping[str, Profile]
    ) -> None:
        """Writes what was decided in a round, as it begins, and the profiles that are new; a round
        that begins again is written over.

        Raises StoreError when the disk does not take it.
        """
        new = {
            agent: profile
            for agent, profile in profiles.items()
            if self._profiles.get(agent) is not profile
        }
        try:
            with self._database:
                self._write(round, decisions, new)
        except sqlite3.Error as error:
            raise StoreError(
                f"what was decided in round {round} could not be written: {error}"
            ) from error
        self._profiles |= new

    def asked(self, round: int, agent: str, reason: str) -> None:
        """Writes that an agent was asked after all. Raises StoreError when the disk does not take
        it.
        """
        try:
            with self._database:
                self._database.execute(
                    "UPDATE decisions SET asked = 1, reason = ? WHERE round = ? AND agent = ?",
                    (reason, round, agent),
                )
        except sqlite3.Error as error:
            raise StoreError(
                f"what was decided in round {round} could not be written: {error}"
            ) from error

    def _write(
        self, round: int, decisions: Mapping[str, Decision], profiles: Mapping[str, Profile]
    ) -> None:
        rows = [
            (agent, msgspec.json.encode(profile).decode()) for agent, profile in profiles.items()
        ]
        self._database.executemany("INSERT OR REPLACE INTO profiles VALUES (?, ?)", rows)
        self._database.execute("DELETE FROM decisions WHERE round = ?", (round,))
        self._database.executemany(
            "INSERT INTO decisions VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (round, d.agent, d.submodel, d.asked, d.reason, d.step, d.seconds, d.memory)
                for d in decisions.values()
            ],
        )

    def keep(self, standings: Mapping[str, Standing]) -> None:
        """Writes how agents stand; within the caller's transaction."""
        rows = [
            (agent, json.dumps(msgspec.to_builtins(standing)))
            for agent, standing in standings.items()
        ]
        self._database.executemany("INSERT OR REPLACE INTO standings VALUES (?, ?)", rows)

    def standings(self) -> dict[str, Standing]:
        return {
            agent: msgspec.json.decode(text, type=Standing)
            for agent, text in self._database.execute("SELECT * FROM standings")
        }

    def profiles(self) -> dict[str, Profile]:
        return {
            agent: msgspec.json.decode(text, type=Profile)
            for agent, text in self._database.execute("SELECT * FROM profiles")
        }

    def decisions(self) -> dict[str, tuple[int, Decision]]:
        """The last decision of each agent, by name, with its round."""
        # SQLite gives the row of the maximum (bare columns): a long run of many agents has too many
        # rows to read them all.
        rows = self._database.execute(
            "SELECT agent, submodel, asked, reason, step, seconds, memory, MAX(round) "
            "FROM decisions GROUP BY agent"
        )
        return {
            agent: (round, Decision(agent, submodel, bool(asked), *rest))
            for agent, submodel, asked, *rest, round in rows
        }

    def history(self, agent: str) -> list[tuple[int, Decision]]:
        """Every decision of an agent, with its round, in order."""
        rows = self._database.execute(
            "SELECT round, submodel, asked, reason, step, seconds, memory FROM "
            "decisions WHERE agent = ? ORDER BY round",
            (agent,),
        )
        return [
            (round, Decision(agent, submodel, bool(asked), *rest))
            for round, submodel, asked, *rest in rows
        ]
