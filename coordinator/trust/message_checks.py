"""Check messages of agents with pure functions that compare what was received with what was
requested. Each raises Refused with the expected and the found value.

Acceptance never depends on which other agents answered, or in which order.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from coordinator.trust.tensor_checks import VAST, check_variances
from federated.errors import Refused
from federated.task import LONGEST, SHORTEST, Card, Profile, Task, Update
from federated.trainer_capabilities import GRAPHS
from federated.training.score_sums import fields
from federated.wire import tensors
from federated.wire.messages import Run
from models.slicing import Plan
from models.submodel import MAX_AXES, MAX_OUTPUTS
from models.submodel_building import statistics

__all__ = [
    "EXAMPLES",
    "HUGE",
    "check_card",
    "check_match",
    "check_profile",
    "check_scores",
    "check_statistics",
    "check_training",
    "compute_shapes",
]

EXITS = 64  # more than any network has
DRIFT = 0.02  # share, and seconds, by which two machines' clocks may differ over a round
# smallest deviation of a channel or value (`Dataset.card` reports 1 for one without spread)
TINY = 1e-30
# entries of tallies that cannot be negative
COUNTED = ("errors", "guessed", "hits", "squares", "true")
# largest loss, sum or number in a survey: sums over all devices, and their squares, stay finite
HUGE = 1e100
# examples, or tokens, of a tally: the sum over all devices fits the 63 bits of the database
COUNT = 2**48
EXAMPLES = 2**40  # on one device
NUMBERS = 2**26  # of one raw example (256 MiB as float32)


def compute_shapes(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the tensors that a device with this plan sends back."""
    shapes: dict[str, tuple[int, ...]] = {}
    for row in plan.rows:
        extent = tuple(stop for _, stop in row.here)
        shapes[row.local] = (
            tuple(map(max, shapes[row.local], extent)) if row.local in shapes else extent
        )
    return shapes


def check_profile(profile: Profile, run: Run) -> None:
    """Check that a profile was measured with the run's current card, and has plausible numbers and
    a survey within its limits. Nothing that it names is built or imported before.

    A device with little memory times only those submodels of the card that fit, at least one. One
    that trains with exported graphs times none.
    """
    timed = [(t.submodel, t.batch) for t in profile.timings]
    asked = [
        (submodel, run.batch) for submodel in run.calibration if (submodel, run.batch) in timed
    ]
    if (
        timed != asked
        or (run.calibration and not timed and GRAPHS not in profile.capabilities)
        or not all(SHORTEST <= t.seconds <= LONGEST for t in profile.timings)
    ):
        raise Refused(
            f"profile of {profile.agent}: expected timings of the {len(run.calibration)} "
            "submodels on the run's card, or of those that fit its memory, "
            f"found {len(timed)} others"
        )
    check_survey(profile, run)
    try:
        check_card(profile.data)
    except Refused as error:
        raise Refused(f"profile of {profile.agent}: {error}") from None


def check_card(card: Card) -> None:
    """Check that the sizes can be allocated, and that the moments can be pooled with others'."""
    for name, found, least in (("examples", card.examples, 1), ("held_out", card.held_out, 0)):
        if not least <= found < EXAMPLES:
            raise Refused(f"expected '{name}' from {least} to {EXAMPLES - 1}, found {found}")
    if (
        not 1 <= len(card.inputs) <= MAX_AXES
        or min(card.inputs) < 1
        or math.prod(card.inputs) > NUMBERS
    ):
        raise Refused(
            f"expected 'inputs' as a shape of 1 to {MAX_AXES} axes and at most {NUMBERS} "
            f"numbers, found {card.inputs}"
        )
    fewest = 1 if card.target == "value" else 2
    if not fewest <= card.outputs <= MAX_OUTPUTS:
        raise Refused(
            f"expected 'outputs' from {fewest} to {MAX_OUTPUTS} for target '{card.target}', "
            f"found {card.outputs}"
        )
    if card.vocabulary > MAX_OUTPUTS:
        raise Refused(f"expected 'vocabulary' up to {MAX_OUTPUTS}, found {card.vocabulary}")
    channels, values = (
        1 if card.target == "token" or card.vocabulary else card.inputs[0],
        card.outputs if card.target == "value" else 0,
    )
    for name, moments, wanted in (
        ("mean", card.mean, channels),
        ("std", card.std, channels),
        ("shift", card.shift, values),
        ("scale", card.scale, values),
    ):
        low = TINY if name in ("std", "scale") else -VAST
        if len(moments) != wanted or not all(low <= value <= VAST for value in moments):
            raise Refused(
                f"expected '{name}' as {wanted} numbers from {low:g} to {VAST:g}, found "
                f"{len(moments)}: {moments}"
            )


