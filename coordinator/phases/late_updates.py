"""Checks of late updates, which belong to tasks of earlier rounds. The next training folds them."""

from __future__ import annotations

from functools import lru_cache

from coordinator.assign.offers import count_steps
from coordinator.fleet.shipment import Shipment
from coordinator.phases.collectors import BaseCollector
from coordinator.phases.context import RunContext
from coordinator.trust.acceptance import check_training
from federated.task import Task, Update

__all__ = ["LateUpdates", "check_update", "rebuild_shipment"]

CACHED = 2  # earlier rounds with shipments in memory


class LateUpdates(BaseCollector):
    """Checks late updates between trainings. The states that they are based on stay on disk."""

    def __init__(self, run: RunContext) -> None:
        self.run = run
        self._rebuild = lru_cache(CACHED)(lambda number: rebuild_shipment(run, number))

    def check(self, task: Task, update: Update, elapsed: float) -> None:
        check_update(self.run, self._rebuild(task.round), task, update, elapsed)


def rebuild_shipment(run: RunContext, number: int) -> Shipment:
    """Return the shipment of an earlier round, in a run that takes late updates."""
    assert run.past is not None, "tasks are carried only if late updates count"
    return Shipment(run.fleet, run.past.state(number - 1), run.method)


def check_update(
    run: RunContext, shipment: Shipment, task: Task, update: Update, elapsed: float
) -> None:
    """Raise Refused for an update that must not be folded.

    shipment: the weights that the agent received.
    elapsed: see `Collector.check`.
    """
    agent, sent = run.fleet.agents.get(task.agent), shipment.parcel(task.submodel)
    examples = agent.profile.data.examples if agent is not None and agent.profile is not None else 0
    check_training(
        update, sent.shapes, sent.norms, examples, count_steps(task.recipe, examples), elapsed
    )
    run.defences.check(update, shipment.cut(task.submodel))
