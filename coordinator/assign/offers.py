"""What each agent can afford: time and memory of every submodel, predicted from what it measured
and corrected by what rounds really took.

The largest is given whose training, download and upload fit the round and whose memory fits.
Without a deadline, a round is as long as the quickest device needs for the largest submodel that
any can hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from coordinator.assign.standing import Setback, Standing, active
from federated.device.prediction import step_seconds
from federated.errors import ConfigError, Unknown
from federated.task import Profile, Recipe
from federated.wire.codecs.codec import Codec
from federated.wire.codecs.raw import RAW
from models.cost import Cost, cost
from models.submodel import Submodel

__all__ = [
    "MARGIN",
    "Bounds",
    "Offer",
    "affordable",
    "bounds",
    "offers",
    "pinned",
    "planned",
    "quick",
    "traffic",
]

# share of a bound by which something must be better to be worth a move: measurements are noisy
MARGIN = 0.05


@dataclass(frozen=True)
class Offer:
    """A submodel as one agent would carry it.

    step: predicted seconds of a training step; seconds: of a round with download, training and
    upload.
    memory: predicted bytes of a step; fits: whether the agent has them. barred: what happened to it
    there that keeps it from being given.
    """

    submodel: Submodel
    step: float
    seconds: float
    memory: int
    fits: bool
    barred: str = ""

    @property
    def possible(self) -> bool:
        return self.fits and not self.barred


@dataclass(frozen=True)
class Bounds:
    """What a round leaves an agent: seconds of a step, and of a round. paced: set by the fleet's
    own speed; else by a deadline.
    """

    step: float = math.inf
    seconds: float = math.inf
    paced: bool = True


def offers(
    profile: Profile,
    menu: Sequence[Submodel],
    recipe: Recipe,
    share: float,
    standing: Standing | None = None,
    codec: Codec = RAW,
) -> list[Offer]:
    """What each submodel of the menu would cost this agent in a round; `share` of its memory may be
    filled. standing: what rounds have shown. codec: of its update.
    """
    known = standing or Standing()
    steps = planned(recipe, profile.data.examples)
    rate = known.rate or profile.uplink
    made = []
    for submodel in menu:
        what = cost(submodel, recipe.batch)
        transfer = traffic(what, codec) / rate if rate > 0 else 0.0
        step = known.step * step_seconds(profile.timings, submodel.unowned, recipe.batch)
        memory = math.ceil(known.memory * what.memory)
        made.append(
            Offer(
                submodel,
                step,
                steps * step + known.step * known.extra + transfer,
                memory,
                memory <= share * profile.memory,
            )
        )
    return [replace(one, barred=bar) if (bar := barring(one, made, known)) else one for one in made]


def traffic(what: Cost, codec: Codec) -> int:
    """Bytes that a training moves: weights down as they are, and the update up by a codec."""
    return what.bytes + codec.size(what.bytes // 4)


def barring(one: Offer, menu: Sequence[Offer], standing: Standing) -> str:
    """Which setback keeps an agent from an offer, in words: all that is not smaller than what it
    could not do. The smallest is never too slow.
    """
    for setback in active(standing):
        there = next((o for o in menu if o.submodel.unowned.name == setback.submodel), None)
        if there is not None and at_least(one, there, menu, setback):
            return setback.words
    return ""


def at_least(one: Offer, there: Offer, menu: Sequence[Offer], setback: Setback) -> bool:
    if setback.kind != "late":
        return one.memory >= there.memory
    return (
        one is not min(menu, key=lambda o: o.seconds)
        and one.seconds >= setback.share * there.seconds
    )


def planned(recipe: Recipe, examples: int) -> int:
    """How many steps a device with so many examples takes in a round, at most."""
    passes = recipe.epochs * max(1, math.ceil(examples / recipe.batch))
    return min(recipe.steps, passes) if recipe.steps else passes


def bounds(
    fleet: Iterable[Sequence[Offer]], recipe: Recipe, slack: float, deadline: float
) -> Bounds:
    """What a round allows: a deadline (seconds, 0: none), or `slack` times what the quickest needs
    for the largest that any agent can hold.

    The pace is of whole rounds where the recipe fixes their steps. Where devices go through their
    data, however many they are, it is of steps: a device with few data would otherwise hurry those
    with many.
    """
    if deadline:
        return Bounds(seconds=deadline, paced=False)
    menus = list(fleet)
    held = [index for menu in menus for index, offer in enumerate(menu) if offer.possible]
    if not held:
        return Bounds()
    holders = [menu[max(held)] for menu in menus if menu[max(held)].possible]
    if recipe.steps:
        return Bounds(seconds=slack * min(o.seconds for o in holders))
    return Bounds(step=slack * min(o.step for o in holders))


def quick(offer: Offer, allowed: Bounds, previous: Offer | None = None) -> bool:
    """Whether a submodel keeps within the bounds. previous: what the agent has, which it keeps, and
    above which it gets nothing, in a close case.
    """
    room = 1.0
    if previous is not None:
        room = (
            1 + MARGIN
            if offer.submodel == previous.submodel
            else 1 - MARGIN
            if offer.seconds > previous.seconds
            else 1.0
        )
    return (
        offer.step <= room * allowed.step
        and offer.seconds <= (room if allowed.paced else min(room, 1.0)) * allowed.seconds
    )


def affordable(
    menu: Sequence[Offer], allowed: Bounds, previous: Offer | None = None
) -> tuple[Submodel, ...]:
    """The submodels that fit the memory and keep within the bounds, smallest first.

    Where none is quick enough, the smallest that fits: late is better than never. Empty where none
    fits, or all are barred.
    """
    possible = [o for o in menu if o.possible]
    return tuple(o.submodel for o in possible if quick(o, allowed, previous)) or tuple(
        o.submodel for o in possible[:1]
    )


def pinned(menu: Sequence[Submodel], wanted: Mapping[str, str]) -> Callable[[str], Submodel | None]:
    """Which submodel the configuration fixes for an agent, if it does: patterns as a shell has
    them, the first that fits counts.

    A name may leave out what the method adds to it: `w0.5-d2.2` for `w0.5-d2.2-scaler`. Raises
    ConfigError for one that the menu does not have.
    """
    known = {replace(submodel, features=()).name: submodel for submodel in menu} | {
        submodel.name: submodel for submodel in menu
    }
    for pattern, name in wanted.items():
        if name not in known:
            raise ConfigError(
                f"assign.submodels: {pattern}: {Unknown('submodel', name, [s.name for s in menu])}"
            )

    def choice(agent: str) -> Submodel | None:
        return next(
            (known[name] for pattern, name in wanted.items() if fnmatchcase(agent, pattern)), None
        )

    return choice
