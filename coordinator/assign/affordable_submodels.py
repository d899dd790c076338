"""Predict the time and memory that each submodel costs an agent, and list the submodels that it can
afford.

Predictions start from the agent's measurements and are corrected by its earlier rounds. An agent
that measured nothing, since it trains with exported graphs, begins with the smallest submodel, and
is predicted from the rounds that it has trained.

An agent can afford a submodel that fits its memory and whose download, training and upload fit the
round. Without a deadline, a round is as long as the quickest agent needs for the largest submodel
that any agent can hold, but not shorter than a quarter of the fleet's median for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median_high, median_low
from typing import NamedTuple

from coordinator.assign.agent_track_record import Standing, list_active
from federated.task import Profile, Recipe, Timing, count_parts
from federated.training.time_prediction import step_seconds
from federated.wire.codecs.codec import Codec
from federated.wire.codecs.raw import RAW
from models.cost import Cost, cost
from models.submodel import Submodel

__all__ = [
    "MARGIN",
    "UNENCODED",
    "Bounds",
    "Codecs",
    "Offer",
    "count_steps",
    "count_traffic",
    "find_affordable",
    "find_bounds",
    "find_timings",
    "is_quick",
    "make_offers",
]

# fraction of a bound by which another submodel must be better: measurements are noisy
MARGIN = 0.05
# the fleet's median time over the shortest one that sets the pace, at most: a false claim of one
# agent must not shrink the submodels of all others
MAX_LEAD = 4.0
# seconds of a training on an agent of unknown speed: long enough for a slow board, and an upper
# limit of the round only where no other agent was measured
UNKNOWN = 300.0


class Codecs(NamedTuple):
    """The codecs of an agent's transfers: of the weights that it downloads, and of its updates."""

    weights: Codec
    updates: Codec


UNENCODED = Codecs(RAW, RAW)


@dataclass(frozen=True)
class Offer:
    """The predicted cost of a submodel on one agent.

    submodel: as the menu lists it.
    step: seconds of a training step.
    seconds: of a round: download, training and upload.
    memory: bytes of a training step.
    fits: whether the agent has that memory.
    barred: the setback that excludes this submodel, in words; empty if there is none.
    missing: what the agent needs for it and does not have yet, in words; empty if there is nothing.
    """

    submodel: Submodel
    step: float
    seconds: float
    memory: int
    fits: bool
    barred: str = ""
    missing: str = ""

    @property
    def possible(self) -> bool:
        return self.fits and not self.barred and not self.missing


@dataclass(frozen=True)
class Bounds:
    """Time limits of a round.

    step: seconds of a training step.
    seconds: of a round.
    paced: whether the fleet's own speed sets the limits; else a deadline does.
    """

    step: float = math.inf
    seconds: float = math.inf
    paced: bool = True


def make_offers(
    profile: Profile,
    menu: Sequence[Submodel],
    recipe: Recipe,
    share: float,
    codecs: Codecs,
    standing: Standing | None = None,
) -> list[Offer]:
    """Return the cost of each submodel of the menu on an agent.

    share: fraction of its memory that training may use.
    codecs: of its transfers.
    standing: what earlier rounds have shown; None: nothing.
    """
    known = standing or Standing()
    steps = count_steps(recipe, profile.data.examples)
    rate = known.rate or profile.uplink
    timings, made = find_timings(profile, known), []
    for submodel in menu:
        needs = cost(submodel, recipe.batch)
        transfer = count_traffic(needs, codecs) / rate if rate > 0 else 0.0
        step = known.step * step_seconds(timings, submodel.unowned, recipe.batch)
        training = steps * step + known.step * known.extra if timings else UNKNOWN
        memory = math.ceil(known.memory * needs.memory)
        made.append(
            Offer(
                submodel,
                step,
                training + transfer,
                memory,
                memory <= share * profile.memory,
            )
        )
    barriers = [find_barrier(offer, made, known) for offer in made]
    return [
        replace(offer, barred=barrier) if barrier else offer
        for offer, barrier in zip(made, barriers, strict=True)
    ]


