"""Read the database of a run: its settings, finished rounds, updates and scores. Imports no
PyTorch, because commands that show a run read no checkpoint.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec

from coordinator.observe.round_records import Entry, Score
from coordinator.store.agent_tables import AgentTables
from coordinator.store.database import Facts, join_settings, open_database
from coordinator.store.run_folders import DATABASE, make_missing_error
from federated.errors import StoreError
from models.submodel import Network, Submodel

__all__ = ["RunRecords", "open_records"]


class RunRecords:
    """The open database of a run, for reading."""

    def __init__(
        self,
        folder: Path,
        database: sqlite3.Connection,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """check: see `AgentTables`."""
        self.folder, self._database = folder, database
        self.agents = AgentTables(database, check)

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def read_facts(self) -> Facts:
        """Read the description of the run. Raises StoreError if another version wrote it."""
        rows = {
            key: json.loads(value)
            for key, value in self._database.execute("SELECT key, value FROM facts")
        }
        try:
            return Facts(
                join_settings(rows.get("config", {}), rows.get("defaults", {})),
                msgspec.convert(rows.get("network"), Network | None),
                msgspec.convert(rows.get("menu", []), tuple[Submodel, ...]),
                msgspec.convert(rows.get("reach", {}), dict[str, tuple[str, ...]]),
            )
        except msgspec.ValidationError as error:
            raise StoreError(
                f"run '{self.folder.name}' was written by another version of espalier, which "
                f"describes networks differently ({error}): read it with that version"
            ) from error

    @property
    def rounds_done(self) -> int:
        """The number of the last finished round."""
        return int(
            self._database.execute("SELECT COALESCE(MAX(round), 0) FROM rounds").fetchone()[0]
        )

    def read_scores(self, number: int) -> list[Score]:
        """Read the scores of a round."""
        rows = self._database.execute(
            "SELECT submodel, view, accuracy, loss, examples, agent, metrics FROM scores "
            "WHERE round = ?",
            (number,),
        )
        return [
            Score(
                submodel,
                view,
                accuracy,
                math.nan if loss is None else loss,
                examples,
                agent,
                json.loads(metrics),
            )
            for submodel, view, accuracy, loss, examples, agent, metrics in rows
        ]

    def read_all_scores(self) -> list[tuple[int, Score]]:
        """Read every score with its round, in the order of rounds."""
        numbers = [
            number
            for (number,) in self._database.execute(
                "SELECT DISTINCT round FROM scores ORDER BY round"
            )
        ]
        return [(number, score) for number in numbers for score in self.read_scores(number)]

    def read_last_submodels(self) -> dict[str, str]:
        """Read the submodel of each agent's last finished task, by agent."""
        # SQLite returns the row of the maximum (bare columns).
        return {
            agent: submodel
            for agent, submodel, _ in self._database.execute(
                "SELECT agent, submodel, MAX(task) FROM updates GROUP BY agent"
            )
        }

    def count_updates(self) -> list[tuple[int, str, int]] | None:
        """Count the folded updates of each submodel in each round, as (round, name in the menu,
        count) in the order of rounds.

        Return None if finished rounds left no record of any update, folded or not, so that the
        counts are unknown.
        """
        counting = (
            "SELECT round, submodel, SUM(outcome = 'folded') FROM updates GROUP BY round, "
            "submodel ORDER BY round"
        )
        found = self._database.execute(counting).fetchall()
        return found if found or not self.rounds_done else None

    def read_last_folded(self) -> dict[str, int]:
        """Read the last round from which each agent's update was folded."""
        return dict(
            self._database.execute(
                "SELECT agent, MAX(task) FROM updates WHERE outcome = 'folded' GROUP BY agent"
            )
        )

    def read_trained_submodels(self) -> dict[str, set[str]]:
        """Read the names of all submodels of which an update was folded, by agent."""
        found: dict[str, set[str]] = {}
        for agent, submodel in self._database.execute(
            "SELECT DISTINCT agent, submodel FROM updates WHERE outcome = 'folded'"
        ):
            found.setdefault(agent, set()).add(submodel)
        return found

    def count_outcomes(self) -> list[tuple[str, int]]:
        """Count the tasks of all rounds by their outcome, the most frequent one first."""
        return self._database.execute(
            "SELECT outcome, COUNT(*) FROM updates GROUP BY outcome ORDER BY COUNT(*) DESC, outcome"
        ).fetchall()

    def count_tasks(self, after: int, until: int) -> dict[str, tuple[int, int]]:
        """Count each agent's folded updates, and its tasks, of the rounds from `after` + 1."""
        counting = (
            "SELECT agent, SUM(outcome = 'folded'), COUNT(*) FROM updates "
            "WHERE task > ? AND task <= ? GROUP BY agent"
        )
        rows = self._database.execute(counting, (after, until))
        return {agent: (folded, tasks) for agent, folded, tasks in rows}

    def count_folded(self) -> list[tuple[str, str, int, int]]:
        """Count the folded updates of each agent and submodel, as (agent, name in the menu, count,
        last round).
        """
        return self._database.execute(
            "SELECT agent, submodel, COUNT(*), MAX(round) FROM updates WHERE outcome = 'folded' "
            "GROUP BY agent, submodel ORDER BY agent, submodel"
        ).fetchall()

    def read_last_entries(self) -> dict[str, tuple[int, Entry]]:
        """Read the outcome of each agent's last task, with its round."""
        last = self._database.execute(
            "SELECT agent, MAX(round) FROM updates GROUP BY agent"
        ).fetchall()
        entries = {
            number: {entry.agent: entry for entry in self.read_entries(number)}
            for number in {number for _, number in last}
        }
        return {agent: (number, entries[number][agent]) for agent, number in last}

    def read_history(self) -> list[tuple[int, float, int, int]]:
        """Read each finished round: its number, seconds, bytes up and bytes down."""
        return list(
            self._database.execute(
                "SELECT round, seconds, bytes_up, bytes_down FROM rounds ORDER BY round"
            )
        )

    def read_entries(self, number: int) -> list[Entry]:
        """Read the outcome of each task in a round, by agent."""
        columns = (
            "agent, submodel, outcome, samples, steps, loss, seconds, step, peak, position, "
            "digest, IIF(task = round, 0, task)"
        )
        query = f"SELECT {columns} FROM updates WHERE round = ? ORDER BY agent, task"  # noqa: S608
        rows = self._database.execute(query, (number,))
        return [
            Entry(
                agent,
                submodel,
                outcome,
                samples,
                steps,
                math.nan if loss is None else loss,
                *effort,
            )
            for agent, submodel, outcome, samples, steps, loss, *effort in rows
        ]


def open_records(root: Path, name: str) -> RunRecords:
    """Open a run to read its records, also while a coordinator works on it. Raises StoreError if it
    is missing or invalid.
    """
    folder = root / name
    if not (folder / DATABASE).exists():
        raise make_missing_error(folder)
    return RunRecords(folder, open_database(folder, read_only=True))
