"""What became of a training's tasks: the entry that is stored of each, and what it shows of its
agent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from coordinator.assign.decisions import Verdict
from coordinator.assign.offers import traffic
from coordinator.assign.standing import Observed, Standing, failed, in_time, late, learned
from coordinator.observe.records import Entry
from coordinator.round.task_state import TaskState
from federated.device.prediction import step_seconds
from federated.task import Profile, Update
from federated.wire.codecs.catalogue import codec
from models.cost import cost

__all__ = ["describe_fold", "describe_miss", "learn_from_miss", "learn_from_update"]


def describe_fold(state: TaskState, update: Update, position: int) -> Entry:
    """The entry of an update that was folded. position: how many updates of the round were folded
    before it.
    """
    return Entry(
        update.agent,
        update.submodel.unowned.name,
        "folded",
        update.samples,
        update.steps,
        float(update.notes.get("loss", math.nan)),
        state.seconds,
        read_number(update.notes, "step"),
        int(read_number(update.notes, "peak")),
        position,
        state.digest,
        update.round if state.carried else 0,
    )


def describe_miss(state: TaskState, round: int) -> Entry:
    """The entry of a task without an update. round: the one whose record it belongs to."""
    task = state.task
    return Entry(
        task.agent,
        task.submodel.unowned.name,
        state.outcome,
        task=task.round if task.round != round else 0,
    )


def learn_from_update(
    standing: Standing, verdict: Verdict, profile: Profile, state: TaskState, update: Update
) -> Standing:
    """The standing after an update that was folded. `coordinator.trust.acceptance` has checked what
    the device says of its effort.

    Where an earlier process sent the task, nobody knows how long it took; the update counts as in
    time all the same.
    """
    submodel, batch = update.submodel.unowned, state.task.recipe.batch
    if not state.resumed:
        what = cost(submodel, batch)
        seen = Observed(
            step_seconds(profile.timings, submodel, batch),
            what.memory,
            state.seconds,
            traffic(what, codec(state.task.codec)),
            update.steps,
            read_number(update.notes, "step"),
            read_number(update.notes, "seconds"),
            int(read_number(update.notes, "peak")),
        )
        standing = learned(standing, seen)
    return in_time(standing, list_smaller(verdict, submodel.name))


def list_smaller(verdict: Verdict, name: str) -> list[str]:
    """The submodels of the menu that take no more time and memory than this one, which is among
    them.
    """
    done = next((o for o in verdict.offers if o.submodel.name == name), None)
    if done is None:
        return [name]
    return [
        o.submodel.name
        for o in verdict.offers
        if o.seconds <= done.seconds and o.memory <= done.memory
    ]


def learn_from_miss(
    standing: Standing, verdict: Verdict, state: TaskState, outcome: str, elapsed: float
) -> Standing:
    """The standing after a task without an update.

    elapsed: seconds that the round gave the task; 0 where nobody knows. An agent whose update was
    not due yet when the round closed missed nothing, unless its lease had expired.
    """
    task, predicted = state.task, verdict.decision.seconds
    submodel = task.submodel.unowned.name
    if outcome.startswith("failed"):
        return failed(standing, submodel, task.round, outcome.removeprefix("failed: "))
    if outcome == "late" and (state.late or elapsed >= predicted):
        return late(standing, submodel, task.round, elapsed, predicted)
    return standing


def read_number(notes: Mapping[str, Any], name: str) -> float:
    """A note that is a number; 0 where there is none."""
    return float(notes.get(name, 0.0))