def check_survey(profile: Profile, run: Run) -> None:
    """Check that a survey maps names to finite numbers and strings, lists of them, or such maps:
    every round stores it, as JSON too.
    """
    for name, value in profile.survey.items():
        inner = (
            [*value, *value.values()]
            if isinstance(value, dict)
            else value
            if isinstance(value, list)
            else [value]
        )
        if not all(isinstance(one, str | bool | None) or is_number(one) for one in inner):
            raise Refused(
                f"profile of {profile.agent}: expected a survey of finite numbers and "
                f"strings, found something else in '{name[:100]}'"
            )
    if (size := len(msgspec.msgpack.encode(profile.survey))) > run.survey_limit:
        raise Refused(
            f"profile of {profile.agent}: expected a survey of at most "
            f"{run.survey_limit} bytes, found {size}"
        )
    if (size := len(msgspec.msgpack.encode(replace(profile, timings=())))) > run.profile_limit:
        raise Refused(
            f"profile of {profile.agent}: expected at most {run.profile_limit} bytes "
            f"without the timings, found {size}"
        )


def check_match(task: Task, update: Update) -> None:
    """Check that an update answers this task and no other."""
    for name in ("run", "round", "attempt", "agent", "work", "submodel", "version"):
        wanted, found = getattr(task, name), getattr(update, name)
        if wanted != found:
            raise Refused(f"update of {task.agent}: expected {name} {wanted}, found {found}")


def check_training(update: Update, examples: int, steps: int, elapsed: float = math.inf) -> None:
    """Check what an update reports beside its tensors: from 1 to `examples` examples and 1 to
    `steps` steps, labels, loss, scores and effort.

    elapsed: seconds since the task was sent, which bound the reported effort.
    """
    if not 1 <= update.samples <= examples or not 1 <= update.steps <= steps:
        raise Refused(
            f"update of {update.agent}: expected 1 to {examples} samples and 1 to "
            f"{steps} steps, found {update.samples} and {update.steps}"
        )
    labels, classes = update.notes.get("labels", []), update.submodel.network.outputs
    if (
        not isinstance(labels, list)
        or not all(type(label) is int and 0 <= label < classes for label in labels)
        or len(set(labels)) < len(labels)
    ):
        raise Refused(
            f"update of {update.agent}: expected labels from 0 to {classes - 1}, each "
            f"once, found {str(labels)[:100]}"
        )
    read_finite(update, "loss")
    check_tallies(update, {"before", "after"})
    check_effort(update, elapsed)


def check_effort(update: Update, elapsed: float) -> None:
    """Check the effort that a device reports, if any: its seconds, and its steps, must fit into the
    time that the coordinator measured.

    That time is unknown for an update of an earlier process or round; then only `LONGEST` bounds
    the report.
    """
    most = min(elapsed * (1 + DRIFT) + DRIFT, LONGEST)
    # the mean time of a step excludes the first one, which warms up
    for note, least_of in (("seconds", 1), ("step", update.steps - 1)):
        if note in update.notes and not (
            SHORTEST <= read_finite(update, note) <= most / max(1, least_of)
        ):
            raise Refused(
                f"update of {update.agent}: expected '{note}' above 0 and within the "
                f"{elapsed:.3g} s since the task was sent, found {update.notes[note]}"
            )
    if "peak" in update.notes and read_whole(update, "peak", 0) >= 2**60:
        raise Refused(
            f"update of {update.agent}: expected 'peak' in bytes, found {update.notes['peak']}"
        )


