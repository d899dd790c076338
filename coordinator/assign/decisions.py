"""Decide which submodel each agent gets in a round, if any, and explain each decision in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from coordinator.assign.affordable_submodels import (
    Bounds,
    Codecs,
    Offer,
    find_affordable,
    find_bounds,
    find_timings,
    is_quick,
    make_offers,
)
from coordinator.assign.agent_track_record import Standing
from coordinator.assign.decision_record import Decision
from coordinator.assign.eligibility import explain_older_codec
from coordinator.assign.last_results import LastResults
from coordinator.assign.selection import make_generator
from coordinator.assign.submodel_pins import Pin
from coordinator.settings.config import Config
from federated.method import Method, State
from federated.runtime.unit_formatting import human_seconds, megabytes
from federated.task import Profile, Recipe
from federated.wire.codecs.catalogue import find_codec
from federated.wire.codecs.raw import RAW
from federated.wire.codecs.weights import choose_weights_codec
from models.cost import cost
from models.submodel import Submodel

__all__ = [
    "Candidate",
    "LastDecisions",
    "Verdict",
    "ask_method",
    "decide",
    "decide_absent",
    "mark_undrawn",
]

NOTABLE_ERROR = 0.2  # relative error of predicted step times that a reason mentions

Choice = Callable[[int, "Candidate", Sequence[Submodel]], Submodel]
"""A method's choice for the candidate of this index among its affordable submodels (at least
one).
"""


@dataclass(frozen=True)
class Candidate:
    """A connected agent.

    name: of the agent.
    profile: as it measured itself.
    standing: what earlier rounds have shown.
    previous: the submodel that it had last, as a menu lists it.
    pin: the submodel that a person fixed for it; None: none.
    missing: name of a submodel -> what the agent needs for it and does not have yet, in words.
    """

    name: str
    profile: Profile
    standing: Standing = field(default_factory=Standing)
    previous: Submodel | None = None
    pin: Pin | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_timed(self) -> bool:
        """Whether its speed is known."""
        return bool(find_timings(self.profile, self.standing))


@dataclass(frozen=True)
class Verdict:
    """A decision and its inputs.

    submodel: as the agent gets it; None if it gets none.
    decision: the record that is stored.
    offers: predicted cost of each submodel of the menu.
    bounds: limits of the round.
    codec: of its update.
    """

    submodel: Submodel | None
    decision: Decision
    offers: tuple[Offer, ...]
    bounds: Bounds
    codec: str = RAW.name


class LastDecisions:
    """What the last round computed about each agent. It holds for most agents of a large fleet,
    which have not trained since.
    """

    def __init__(self) -> None:
        self.offers = LastResults[tuple[Offer, ...]]()
        self.choices = LastResults[tuple[Submodel, ...]]()
        self.verdicts = LastResults[Verdict]()
        self.unable: Mapping[str, str] = {}  # agents that could not train, and why

    def trim(self, agents: int) -> None:
        for last in (self.offers, self.choices, self.verdicts):
            last.trim(6 * agents)  # up to three for each agent


def decide(
    menu: Sequence[Submodel],
    recipe: Recipe,
    candidates: Sequence[Candidate],
    config: Config,
    choose: Choice,
    last: LastDecisions | None = None,
) -> list[Verdict]:
    """Return a verdict for each candidate, in their order. Those with a submodel will train. last:
    of earlier rounds; it changes no result.
    """
    settings, wire, last = config.assign, config.wire, last or LastDecisions()
    last.trim(len(candidates))

    def predict(c: Candidate, codec: str, standing: Standing) -> tuple[Offer, ...]:
        key = c.name, codec, standing is c.standing
        inputs = c.profile, c.missing, standing, menu, recipe, settings.memory
        return last.offers.get(
            key, inputs, lambda: predict_offers(c, menu, recipe, config, codec, standing)
        )

    def judge(index: int, c: Candidate, offers: tuple[Offer, ...], codec: str) -> Verdict:
        key, inputs = (c.name, codec), (c, offers, allowed)
        can = last.choices.get(key, inputs, partial(list_choices, c, offers, allowed))
        chosen = None if explain_missing(can, offers) or not can else choose(index, c, can)
        return last.verdicts.get(
            key,
            (*inputs, can, chosen),
            lambda: Verdict(
                chosen,
                make_decision(c, offers, allowed, settings.memory, can, chosen),
                offers,
                allowed,
                codec,
            ),
        )

    made = [predict(c, wire.codec, c.standing) for c in candidates]
    # the pace follows usual speeds: one slow round of the quickest agent must not raise all others
    pacing = [
        offers
        if c.standing.step == c.standing.usual
        else predict(c, wire.codec, replace(c.standing, step=c.standing.usual))
        for c, offers in zip(candidates, made, strict=True)
        if c.is_timed
    ]
    allowed = find_bounds(pacing, recipe, settings.slack, config.fleet.deadline)
    found = []
    for index, (c, offers) in enumerate(zip(candidates, made, strict=True)):
        verdict = judge(index, c, offers, wire.codec)
        slow = wire.slow_codec in c.profile.codecs and not explain_older_codec(
            c.profile, wire.slow_codec
        )
        if slow and c.pin is None:
            offers = predict(c, wire.slow_codec, c.standing)
            encoded = judge(index, c, offers, wire.slow_codec)
            if trains_more(encoded, verdict):
                verdict = explain_codec(encoded)
        found.append(verdict)
    return found


def predict_offers(
    candidate: Candidate,
    menu: Sequence[Submodel],
    recipe: Recipe,
    config: Config,
    codec: str,
    standing: Standing,
) -> tuple[Offer, ...]:
    """Return the cost of each submodel of the menu, and what the candidate needs for it and does
    not have. codec: of its updates. standing: from which to predict.
    """
    profile, share = candidate.profile, config.assign.memory
    weights = choose_weights_codec(config.wire.weights_codec, profile.weights_codecs)
    codecs = Codecs(find_codec(weights), find_codec(codec))
    offers = make_offers(profile, menu, recipe, share, codecs, standing)
    missing = candidate.missing
    if not missing:
        return tuple(offers)
    return tuple(replace(o, missing=missing.get(o.submodel.name, "")) for o in offers)


def explain_codec(verdict: Verdict) -> Verdict:
    """Return the verdict with the reason of its codec for slow uplinks."""
    decision = verdict.decision
    reason = f"{decision.reason}; updates in {verdict.codec}, because its uplink is slow"
    return replace(verdict, decision=replace(decision, reason=reason))


def trains_more(one: Verdict, other: Verdict) -> bool:
    """Return True if the first verdict is a submodel with more parameters."""
    if one.submodel is None or other.submodel is None:
        return one.submodel is not None
    return cost(one.submodel).parameters > cost(other.submodel).parameters


def find_previous(candidate: Candidate, offers: tuple[Offer, ...]) -> Offer | None:
    """Return the offer of the submodel that a candidate had last."""
    previous = candidate.previous.unowned if candidate.previous is not None else None
    return next((offer for offer in offers if offer.submodel == previous), None)


def list_choices(
    candidate: Candidate, offers: tuple[Offer, ...], allowed: Bounds
) -> tuple[Submodel, ...]:
    """Return the submodels among which the method may choose."""
    pin, before = candidate.pin, find_previous(candidate, offers)
    can = (pin.submodel,) if pin is not None else find_affordable(offers, allowed, before)
    return can if candidate.is_timed else can[:1]


def explain_missing(can: Sequence[Submodel], offers: Sequence[Offer]) -> str:
    """Return what the agent needs for the smallest of its submodels and does not have; empty if
    there is nothing.
    """
    return next((o.missing for o in offers if can and o.submodel == can[0].unowned), "")


def make_decision(
    candidate: Candidate,
    offers: tuple[Offer, ...],
    allowed: Bounds,
    share: float,
    can: Sequence[Submodel],
    chosen: Submodel | None,
) -> Decision:
    """Return the decision, with its reason. chosen: one of the submodels `can`; None: none."""
    pin, before = candidate.pin, find_previous(candidate, offers)
    if chosen is None:
        reason = (
            f"excluded for now: it is pinned to {can[0].name}: {explain_missing(can, offers)}"
            if can
            else explain_none(offers, candidate.profile, share)
        )
        return Decision(candidate.name, reason=reason)
    offer = next(o for o in offers if o.submodel == chosen.unowned)
    if pin is not None:
        why = f"pinned by {pin.source}"
    elif not candidate.is_timed:
        why = "the smallest that it can train, since its speed is not known yet"
    elif chosen.unowned != can[-1]:
        why = (
            f"chosen by the method from {len(can)} affordable submodels; the largest is "
            f"{can[-1].name}"
        )
    else:
        why = describe_move(before, offer) + explain_choice(offer, offers, allowed, before)
    if abs(candidate.standing.step - 1) > NOTABLE_ERROR and pin is None:
        why += f"; steps take {candidate.standing.step:.2g} times as long as profiled"
    return Decision(
        candidate.name, offer.submodel.name, True, why, offer.step, offer.seconds, offer.memory
    )


def ask_method(method: Method, state: State, seed: int) -> Choice:
    """Return a function that lets the method choose for the round after a state. Each candidate has
    a random draw of its own.
    """
    return lambda index, candidate, affordable: method.assign(
        state, candidate.profile, affordable, make_generator(seed, 2, state.round + 1, index)
    )


def explain_none(offers: Sequence[Offer], profile: Profile, share: float) -> str:
    """Return why an agent gets no submodel."""
    fitting = [o for o in offers if o.fits]
    if fitting:
        why = fitting[0].barred or f"{fitting[0].submodel.name}: {fitting[0].missing}"
        return f"excluded for now: {why}, and there is no smaller submodel"
    return (
        f"no submodel fits its memory: {offers[0].submodel.name} needs "
        f"{megabytes(offers[0].memory)}, and training may use {megabytes(share * profile.memory)} "
        f"({share:.0%} of {megabytes(profile.memory)})"
    )


def describe_move(before: Offer | None, now: Offer) -> str:
    if before is None or before.submodel == now.submodel:
        return ""
    # by size: a smaller submodel may be predicted to be slower, from imprecise measurements
    smaller = cost(now.submodel).parameters < cost(before.submodel).parameters
    return f"moved {'down' if smaller else 'up'} from {before.submodel.name}: "


def explain_choice(
    chosen: Offer, offers: Sequence[Offer], allowed: Bounds, before: Offer | None
) -> str:
    """Return why an agent gets this submodel and none larger."""
    time = describe_time(chosen, allowed)
    if not is_quick(chosen, allowed, before):
        return f"the smallest that fits, though it takes {time}"
    if not is_quick(chosen, allowed):
        return f"keeps its submodel: {time}, too close to change"
    larger = offers[offers.index(chosen) + 1 :]
    if not larger:
        return f"the largest submodel: {time}"
    following = larger[0]
    if following.missing:
        return f"the largest with training graphs; {following.submodel.name}: {following.missing}"
    if following.barred:
        return f"{following.barred}; retried after enough rounds in time"
    if not following.fits:
        return (
            f"the largest that fits memory: {following.submodel.name} needs "
            f"{megabytes(following.memory)}"
        )
    what = "keeps the pace" if allowed.paced else "meets the deadline"
    near = ", too close to change" if is_quick(following, allowed) else ""
    return (
        f"the largest that {what}: {time}; {following.submodel.name} would take "
        f"{format_time(following, allowed)}{near}"
    )


def describe_time(offer: Offer, allowed: Bounds) -> str:
    limit = allowed.step if math.isfinite(allowed.step) else allowed.seconds
    limited = f" (limit {human_seconds(limit)})" if math.isfinite(limit) else ""
    return f"{format_time(offer, allowed)}{limited}"


def format_time(offer: Offer, allowed: Bounds) -> str:
    """Return the bounded time in words: of a step, or of the whole round."""
    return (
        f"{human_seconds(offer.step)} per step"
        if math.isfinite(allowed.step)
        else f"{human_seconds(offer.seconds)} per round"
    )


def mark_undrawn(decision: Decision, why: str) -> Decision:
    """Return the decision for an agent that is not asked in this round."""
    return replace(
        decision, asked=False, reason=f"{why}; it would get {decision.submodel}: {decision.reason}"
    )


def decide_absent(agents: Mapping[str, str]) -> dict[str, Decision]:
    """Return decisions for agents that cannot be asked. agents: name -> why."""
    return {name: Decision(name, reason=f"not selected: {why}") for name, why in agents.items()}
