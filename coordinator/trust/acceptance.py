"""What an update must be to be folded: pure functions of what was asked and what came. Each raises
Refused and says what, expected and found.

Acceptance never depends on who else came, or came first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from federated.engine.tallies import fields
from federated.errors import Refused
from federated.task import LONGEST, SHORTEST, Card, Profile, Task, Update
from federated.wire import tensors
from federated.wire.messages import Run
from models.families.catalogue import statistics
from models.slicing import Plan

__all__ = [
    "check_match",
    "check_profile",
    "check_scores",
    "check_statistics",
    "check_training",
    "expected",
]

OUTSIZE = 1e3  # times the norm that was sent (and a unit per entry, for tensors that start at zero)
EXITS = 64  # more than any network has
DRIFT = 0.02  # share, and seconds, by which two machines' clocks may differ over a round
# of a mean, deviation, variance or tensor's norm: the square root of float32's range, so that
# weighted sums are finite
VAST = 1e18
# least deviation of a channel or value (`Dataset.card` reports 1 for one without spread)
TINY = 1e-30
# entries of tallies that cannot be negative
COUNTED = ("errors", "guessed", "hits", "squares", "true")
# of a loss, a sum or a survey's number: sums over all devices, and their squares, stay finite
HUGE = 1e100
# examples, or tokens, of a tally: the sum over all devices fits the 63 bits of the database
COUNT = 2**48
EXAMPLES = 2**40  # on one device
AXES, NUMBERS = 8, 2**26  # of one raw example: axes, and numbers in all (256 MiB as float32)
OUTPUTS = 2**20  # classes, values or tokens

Shapes = Mapping[str, tuple[int, ...]]


def expected(plan: Plan) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors that a plan has a device send: its rows' local sides."""
    shapes: dict[str, tuple[int, ...]] = {}
    for row in plan.rows:
        extent = tuple(stop for _, stop in row.here)
        shapes[row.local] = (
            tuple(map(max, shapes[row.local], extent)) if row.local in shapes else extent
        )
    return shapes


def check_profile(profile: Profile, run: Run) -> None:
    """Measured by the run's present card, with plausible numbers and a survey of its size; nothing
    of it is built or imported before.

    A device with little memory times those of the card's submodels that it has room for, one at
    least.
    """
    timed = [(t.submodel, t.batch) for t in profile.timings]
    asked = [
        (submodel, run.batch) for submodel in run.calibration if (submodel, run.batch) in timed
    ]
    if (
        timed != asked
        or (run.calibration and not timed)
        or not all(SHORTEST <= t.seconds <= LONGEST for t in profile.timings)
    ):
        raise Refused(
            f"profile of {profile.agent}: expected timings of the "
            f"{len(run.calibration)} submodels on the run's card, or of those that it "
            "has room "
            f"for, found {len(timed)} others"
        )
    check_survey(profile, run)
    try:
        check_card(profile.data)
    except Refused as error:
        raise Refused(f"profile of {profile.agent}: {error}") from None