def check_statistics(update: Update) -> None:
    """Check the running means and variances of the submodel's norms, from at least one batch."""
    tensors.check(update.tensors, statistics(update.submodel))
    read_whole(update, "batches", 1)
    if not 1 <= update.samples < 2**40 or update.notes["batches"] > update.samples:
        raise Refused(
            f"statistics of {update.agent}: found {update.notes['batches']} batches of "
            f"{update.samples} examples"
        )
    vast = [name for name, value in update.tensors.items() if np.abs(value).max(initial=0) > VAST]
    if vast:
        raise Refused(
            f"statistics of {update.agent}: expected values of at most {VAST:g}, found "
            f"larger ones in {vast[0]}"
        )
    check_variances(update)


def check_scores(update: Update) -> None:
    """Check the tallies of the held-out examples. Scores carry no tensors."""
    tensors.check(update.tensors, {})
    exits = (f"exit{i}" for i in range(EXITS))
    tallies = check_tallies(update, {"all", "labels", "ensemble", *exits})
    if "all" not in tallies or not 1 <= update.samples < 2**40:
        raise Refused(
            f"scores of {update.agent}: expected a tally 'all' of at least 1 example, "
            f"found {sorted(tallies)} of {update.samples}"
        )


def check_tallies(update: Update, views: Collection[str]) -> Mapping[str, Any]:
    """Return the tallies after checking that their names and lengths are right, that all sums are
    finite, and that they count at least one example and no more right answers than examples.
    """
    tallies = update.notes.get("tallies", {})
    if not isinstance(tallies, dict) or not tallies.keys() <= set(views):
        raise Refused(
            f"{update.work} of {update.agent}: expected tallies named among "
            f"{', '.join(sorted(views))}, found {str(tallies)[:100]}"
        )
    known = [fields(update.submodel.network, per_class=per_class) for per_class in (False, True)]
    for view, sums in tallies.items():
        if not isinstance(sums, dict) or not all(
            isinstance(values, list) and all(map(is_number, values)) for values in sums.values()
        ):
            raise Refused(
                f"{update.work} of {update.agent}: expected lists of finite numbers in "
                f"tally '{view}', found {str(sums)[:100]}"
            )
        if {name: len(values) for name, values in sums.items()} not in known:
            raise Refused(
                f"{update.work} of {update.agent}: expected tally '{view}' of "
                f"{', '.join(known[-1])}, found {', '.join(map(str, sums))}"
            )
        if (
            not 1 <= sums["count"][0] < COUNT
            or not 0 <= sums.get("right", [0])[0] <= sums["count"][0]
        ):
            raise Refused(
                f"{update.work} of {update.agent}: tally '{view}' counts "
                f"{sums.get('right', [0])[0]} right of {sums['count'][0]}"
            )
        negative = [name for name in sums if name in COUNTED and min(sums[name]) < 0]
        if negative or sum(sums.get("true", [1])) <= 0:
            found = f"'{negative[0]}' below 0" if negative else "no example of any class"
            raise Refused(
                f"{update.work} of {update.agent}: expected tally '{view}' to count "
                f"examples, found {found}"
            )
        counts = (sums.get(name, []) for name in ("hits", "guessed", "true"))
        if any(hits > min(guessed, true) for hits, guessed, true in zip(*counts, strict=True)):
            raise Refused(
                f"{update.work} of {update.agent}: expected tally '{view}' to have no more right "
                "answers of a class than guesses and examples of it, found more"
            )
    return tallies


def is_number(value: object) -> bool:
    """Return True if a value is a number, not a bool, and not too large."""
    return not isinstance(value, bool) and isinstance(value, int | float) and abs(value) <= HUGE


def read_finite(update: Update, note: str) -> float:
    """Return a note of an update that must be a finite number. Raises Refused."""
    value = update.notes.get(note)
    if not is_number(value):
        raise Refused(
            f"{update.work} of {update.agent}: expected '{note}' to be a finite number, "
            f"found {value!r}"
        )
    return float(value)  # type: ignore[arg-type]  # checked above


def read_whole(update: Update, note: str, least: int) -> int:
    """Return a note of an update that must be a whole number of at least `least`. Raises
    Refused.
    """
    value = update.notes.get(note)
    if type(value) is not int or value < least:
        raise Refused(
            f"{update.work} of {update.agent}: expected '{note}' to be a whole number "
            f"of at least {least}, found {value!r}"
        )
    return value
