"""Read which tasks a trial's coordinator recorded, to tell lost updates from those that no device
could send.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from coordinator.observe.round_records import Entry
from coordinator.store.run_store import Store

__all__ = ["describe_unfolded", "find_refused", "read_entries", "read_planned"]


def read_entries(run: Path, rounds: int) -> list[tuple[int, Entry]]:
    """Return the recorded tasks of the first rounds, each with its round."""
    with closing(Store.open(run.parent, run.name, read_only=True)) as store:
        return [
            (number, one) for number in range(1, rounds + 1) for one in store.read_entries(number)
        ]


def read_planned(run: Path, agents: Iterable[str]) -> set[tuple[int, str]]:
    """Return the tasks that these agents were to get: round and agent."""
    with closing(Store.open(run.parent, run.name, read_only=True)) as store:
        return {
            (number, agent)
            for agent in agents
            for number, decision in store.agents.read_decisions(agent)
            if decision.asked
        }


def find_refused(entries: Iterable[tuple[int, Entry]]) -> set[tuple[int, str]]:
    """Return tasks whose devices reported that their disk was full, so that no update could be
    lost.
    """
    full = os.strerror(errno.ENOSPC)
    return {
        (number, one.agent)
        for number, one in entries
        if one.outcome.startswith("paused:") and full in one.outcome
    }


def describe_unfolded(entries: Iterable[tuple[int, Entry]]) -> str:
    """Return the outcomes of updates that were not folded."""
    return "; ".join(
        f"{number} {one.agent} {one.outcome}" for number, one in entries if one.outcome != "folded"
    )
