"""What each agent can afford: the time of a step predicted from what it measured, its memory, and the round's pace."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from federated.errors import ConfigError, Unknown
from federated.prediction import step_seconds
from federated.task import Profile, Recipe
from models.cost import cost
from models.submodel import Submodel

__all__ = ["Offer", "affordable", "offers", "pace", "pinned", "planned"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Offer:
    """A submodel as one agent would carry it.

    step: predicted seconds of a training step; seconds: of a round with download, training and upload.
    memory: predicted bytes of a step; fits: whether the agent has them.
    """

    submodel: Submodel
    step: float
    seconds: float
    memory: int
    fits: bool


def offers(profile: Profile, menu: Sequence[Submodel], recipe: Recipe, share: float) -> list[Offer]:
    """What each submodel of the menu would cost this agent in a round; `share` of its memory may be filled."""
    steps = planned(recipe, profile.data.examples)
    made = []
    for submodel in menu:
        what = cost(submodel, recipe.batch)
        transfer = 2 * what.bytes / profile.uplink if profile.uplink > 0 else 0.0
        step = step_seconds(profile.timings, submodel, recipe.batch)
        made.append(Offer(submodel, step, steps * step + transfer, what.memory, what.memory <= share * profile.memory))
    return made


def planned(recipe: Recipe, examples: int) -> int:
    """How many steps a device with so many examples takes in a round, at most."""
    passes = recipe.epochs * max(1, math.ceil(examples / recipe.batch))
    return min(recipe.steps, passes) if recipe.steps else passes


def pace(fleet: Iterable[Sequence[Offer]], slack: float) -> float:
    """Seconds that a step may take when nobody set a deadline: `slack` times what the quickest agent needs for the largest submodel it can hold."""
    return slack * min((max((o.step for o in menu if o.fits), default=math.inf) for menu in fleet), default=math.inf)


def affordable(menu: Sequence[Offer], *, step: float, deadline: float, failed: Container[Submodel] = ()) -> tuple[Submodel, ...]:
    """The submodels that fit the memory, keep the pace of a step and end before the deadline (seconds), smallest first.

    Where none is quick enough, the smallest that fits: late is better than never. Empty where none fits, or all have failed here.
    """
    fit = [o for o in menu if o.fits and o.submodel not in failed]
    quick = tuple(o.submodel for o in fit if o.step <= step and o.seconds <= deadline)
    return quick or tuple(o.submodel for o in fit[:1])


def pinned(menu: Sequence[Submodel], wanted: Mapping[str, str]) -> Callable[[str], Submodel | None]:
    """Which submodel the configuration fixes for an agent, if it does: patterns as a shell has them, the first that fits counts.

    A name may leave out what the method adds to it: `w0.5-d2.2` for `w0.5-d2.2-scaler`. Raises ConfigError for one that the menu does not have.
    """
    known = {replace(submodel, features=()).name: submodel for submodel in menu} | {submodel.name: submodel for submodel in menu}
    for pattern, name in wanted.items():
        if name not in known:
            raise ConfigError(f"assign.submodels: {pattern}: {Unknown('submodel', name, [s.name for s in menu])}")

    def choice(agent: str) -> Submodel | None:
        return next((known[name] for pattern, name in wanted.items() if fnmatchcase(agent, pattern)), None)

    return choice
