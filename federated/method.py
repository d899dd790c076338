"""What a federated method is: a frozen record of plain functions, its settings and laws, and the
records that they pass around.

A method says what an update *contributes* (parts); one engine, `federated.engine.aggregate`, adds
them. A new method is made from another by `dataclasses.replace` and states only its difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import or_
from threading import Lock
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import numpy as np
from msgspec import Meta
from torch import Tensor

from federated.engine.accounting import Passes, own_pass
from federated.engine.aggregate import Part, Total
from federated.errors import Unknown
from federated.settings import MethodSettings, Settings, validated
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
# msgspec learns a type when it first converts one, and crashes where two threads do so at once
# (0.22)
LEARNING = Lock()

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


@dataclass(frozen=True)
class Setting:
    """The declaration of one setting of a method, from which `Method.record` is made.

    default: its value, which also gives its type.
    help: one line.
    choices: all values that it may have; empty: any of its type.
    least: lower bound of a number, or of every number of a list; None: no bound.
    above: the same, excluded. most: upper bound.
    each: type of the elements of a list.
    schedule: whether each number is a time in the run, which `round_at` reads.
    """

    default: Any
    help: str
    choices: tuple[Any, ...] = ()
    least: float | None = None
    above: float | None = None
    most: float | None = None
    each: Any = float
    schedule: bool = False

    @property
    def range(self) -> str:
        """The bounds in words; empty where there are none."""
        told = ((self.least, "at least"), (self.above, "above"), (self.most, "at most"))
        return " and ".join(f"{word} {bound:g}" for bound, word in told if bound is not None)

    @property
    def annotation(self) -> Any:
        """The type with its bounds and its description, as msgspec reads it."""
        kind: Any = type(self.default)
        if self.choices:
            kind = Literal[self.choices]
        elif kind is tuple:
            kind = tuple[self.bounded(self.each), ...]  # type: ignore[misc]
        else:
            kind = self.bounded(kind)
        note = f"{self.help} ({SCHEDULE})" if self.schedule else self.help
        return Annotated[kind, Meta(description=f"{note}.")]

    def bounded(self, kind: Any) -> Any:
        """A type whose numbers have the bounds, those in a union or in an inner list, too."""
        if isinstance(kind, UnionType):
            return reduce(or_, map(self.bounded, get_args(kind)))
        if get_origin(kind) is tuple:
            return tuple[self.bounded(get_args(kind)[0]), ...]  # type: ignore[misc]
        bounds: dict[str, Any] = {"ge": self.least, "gt": self.above, "le": self.most}
        if kind not in (int, float):
            return kind
        if self.schedule:  # 1.0 would be read as round 1, and meant as the whole run
            share = Annotated[float, Meta(**bounds, lt=1)]
            return Annotated[int, Meta(**bounds)] | share
        return Annotated[kind, Meta(**bounds)]


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

    name: as `--method` takes it; a method of another package gets the name that selects it.
    summary: one line. paper: authors, title, identifier.
    settings: the declaration of every setting that it knows. features: what it asks of the network
    (see `Submodel.features`).
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

    @cached_property
    def record(self) -> type[MethodSettings]:
        """The settings as a type, which validates them and from which their schema is made."""
        fields = [(key, known.annotation, known.default) for key, known in self.settings.items()]
        made: type[MethodSettings] = msgspec.defstruct(  # type: ignore[assignment]
            self.name.replace(":", "."),  # as schemas can name it
            fields,
            bases=(MethodSettings,),
            module=__name__,
            frozen=True,
            forbid_unknown_fields=True,
            kw_only=True,
        )
        with LEARNING:
            msgspec.convert({}, made)
        return made

    @property
    def allows(self) -> frozenset[str]:
        """The modes that its parts stand."""
        return frozenset(MODES.keys() - self.forbids.keys())


def configure(
    method: Method, given: Mapping[str, Any], *, seed: int = 0, rounds: int = 0
) -> MethodSettings:
    """The method's settings: those given, and its defaults for the others. seed, rounds: of the run
    (0: not known).

    Raises Unknown and ConfigError, naming the setting.
    """
    for key in given:
        if key not in method.settings:
            raise Unknown(f"setting of {method.name}", key, method.settings)
    tree = {**given, "seed": seed, "rounds": rounds}
    return validated(method.record, tree, f"method {method.name}")


def round_at(when: float, rounds: int) -> int:
    """The number of rounds that a schedule setting means in a run of so many: below 1 a share of
    them, else the setting itself.
    """
    return round(when * rounds) if when < 1 else int(when)
