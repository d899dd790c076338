"""Which submodel each agent gets, whether it is asked, and why: one record for each, in words that
a person can check.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coordinator.assign.decision_record import Decision
from coordinator.assign.offers import Bounds, Offer, affordable, bounds, offers, quick
from coordinator.assign.standing import Standing
from coordinator.settings.config import Config
from federated.runtime.units import human_seconds, megabytes
from federated.task import Profile, Recipe
from federated.wire.codecs.catalogue import find_codec
from models.submodel import Submodel

__all__ = [
    "Candidate",
    "Choice",
    "Verdict",
    "absent",
    "decide",
    "undrawn",
]

OFF = 0.2  # share by which steps must have been off for the reason to say so

Choice = Callable[[int, "Candidate", Sequence[Submodel]], Submodel]
"""A method's choice for the candidate at this place, of the submodels that it can afford (at least
one).
"""


@dataclass(frozen=True)
class Candidate:
    """An agent that is there. previous: the submodel that it had last, as a menu lists it. pinned:
    the one that the configuration fixes for it.
    """

    name: str
    profile: Profile
    standing: Standing = field(default_factory=Standing)
    previous: Submodel | None = None
    pinned: Submodel | None = None


@dataclass(frozen=True)
class Verdict:
    """A decision with what it was made from. submodel: as the agent gets it, None where it gets
    none.
    """

    submodel: Submodel | None
    decision: Decision
    offers: tuple[Offer, ...]
    bounds: Bounds


def decide(
    menu: Sequence[Submodel],
    recipe: Recipe,
    candidates: Sequence[Candidate],
    config: Config,
    choose: Choice,
) -> list[Verdict]:
    """A verdict for each candidate, in their order; whoever has a submodel counts as asked.

    config: of the run, with what bounds a round and how updates travel.
    """
    settings, sent = config.assign, find_codec(config.wire.codec)

    def offered(candidate: Candidate, standing: Standing) -> tuple[Offer, ...]:
        return tuple(offers(candidate.profile, menu, recipe, settings.memory, standing, sent))

    made = [offered(c, c.standing) for c in candidates]
    # by its latest speed, one slow round of the quickest agent would move all the others up
    pacing = [
        menu_of
        if c.standing.step == c.standing.usual
        else offered(c, replace(c.standing, step=c.standing.usual))
        for c, menu_of in zip(candidates, made, strict=True)
    ]
    allowed = bounds(pacing, recipe, settings.slack, config.fleet.deadline)
    return [
        verdict(index, c, menu_of, allowed, settings.memory, choose)
        for index, (c, menu_of) in enumerate(zip(candidates, made, strict=True))
    ]


def verdict(
    index: int,
    candidate: Candidate,
    menu: tuple[Offer, ...],
    allowed: Bounds,
    share: float,
    choose: Choice,
) -> Verdict:
    before = next(
        (
            o
            for o in menu
            if candidate.previous is not None and o.submodel == candidate.previous.unowned
        ),
        None,
    )
    can = (candidate.pinned,) if candidate.pinned is not None else affordable(menu, allowed, before)
    if not can:
        return Verdict(
            None,
            Decision(candidate.name, reason=unfit(menu, candidate.profile, share)),
            menu,
            allowed,
        )
    chosen = choose(index, candidate, can)
    offer = next(o for o in menu if o.submodel == chosen.unowned)
    if candidate.pinned is not None:
        why = "pinned by assign.submodels"
    elif chosen.unowned != can[-1]:
        why = f"the method's choice of {len(can)} that it can afford; the largest is {can[-1].name}"
    else:
        why = moved(before, offer) + because(offer, menu, allowed, before)
    if abs(candidate.standing.step - 1) > OFF and candidate.pinned is None:
        why += f"; its steps take {candidate.standing.step:.2g} times what its profile says"
    return Verdict(
        chosen,
        Decision(
            candidate.name, offer.submodel.name, True, why, offer.step, offer.seconds, offer.memory
        ),
        menu,
        allowed,
    )


def unfit(menu: Sequence[Offer], profile: Profile, share: float) -> str:
    """Why an agent can be given nothing."""
    fitting = [o for o in menu if o.fits]
    if fitting:
        return f"left out for now: {fitting[0].barred}, and none is smaller"
    may = (
        f"{megabytes(share * profile.memory)} ({share:.0%} of {megabytes(profile.memory)}) may be "
        "filled"
    )
    return (
        f"cannot hold any submodel: {menu[0].submodel.name} would take "
        f"{megabytes(menu[0].memory)}, {may}"
    )


def moved(before: Offer | None, now: Offer) -> str:
    if before is None or before.submodel == now.submodel:
        return ""
    return f"moved {'down' if now.seconds < before.seconds else 'up'} from {before.submodel.name}: "


def because(chosen: Offer, menu: Sequence[Offer], allowed: Bounds, before: Offer | None) -> str:
    """Why this one and none larger."""
    if not quick(chosen, allowed, before):
        return f"the smallest that fits, though {spelled(chosen, allowed)}"
    if not quick(chosen, allowed):
        return f"keeps what it has: {spelled(chosen, allowed)}, too near to move"
    larger = list(menu)[list(menu).index(chosen) + 1 :]
    if not larger:
        return f"the largest of all: {spelled(chosen, allowed)}"
    following = larger[0]
    if following.barred:
        return f"{following.barred}; it is tried again after rounds in time"
    if not following.fits:
        return (
            f"the largest that fits memory: {following.submodel.name} would take "
            f"{megabytes(following.memory)}"
        )
    what = "keeps the pace" if allowed.paced else "ends before the deadline"
    near = ", too near to move" if quick(following, allowed) else ""
    return (
        f"the largest that {what}: {spelled(chosen, allowed)}; {following.submodel.name} would "
        f"take {amount(following, allowed)}{near}"
    )


def spelled(offer: Offer, allowed: Bounds) -> str:
    limit = allowed.step if math.isfinite(allowed.step) else allowed.seconds
    limited = f" of {human_seconds(limit)} allowed" if math.isfinite(limit) else ""
    return f"{amount(offer, allowed)}{limited}"


def amount(offer: Offer, allowed: Bounds) -> str:
    """What is bounded: a step, or the whole round."""
    return (
        f"{human_seconds(offer.step)} a step"
        if math.isfinite(allowed.step)
        else f"{human_seconds(offer.seconds)} a round"
    )


def undrawn(decision: Decision, why: str) -> Decision:
    """The same for an agent that is not asked in this round."""
    return replace(
        decision, asked=False, reason=f"{why}; it would get {decision.submodel}: {decision.reason}"
    )


def absent(agents: Mapping[str, str]) -> dict[str, Decision]:
    """Decisions for those that cannot be asked, each with why."""
    return {name: Decision(name, reason=f"not selected: {why}") for name, why in agents.items()}
