"""Late updates, from tasks of earlier rounds. They are checked when they arrive, and the next
training folds them.
"""

from __future__ import annotations

from functools import lru_cache

from coordinator.assign.offers import planned as count_steps
from coordinator.fleet.shipment import Shipment
from coordinator.phases.context import RunContext
from coordinator.round.collector import Snapshot
from coordinator.round.task_state import Planned, TaskState
from coordinator.trust.acceptance import check_training
from federated.task import Task, Update

__all__ = ["LateUpdates", "check_update", "ship_again"]

AT_HAND = 2  # earlier rounds whose shipments stay in memory


class LateUpdates:
    """Checks late updates between trainings (see `Collector`). The states that they were made from
    stay on the disk, however many there are.
    """

    def __init__(self, run: RunContext) -> None:
        self.run = run
        self._ship_again = lru_cache(AT_HAND)(lambda number: ship_again(run, number))

    def limit(self, task: Task) -> int:
        return Shipment.limit(task)

    def check(self, task: Task, update: Update, elapsed: float) -> None:
        check_update(self.run, self._ship_again(task.round), task, update, elapsed)

    def fold(self, state: TaskState, update: Update) -> None:
        raise AssertionError("late updates are folded in the next training")

    def prepare(self, agent: str) -> Planned:
        raise AssertionError("nobody is asked between trainings")

    def snapshot(self) -> Snapshot | None:
        return None


def ship_again(run: RunContext, number: int) -> Shipment:
    """The shipment of an earlier round, of which late updates were made."""
    assert run.past is not None, "only where late updates count are tasks carried"
    return Shipment(run.fleet, run.past.state(number - 1), run.method)


def check_update(
    run: RunContext, shipment: Shipment, task: Task, update: Update, elapsed: float
) -> None:
    """Raise Refused for an update that must not be folded.

    shipment: what the agent was sent. elapsed: see `Collector.check`.
    """
    agent, sent = run.fleet.agents.get(task.agent), shipment.parcel(task.submodel)
    examples = agent.profile.data.examples if agent is not None and agent.profile is not None else 0
    check_training(
        update, sent.shapes, sent.norms, examples, count_steps(task.recipe, examples), elapsed
    )
    run.defences.check(update, shipment.cut(task.submodel))
