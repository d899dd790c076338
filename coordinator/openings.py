"""Who is asked while a round is under way: others in place of those that went, failed or are overdue; where nobody waits, whoever has delivered."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from coordinator.collection import Collection
from coordinator.evaluation import ENDLESS
from coordinator.journal import Asked
from coordinator.selection import generator
from federated.task import Task
from models.submodel import Submodel

if TYPE_CHECKING:
    from coordinator.journal import Opened
    from coordinator.rounds import Run

__all__ = ["Openings", "missing"]

log = logging.getLogger(__name__)

Make = Callable[[str, Submodel], Task]
"""The task of an agent that is given a submodel."""


class Openings:
    """Finds agents to be asked besides, each once in a round, in an order that is drawn. since: when the round began, of the coordinator's clock."""

    def __init__(self, run: Run, opened: Opened, make: Make, since: float) -> None:
        self._run, self._opened, self._make, self._since = run, opened, make, since
        able = sorted(agent for agent, verdict in opened.verdicts.items() if verdict.submodel is not None)
        self._order = [able[index] for index in generator(run.config.seed, 4, opened.round).permutation(len(able))]
        self._wave = 0

    def __call__(self, collection: Collection) -> Sequence[Task]:
        count = missing(collection, self._opened.wanted)
        return [self._ask(name) for name in self._candidates(collection)[:count]] if count > 0 else ()

    def _candidates(self, collection: Collection) -> list[str]:
        """Those that are ready, at work on nothing, were not asked in this round, and have the time."""
        fleet, entries = self._run.fleet, collection.entries.values()
        taken = {e.task.agent for e in entries if e.open or e.task.round == self._opened.round}
        left = self._opened.limit - (fleet.clock() - self._since) if self._run.patience < ENDLESS and self._run.past is None else ENDLESS
        fitting = (name for name in self._order if self._opened.verdicts[name].decision.seconds <= left)
        return [name for name in fitting if name not in taken and (agent := fleet.agents.get(name)) is not None and agent.ready]

    def _ask(self, name: str) -> Task:
        """Writes down that it is asked, before it hears of it."""
        run, verdict = self._run, self._opened.verdicts[name]
        assert verdict.submodel is not None
        task, self._wave = self._make(name, verdict.submodel), self._wave + 1
        run.assigned[name] = verdict.submodel
        if run.durable:
            asked = Asked(name, verdict.submodel, task.digest, verdict, run.standings[name], self._wave)
            run.store.journal.ask(self._opened.round, asked)
        run.store.ledger.asked(self._opened.round, name, f"asked while the round was under way: {verdict.decision.reason}")
        log.info("%s is asked in round %d, which is under way: %s", name, self._opened.round, verdict.submodel.unowned.name)
        return task


def missing(collection: Collection, wanted: int) -> int:
    """How many agents are to be asked so that `wanted` are at work; where a round waits for its agents, those that have delivered count too."""
    entries = collection.entries.values()
    if collection.flowing:
        return wanted - sum(e.counted_on for e in entries)
    return wanted - sum(e.counted_on or e.came for e in entries if not e.carried)
