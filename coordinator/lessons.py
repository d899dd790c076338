"""What a round teaches of each agent that was asked: its standing after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coordinator.collection import Settled
from coordinator.decisions import Verdict
from coordinator.standing import Observed, Standing, failed, in_time, late, learned
from federated.prediction import step_seconds
from federated.task import Profile, Update
from models.cost import cost

__all__ = ["missed", "number", "trained"]


def trained(standing: Standing, verdict: Verdict, profile: Profile, settled: Settled, update: Update) -> Standing:
    """After an update that was taken: what the device says of its effort was checked with it (see `acceptance`)."""
    submodel, batch = update.submodel.unowned, settled.task.recipe.batch
    what = cost(submodel, batch)
    seen = Observed(
        step_seconds(profile.timings, submodel, batch),
        what.memory,
        settled.seconds,
        2 * what.bytes,
        update.steps,
        number(update.notes, "step"),
        number(update.notes, "seconds"),
        int(number(update.notes, "peak")),
    )
    return in_time(learned(standing, seen), no_larger(verdict, submodel.name))


def no_larger(verdict: Verdict, name: str) -> list[str]:
    """The submodels of the menu that take no more time and memory than this one, itself among them."""
    done = next((o for o in verdict.offers if o.submodel.name == name), None)
    if done is None:
        return [name]
    return [o.submodel.name for o in verdict.offers if o.seconds <= done.seconds and o.memory <= done.memory]


def missed(standing: Standing, verdict: Verdict, settled: Settled, elapsed: float) -> Standing:
    """After a task without an update. elapsed: seconds that the round gave it; who was not due yet when enough others had come missed nothing."""
    submodel, predicted = settled.task.submodel.unowned.name, verdict.decision.seconds
    if settled.outcome.startswith("failed"):
        return failed(standing, submodel, settled.task.round, settled.outcome.removeprefix("failed: "))
    if settled.outcome == "late" and elapsed >= predicted:
        return late(standing, submodel, settled.task.round, elapsed, predicted)
    return standing


def number(notes: Mapping[str, Any], name: str) -> float:
    """A note that is a number; 0 where there is none."""
    return float(notes.get(name, 0.0))