def check_card(card: Card) -> None:
    """Sizes that can be allocated, and moments that can be pooled with those of others."""
    for name, found, least in (("examples", card.examples, 1), ("held_out", card.held_out, 0)):
        if not least <= found < EXAMPLES:
            raise Refused(f"expected '{name}' from {least} to {EXAMPLES - 1}, found {found}")
    if (
        not 1 <= len(card.inputs) <= AXES
        or min(card.inputs) < 1
        or math.prod(card.inputs) > NUMBERS
    ):
        raise Refused(
            f"expected 'inputs' as a shape of 1 to {AXES} axes and at most {NUMBERS} "
            f"numbers, found {card.inputs}"
        )
    fewest = 1 if card.target == "value" else 2
    if not fewest <= card.outputs <= OUTPUTS:
        raise Refused(
            f"expected 'outputs' from {fewest} to {OUTPUTS} for target '{card.target}', "
            f"found {card.outputs}"
        )
    channels, values = (
        1 if card.target == "token" else card.inputs[0],
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
    """Finite numbers and words by name, lists of them, or such by a name in turn: it is written
    down in every round, as JSON too.
    """
    for name, value in profile.survey.items():
        inner = (
            [*value, *value.values()]
            if isinstance(value, dict)
            else value
            if isinstance(value, list)
            else [value]
        )
        if not all(isinstance(one, str | bool | None) or number(one) for one in inner):
            raise Refused(
                f"profile of {profile.agent}: expected a survey of finite numbers and "
                f"words, found something else in '{name[:100]}'"
            )
    if (size := len(msgspec.msgpack.encode(profile.survey))) > run.survey_limit:
        raise Refused(
            f"profile of {profile.agent}: expected a survey of at most "
            f"{run.survey_limit} bytes, found {size}"
        )
    if (size := len(msgspec.msgpack.encode(replace(profile, timings=())))) > run.profile_limit:
        raise Refused(
            f"profile of {profile.agent}: expected at most {run.profile_limit} bytes "
            f"beside the timings, found {size}"
        )


def check_match(task: Task, update: Update) -> None:
    """An answer to this task and no other."""
    for name in ("run", "round", "attempt", "agent", "work", "submodel", "version"):
        wanted, found = getattr(task, name), getattr(update, name)
        if wanted != found:
            raise Refused(f"update of {task.agent}: expected {name} {wanted}, found {found}")


def check_training(
    update: Update,
    shapes: Shapes,
    sent: Mapping[str, float],
    examples: int,
    steps: int,
    elapsed: float = math.inf,
) -> None:
    """New weights of these shapes, from 1 to `examples` examples and 1 to `steps` steps, not out of
    all proportion to what was sent.

    elapsed: seconds since it was asked for, which its claims of effort cannot exceed.
    sent: the L2 norm of each tensor that the device received; a bound, known before anyone answers,
    that no honest training meets.
    """
    tensors.check(update.tensors, shapes)
    if not 1 <= update.samples <= examples or not 1 <= update.steps <= steps:
        raise Refused(
            f"update of {update.agent}: expected 1 to {examples} samples and 1 to "
            f"{steps} steps, found {update.samples} and {update.steps}"
        )
    for name, value in update.tensors.items():
        bound = min(OUTSIZE * (sent.get(name, 0.0) + math.sqrt(value.size)), VAST)
        norm = float(np.linalg.norm(value.astype(np.float64)))
        if norm > bound:
            raise Refused(
                f"tensor {name}: expected a norm of at most {bound:.3g}, found {norm:.3g}"
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
    finite(update, "loss")
    check_tallies(update, {"before", "after"})
    check_effort(update, elapsed)


def check_effort(update: Update, elapsed: float) -> None:
    """What a device says of its effort, if it does: seconds within those that the coordinator saw
    pass, and its steps within them.

    An update of an earlier process or round has no such time. Then only `LONGEST` bounds what it
    says.
    """
    most = min(elapsed * (1 + DRIFT) + DRIFT, LONGEST)
    # the first step, which warms up, is not in the mean
    for note, least_of in (("seconds", 1), ("step", update.steps - 1)):
        if note in update.notes and not SHORTEST <= finite(update, note) <= most / max(1, least_of):
            raise Refused(
                f"update of {update.agent}: expected '{note}' above 0 and within the "
                f"{elapsed:.3g} s since, found {update.notes[note]}"
            )
    if "peak" in update.notes and whole(update, "peak", 0) >= 2**60:
        raise Refused(
            f"update of {update.agent}: expected a 'peak' of bytes, found {update.notes['peak']}"
        )


def check_statistics(update: Update) -> None:
    """Running means and variances of the submodel's norms, from at least one batch."""
    tensors.check(update.tensors, statistics(update.submodel))
    whole(update, "batches", 1)
    if not 1 <= update.samples < 2**40 or update.notes["batches"] > update.samples:
        raise Refused(
            f"statistics of {update.agent}: {update.notes['batches']} batches of "
            f"{update.samples} examples"
        )
    vast = [name for name, value in update.tensors.items() if np.abs(value).max(initial=0) > VAST]
    if vast:
        raise Refused(
            f"statistics of {update.agent}: expected values of at most {VAST:g}, found "
            f"larger ones in {vast[0]}"
        )
    negative = [
        name
        for name, value in update.tensors.items()
        if name.endswith("running_var") and (value < 0).any()
    ]
    if negative:
        raise Refused(
            f"statistics of {update.agent}: expected variances of at least 0, found "
            f"negative ones in {negative[0]}"
        )


def check_scores(update: Update) -> None:
    """Tallies of the examples held out; no tensors."""
    tensors.check(update.tensors, {})
    exits = (f"exit{i}" for i in range(EXITS))
    tallies = check_tallies(update, {"all", "labels", "ensemble", *exits})
    if "all" not in tallies or not 1 <= update.samples < 2**40:
        raise Refused(
            f"scores of {update.agent}: expected a tally 'all' of at least 1 example, "
            f"found {sorted(tallies)} of {update.samples}"
        )


def check_tallies(update: Update, views: Collection[str]) -> Mapping[str, Any]:
    """Sums of the right names and lengths, finite, of at least one example, and with no more right
    answers than examples.
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
            isinstance(values, list) and all(map(number, values)) for values in sums.values()
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
    return tallies


def number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and abs(value) <= HUGE


def finite(update: Update, note: str) -> float:
    value = update.notes.get(note)
    if not number(value):
        raise Refused(
            f"{update.work} of {update.agent}: expected '{note}' to be a finite number, "
            f"found {value!r}"
        )
    return float(value)  # type: ignore[arg-type]  # a number, as was just seen


def whole(update: Update, note: str, least: int) -> int:
    value = update.notes.get(note)
    if type(value) is not int or value < least:
        raise Refused(
            f"{update.work} of {update.agent}: expected '{note}' to be a whole number "
            f"of at least {least}, found {value!r}"
        )
    return value