def find_timings(profile: Profile, standing: Standing) -> tuple[Timing, ...]:
    """Return the timings from which predictions start: of the profile, or else of earlier rounds;
    empty if the speed of the agent is unknown.
    """
    return profile.timings or standing.timings


def count_traffic(needs: Cost, codecs: Codecs) -> int:
    """Return the bytes that a training transfers: weights down, an update up."""
    return sum(codec.size(needs.bytes // 4) for codec in codecs)


def find_barrier(offer: Offer, menu: Sequence[Offer], standing: Standing) -> str:
    """Return the setback that bars an offer no smaller than the one that failed, in words; empty if
    there is none. Late updates do not bar the quickest offer.
    """
    quickest = min(menu, key=lambda o: o.seconds)
    for setback in list_active(standing):
        for failed in menu:
            if failed.submodel.unowned.name != setback.submodel:
                continue
            too_slow = offer is not quickest and offer.seconds >= setback.share * failed.seconds
            if too_slow if setback.kind == "late" else offer.memory >= failed.memory:
                return setback.words
    return ""


def count_steps(recipe: Recipe, examples: int) -> int:
    """Return the most steps that a device with this many examples takes in a round."""
    part = math.ceil(examples / count_parts(recipe.portion))
    passes = recipe.epochs * max(1, math.ceil(part / recipe.batch))
    return min(recipe.steps, passes) if recipe.steps else passes


def find_bounds(
    fleet: Iterable[Sequence[Offer]], recipe: Recipe, slack: float, deadline: float
) -> Bounds:
    """Return the limits of a round: a deadline in seconds (0: none), or `slack` times what the
    quickest agent needs for the largest submodel that any agent can hold (see `find_pace`).

    The pace limits whole rounds if the recipe fixes their number of steps. If devices train for
    epochs it limits steps: a device with few examples must not hurry those with many.
    """
    if deadline:
        return Bounds(seconds=deadline, paced=False)
    menus = list(fleet)
    possible = [index for menu in menus for index, offer in enumerate(menu) if offer.possible]
    if not possible:
        return Bounds()
    largest = [menu[max(possible)] for menu in menus]
    if recipe.steps:
        return Bounds(seconds=slack * find_pace([(o.seconds, o.possible) for o in largest]))
    return Bounds(step=slack * find_pace([(o.step, o.possible) for o in largest]))


def find_pace(times: Sequence[tuple[float, bool]]) -> float:
    """Return the shortest time among the agents that can hold the submodel, within a factor of
    `MAX_LEAD` of the median of all, since a claim of one agent must neither hurry nor delay the
    others. Of two agents neither can be told to be the median, so the slower one counts. times: of
    each agent, and whether it can hold the submodel.
    """
    quickest = min(seconds for seconds, possible in times if possible)
    every = [seconds for seconds, _ in times]
    return max(min(quickest, MAX_LEAD * median_low(every)), median_high(every) / MAX_LEAD)


def is_quick(offer: Offer, allowed: Bounds, previous: Offer | None = None) -> bool:
    """Return True if a submodel keeps within the bounds. previous: the agent's present submodel. In
    a close case the agent keeps it and gets none that is slower.
    """
    room = 1.0
    if previous is not None and offer.submodel == previous.submodel:
        room += MARGIN
    elif previous is not None and offer.seconds > previous.seconds:
        room -= MARGIN
    return (
        offer.step <= room * allowed.step
        and offer.seconds <= (room if allowed.paced else min(room, 1.0)) * allowed.seconds
    )


def find_affordable(
    menu: Sequence[Offer], allowed: Bounds, previous: Offer | None = None
) -> tuple[Submodel, ...]:
    """Return the submodels that fit the memory and keep within the bounds, smallest first.

    If none is quick enough, return the smallest that fits: late is better than never. Empty if none
    fits, or all are barred.
    """
    possible = [o for o in menu if o.possible]
    return tuple(o.submodel for o in possible if is_quick(o, allowed, previous)) or tuple(
        o.submodel for o in possible[:1]
    )
