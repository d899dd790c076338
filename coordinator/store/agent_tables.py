"""Read and write what a run's database stores about agents: their profiles, the decisions of each
round, and their track records.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from operator import attrgetter

import msgspec

from coordinator.assign.agent_track_record import Standing
from coordinator.assign.decision_record import Decision
from coordinator.database_row_digests import seal
from federated.errors import StoreError, explain_os_errors
from federated.task import Profile

__all__ = ["SCHEMA", "AgentTables"]

SCHEMA = """
CREATE TABLE profiles (agent TEXT PRIMARY KEY, profile TEXT NOT NULL);
CREATE TABLE standings (agent TEXT PRIMARY KEY, standing TEXT NOT NULL);
CREATE TABLE decisions (round INTEGER, agent TEXT, submodel TEXT NOT NULL, asked INTEGER NOT NULL,
                        reason TEXT NOT NULL, step REAL NOT NULL,
                        seconds REAL NOT NULL, memory INTEGER NOT NULL,
                        PRIMARY KEY (round, agent));
"""
DECIDED = attrgetter(*(field.name for field in fields(Decision)))  # `astuple` is slow


class AgentTables:
    """Access to these tables of an open database. Methods that begin a transaction raise StoreError
    if it fails.
    """

    def __init__(
        self, database: sqlite3.Connection, check: Callable[[], None] = lambda: None
    ) -> None:
        """check: called before each transaction; raises StoreError if writing is not allowed."""
        self._database, self._check = database, check
        self._profiles: dict[str, Profile] = {}  # as last written: most never change

    def write_decisions(
        self, round: int, decisions: Mapping[str, Decision], profiles: Mapping[str, Profile]
    ) -> None:
        """Write the decisions of a round that begins, replacing those of an earlier attempt, and
        the profiles that are new.
        """
        new = {
            agent: profile
            for agent, profile in profiles.items()
            if self._profiles.get(agent) is not profile
        }
        rows = [(agent, msgspec.json.encode(profile).decode()) for agent, profile in new.items()]
        with self._writing(round):
            self._database.executemany("INSERT OR REPLACE INTO profiles VALUES (?, ?)", rows)
            self._database.execute("DELETE FROM decisions WHERE round = ?", (round,))
            self._database.executemany(
                "INSERT INTO decisions VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [(round, *DECIDED(decision)) for decision in decisions.values()],
            )
            seal(self._database, "decisions", round)
            if new:
                seal(self._database, "profiles")
        self._profiles |= new

    def mark_asked(self, round: int, agent: str, reason: str) -> None:
        """Record that an agent was asked after the round's decisions were written."""
        with self._writing(round):
            self._database.execute(
                "UPDATE decisions SET asked = 1, reason = ? WHERE round = ? AND agent = ?",
                (reason, round, agent),
            )
            seal(self._database, "decisions", round)

    @contextmanager
    def _writing(self, round: int) -> Iterator[None]:
        self._check()
        problem = f"cannot write the decisions of round {round}"
        with explain_os_errors(StoreError, problem, sqlite3.Error), self._database:
            yield

    def write_standings(self, standings: Mapping[str, Standing]) -> None:
        """Write the standings of agents; within the caller's transaction."""
        rows = [
            (agent, json.dumps(msgspec.to_builtins(standing)))
            for agent, standing in standings.items()
        ]
        self._database.executemany("INSERT OR REPLACE INTO standings VALUES (?, ?)", rows)
        seal(self._database, "standings")

    def read_standings(self) -> dict[str, Standing]:
        return {
            agent: msgspec.json.decode(text, type=Standing)
            for agent, text in self._database.execute("SELECT * FROM standings")
        }

    def read_profiles(self) -> dict[str, Profile]:
        return {
            agent: msgspec.json.decode(text, type=Profile)
            for agent, text in self._database.execute("SELECT * FROM profiles")
        }

    def read_last_decisions(self) -> dict[str, tuple[int, Decision]]:
        """Read the last decision about each agent, by name, with its round."""
        # SQLite returns the row of the maximum (bare columns). A long run with many agents has too
        # many rows to read them all.
        rows = self._database.execute(
            "SELECT agent, submodel, asked, reason, step, seconds, memory, MAX(round) "
            "FROM decisions GROUP BY agent"
        )
        return {
            agent: (round, Decision(agent, submodel, bool(asked), *rest))
            for agent, submodel, asked, *rest, round in rows
        }

    def read_decisions(self, agent: str) -> list[tuple[int, Decision]]:
        """Read every decision about an agent, with its round, in order."""
        rows = self._database.execute(
            "SELECT round, submodel, asked, reason, step, seconds, memory FROM "
            "decisions WHERE agent = ? ORDER BY round",
            (agent,),
        )
        return [
            (round, Decision(agent, submodel, bool(asked), *rest))
            for round, submodel, asked, *rest in rows
        ]
