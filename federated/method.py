"""What a federated method is: a frozen record of plain functions, its settings and laws, and the
records that they pass around.

A method says what an update *contributes* (parts); one engine, `federated.engine.aggregate`, adds
them. A new method is made from another by `dataclasses.replace` and states only its difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from torch import Tensor

from federated.engine.accounting import Passes, own_pass
from federated.engine.aggregate import Part, Total
from federated.errors import ConfigError, Unknown
from federated.task import Profile, Recipe, Update
from federated.training.hooks import Hooks
from models.slicing import Plan
from models.submodel import Network, Submodel

__all__ = [
    "LAWS",
    "MODES",
    "SCHEDULE",
    "Method",
    "Setting",
    "Settings",
    "State",
    "Tensors",
    "configure",
    "round_at",
    "varied",
]

Tensors = Mapping[str, Tensor]
Settings = Mapping[str, Any]

LAWS: Mapping[str, str] = MappingProxyType(
    {
        "alone": "one agent alone decides the coordinates that it holds",
        "fedavg": "whole networks alone combine as in FedAvg",
        "identity": "what was received and sent back untrained changes nothing",
        "order": "the order of the agents changes nothing but rounding",
        "uncovered": "what no agent holds stays bit for bit",
    }
)
"""What holds for the combination of updates under every method, but for those that a method says it
`breaks`; the tests try each.
"""

MODES: Mapping[str, str] = MappingProxyType(
    {
        "buffered": "late updates count, by their age",
        "private": "an update's share is bounded, and noise covers it",
        "robust": "some devices may send what they like",
    }
)
"""Ways in which updates can be combined besides the method's own; a method that does not stand one
`forbids` it, with the reason.
"""

SCHEDULE = "below 1: a share of the run's rounds; from 1 on: a whole number of rounds"
"""How a schedule setting is read, in words for people."""

KINDS = {
    bool: "true or false",
    float: "a number",
    int: "a whole number",
    str: "a word",
    tuple: "a list",
}
EACH: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {
        "names": (str,),
        "numbers": (float, int),
        "whole numbers": (int,),
        "whole numbers or lists": (int, list, tuple),
    }
)


@dataclass(frozen=True)
class Setting:
    """One thing that a method can be told.

    default: its value, and its type. help: one line. choices: what it may be; none: anything of its
    type.
    least, above, most: of a number, or of every number of a list, what it may be at the least, must
    lie above, and may be at the most. each: what the elements of a list are, a key of `EACH`.
    schedule: whether each number is a time in the run, which `round_at` reads.
    """

    default: Any
    help: str
    choices: tuple[Any, ...] = ()
    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    each: str = "numbers"
    schedule: bool = False

    @property
    def range(self) -> str:
        """The bounds in words; empty where there are none."""
        told = ((self.least, "at least"), (self.above, "above"), (self.most, "at most"))
        return " and ".join(f"{word} {bound:g}" for bound, word in told if math.isfinite(bound))


def varied(settings: Mapping[str, Setting], **given: Any) -> Mapping[str, Setting]:
    """Settings with some added (where a `Setting` is given), some of another default (where a value
    is), and some left out (where None is).

    KeyError: a value for none of them.
    """
    made = {
        key: value if isinstance(value, Setting) else replace(settings[key], default=value)
        for key, value in given.items()
        if value is not None
    }
    return MappingProxyType(
        {
            key: known
            for key, known in {**settings, **made}.items()
            if key not in given or given[key] is not None
        }
    )


@dataclass(frozen=True)
class State:
    """What a coordinator knows after `round` rounds.

    tensors: home -> tensor. settings: the method's and its recipe's, one flat mapping, with the
    run's own `seed` and `rounds`. fleet: how many agents would be given each submodel, all those
    that are there, whether they train in this round or not.
    agents: what the survey found at each of them, by name.
    holders: how many agents have this set of submodels, sorted by name: all that the agent trained
    in earlier rounds, and the one that it would be given now. Agents that left count with what they
    trained. Empty where nobody kept a record.
    """

    round: int
    tensors: Tensors
    settings: Settings
    fleet: Mapping[Submodel, int] = field(default_factory=dict)
    agents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    holders: Mapping[tuple[Submodel, ...], int] = field(default_factory=dict)


def itself(settings: Settings, menu: Sequence[Submodel], submodel: Submodel) -> Sequence[Submodel]:
    """An update trains the submodel that it was made with, and no other."""
    return (submodel,)


@dataclass(frozen=True)
class Method:
    """A federated method.

    name: as `--method` takes it. summary: one line. paper: authors, title, identifier.
    settings: every setting that it knows. features: what it asks of the network (see
    `Submodel.features`).
    menu: the submodels that it proposes, smallest first. start: from the initial tensors of the
    whole network, the menu and the settings. assign: of the submodels that a device can afford (at
    least one), the one it gets; the generator is numpy's.
    place: where a submodel's tensors live. dispatch: what a device receives; also the view for
    evaluation and export.
    recipe: how a device trains. parts: what an update contributes. finish: the next state, the
    round counted.
    trains: of the menu, the submodels that one update of a submodel trains as a whole, that
    submodel among them. Where networks are nested, every update changes weights of smaller
    submodels, but only these were run on data with their own loss.
    hooks: what a device does beyond its recipe, for which it needs PyTorch; None where the recipe
    says everything.
    inactive: why its own mechanism has no effect with this menu and these settings: a clause each,
    the problem, a colon and the remedy. passes: the networks that a device runs in local training,
    to count multiply-adds; hooks that run more than the device's own state them here. breaks: of
    the `LAWS` those that do not hold, each with its reason. forbids: of the `MODES` those that its
    parts do not stand, likewise.
    """

    name: str
    summary: str
    paper: str
    settings: Mapping[str, Setting]
    features: tuple[str, ...]
    menu: Callable[[Network, Settings], tuple[Submodel, ...]]
    start: Callable[[Tensors, Sequence[Submodel], Settings], State]
    assign: Callable[[State, Profile | None, Sequence[Submodel], np.random.Generator], Submodel]
    place: Callable[[State, Submodel], Plan]
    dispatch: Callable[[State, Plan], dict[str, Tensor]]
    recipe: Callable[[State, Submodel], Recipe]
    parts: Callable[[State, Plan, Update], Iterator[Part]]
    finish: Callable[[State, Total, np.random.Generator], State]
    trains: Callable[[Settings, Sequence[Submodel], Submodel], Sequence[Submodel]] = itself
    hooks: Hooks | None = None
    inactive: Callable[[Sequence[Submodel], Settings], Iterator[str]] = lambda menu, settings: iter(
        ()
    )
    passes: Passes = own_pass
    breaks: Mapping[str, str] = field(default_factory=dict)
    forbids: Mapping[str, str] = field(default_factory=dict)

    @property
    def allows(self) -> frozenset[str]:
        """The modes that its parts stand."""
        return frozenset(MODES.keys() - self.forbids.keys())


def configure(method: Method, given: Settings, *, seed: int = 0, rounds: int = 0) -> dict[str, Any]:
    """The method's settings, those given in place of its defaults, and the run's `seed` and
    `rounds` (0: not known).

    Raises Unknown and ConfigError, naming the setting.
    """
    for key, value in given.items():
        if key not in method.settings:
            raise Unknown(f"setting of {method.name}", key, method.settings)
        if expected := misfit(method.settings[key], value):
            raise ConfigError(
                f"setting '{key}' of {method.name}: expected {expected}, found {value!r}"
            )
    return {
        **{key: known.default for key, known in method.settings.items()},
        **given,
        "seed": seed,
        "rounds": rounds,
    }


def round_at(when: float, rounds: int) -> int:
    """The number of rounds that a schedule setting means in a run of so many: below 1 a share of
    them, else the setting itself.
    """
    return round(when * rounds) if when < 1 else int(when)


def misfit(known: Setting, value: Any) -> str:
    """What was expected instead of a value; empty where it is what a setting may be."""
    if not fits(value, known.default):
        example = list(known.default) if isinstance(known.default, tuple) else known.default
        return f"{KINDS[type(known.default)]} " + (
            f"of {known.each}" if example == [] else f"such as {example!r}"
        )
    if known.choices and value not in known.choices:
        return f"one of {', '.join(map(str, known.choices))}"
    several = isinstance(value, list | tuple)
    if several and not all(
        isinstance(one, EACH[known.each]) and not isinstance(one, bool) for one in value
    ):
        return f"a list of {known.each}"
    numbers = [one for one in (value if several else [value]) if isinstance(one, int | float)]
    if known.range and not all(
        known.above < one and known.least <= one <= known.most for one in numbers
    ):
        return f"{'numbers' if several else 'a number'} {known.range}"
    # 1.0 would be read as round 1, and meant as the whole run
    if known.schedule and any(one >= 1 and not isinstance(one, int) for one in numbers):
        return (
            f"{'shares' if several else 'a share'} of the run's rounds below 1, or "
            f"{'whole numbers' if several else 'a whole number'} of rounds"
        )
    return ""


def fits(value: object, default: object) -> bool:
    """Whether a value has the type of a default: an integer passes for a float, a list for a tuple,
    a truth value for neither.
    """
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, float):
        return isinstance(value, int | float) and -math.inf < value < math.inf
    if isinstance(default, tuple):
        return isinstance(value, list | tuple)
    return isinstance(value, type(default))
