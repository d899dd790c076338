"""What an update of a training must be to be folded, by the state that it was made from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from torch import Tensor

from coordinator import assignment
from coordinator.acceptance import check_training, expected
from coordinator.collection import Check, Settled
from federated.method import State
from federated.task import Update
from models.submodel import Submodel

if TYPE_CHECKING:
    from coordinator.rounds import Run

__all__ = ["checker", "later"]

LATE = 2  # earlier rounds of which it stays at hand what updates to their weights must be


def checker(run: Run, state: State) -> Check:
    """What an update must be to be folded that was made from a state."""

    @cache
    def asked_of(submodel: Submodel) -> tuple[dict[str, tuple[int, ...]], dict[str, float]]:
        plan = run.method.place(state, submodel)
        return expected(plan), norms(run.method.dispatch(state, plan))

    check_moved = run.defences.checker(run.method, state)

    def check(settled: Settled, update: Update) -> None:
        task, agent = settled.task, run.fleet.agents.get(settled.task.agent)
        examples = agent.profile.data.examples if agent is not None and agent.profile is not None else 0
        shapes, sent = asked_of(task.submodel)
        elapsed = math.inf if settled.resumed else run.fleet.clock() - settled.started
        check_training(update, shapes, sent, examples, assignment.planned(task.recipe, examples), elapsed)
        check_moved(update)

    return check


def later(run: Run) -> Check:
    """The same for updates whose rounds are over. The states that these were made from are on the disk alone, mapped, however many there are."""
    past = run.past
    assert past is not None
    made_from = lru_cache(LATE)(lambda number: checker(run, past.state(number)))
    return lambda settled, update: made_from(settled.task.round - 1)(settled, update)


def norms(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """L2 norm of each tensor."""
    return {name: float(value.double().norm()) for name, value in tensors.items()}
