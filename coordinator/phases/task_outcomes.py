"""Describe how each training task ended, for the run's database, and update the track record of its
agent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from coordinator.assign.affordable_submodels import Codecs, count_traffic, find_timings
from coordinator.assign.agent_track_record import (
    Observed,
    Standing,
    learn,
    record_failure,
    record_in_time,
    record_late,
    record_timing,
)
from coordinator.assign.decisions import Verdict
from coordinator.observe.round_records import Entry
from coordinator.round.task_state import TaskState
from federated.task import Profile, Task, Timing, Update
from federated.training.time_prediction import step_seconds
from federated.wire.codecs.catalogue import find_loaded_codec
from models.cost import cost

__all__ = ["describe_fold", "describe_miss", "learn_from_miss", "learn_from_update"]


def describe_fold(state: TaskState, update: Update, position: int) -> Entry:
    """Return the entry of a folded update. position: number of updates folded before it in the
    round.
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
    """Return the entry of a task without an update. round: number of the round being recorded."""
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
    """Return the standing after a folded update. `coordinator.trust.message_checks` has checked the
    effort that the device reports.

    The duration of a task from an earlier process is unknown; its update counts as in time.
    """
    submodel, batch = update.submodel.unowned, state.task.recipe.batch
    if not state.resumed:
        what, timings = cost(submodel, batch), find_timings(profile, standing)
        seen = Observed(
            step_seconds(timings, submodel, batch),
            what.memory,
            state.seconds,
            count_traffic(what, find_codecs(state.task)),
            update.steps,
            read_number(update.notes, "step"),
            read_number(update.notes, "seconds"),
            int(read_number(update.notes, "peak")),
        )
        standing = learn(standing, seen)
        if not profile.timings and seen.step:
            standing = record_timing(standing, Timing(submodel, batch, seen.step))
    return record_in_time(standing, list_smaller(verdict, submodel.name))


def find_codecs(task: Task) -> Codecs:
    """Return the codecs of a task's transfers."""
    return Codecs(find_loaded_codec(task.weights_codec), find_loaded_codec(task.codec))


def list_smaller(verdict: Verdict, name: str) -> list[str]:
    """Return the submodels of the menu that take no more time and memory than this one, including
    itself.
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
    """Return the standing after a task without an update.

    elapsed: seconds from the task to the end of the training; 0 if unknown. A round that closed
        earlier than predicted does not count against the agent, unless its lease had expired.
    """
    task, predicted = state.task, verdict.decision.seconds
    submodel = task.submodel.unowned.name
    if outcome.startswith("failed"):
        return record_failure(standing, submodel, task.round, outcome.removeprefix("failed: "))
    if outcome == "late" and (state.late or elapsed >= predicted):
        return record_late(standing, submodel, task.round, elapsed, predicted)
    return standing


def read_number(notes: Mapping[str, Any], name: str) -> float:
    """Return a number from an update's notes; 0 if it is missing."""
    return float(notes.get(name, 0.0))
