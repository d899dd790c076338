"""Define `Method`: a federated method as a frozen record of plain functions, with its settings.

A method defines what an update contributes (parts); one engine, `federated.engine.aggregate`, adds
them. `dataclasses.replace` derives a new method from another, so that it states only the
difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import or_
from threading import Lock
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import numpy as np
from msgspec import Meta
from torch import Tensor

from federated.engine.aggregate import Total
from federated.engine.training_multiply_adds import Passes, own_pass
from federated.engine.update_contributions import Part
from federated.errors import Unknown
from federated.settings_validation import Settings, validate
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
    "vary",
]

Tensors = Mapping[str, Tensor]
# msgspec 0.22 prepares a type when it first converts one, and crashes if two threads do so at once
PREPARING = Lock()

LAWS: Mapping[str, str] = {
    "alone": "a weight that only one agent holds takes that agent's value",
    "fedavg": "if all agents train the whole network, the result is that of FedAvg",
    "identity": "weights that are sent back untrained change nothing",
    "order": "the order of the agents affects only rounding",
    "uncovered": "weights that no agent holds stay the same bit for bit",
}
"""Properties of the combination of updates under every method, except those that a method lists in
`breaks`. The tests check each of them.
"""

MODES: Mapping[str, str] = {
    "buffered": "late updates count, weighted by their age",
    "private": "updates are clipped, and noise is added to their sum",
    "robust": "tolerates some devices that send arbitrary updates",
}
"""Further ways to combine updates. A method that does not support one lists it in `forbids`, with
the reason.
"""

SCHEDULE = "below 1: a fraction of the run's rounds; 1 or more: a number of rounds"
"""Help text on the values of a schedule setting."""


@dataclass(frozen=True)
class Setting:
    """The declaration of one setting of a method, from which `Method.record` is made.

    default: its default value, which also determines its type.
    help: one line.
    choices: all valid values; empty: any value of its type.
    least: lower bound of a number, or of every number of a list; None: no bound.
    above: the same, exclusive.
    most: upper bound.
    each: type of the elements of a list.
    schedule: whether each number is a time in the run, which `round_at` converts.
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
        """The bounds in words; empty without bounds."""
        bounds = ((self.least, "at least"), (self.above, "above"), (self.most, "at most"))
        return " and ".join(f"{word} {bound:g}" for bound, word in bounds if bound is not None)

    @property
    def annotation(self) -> Any:
        """The type with its bounds and its description, as msgspec reads it."""
        kind: Any = type(self.default)
        if self.choices:
            kind = Literal[self.choices]
        elif kind is tuple:
            kind = tuple[self.bound(self.each), ...]  # type: ignore[misc]
        else:
            kind = self.bound(kind)
        note = f"{self.help} ({SCHEDULE})" if self.schedule else self.help
        return Annotated[kind, Meta(description=f"{note}.")]

    def bound(self, kind: Any) -> Any:
        """Add the bounds to the numbers of a type, including those in a union or an inner list."""
        if isinstance(kind, UnionType):
            return reduce(or_, map(self.bound, get_args(kind)))
        if get_origin(kind) is tuple:
            return tuple[self.bound(get_args(kind)[0]), ...]  # type: ignore[misc]
        bounds: dict[str, Any] = {"ge": self.least, "gt": self.above, "le": self.most}
        if kind not in (int, float):
            return kind
        if self.schedule:  # 1.0 would mean round 1, but looks like the whole run
            fraction = Annotated[float, Meta(**bounds, lt=1)]
            return Annotated[int, Meta(**bounds)] | fraction
        return Annotated[kind, Meta(**bounds)]


def vary(settings: Mapping[str, Setting], **given: Any) -> Mapping[str, Setting]:
    """Return the settings with changes: a `Setting` adds or replaces one, another value becomes the
    default, None removes one.

    Raises KeyError for the default of an unknown setting.
    """
    made = {
        key: value if isinstance(value, Setting) else replace(settings[key], default=value)
        for key, value in given.items()
        if value is not None
    }
    return {
        key: known
        for key, known in {**settings, **made}.items()
        if key not in given or given[key] is not None
    }


@dataclass(frozen=True)
class State:
    """The state of a method after `round` rounds.

    tensors: home -> tensor. One with a "/" in its name, such as `momentum/NAME`, is not the
        network's: checkpoints keep it, and devices get it only to train, if a plan places it.
    settings: of the method and its recipe, in one flat mapping with the run's `seed` and `rounds`.
    fleet: number of connected agents that would get each submodel, training in this round or not.
    agents: the survey of each of them, by name.
    holders: number of agents for each set of submodels, sorted by name: those that the agent
        trained in earlier rounds and the one that it would get now. Agents that left count with
        those that they trained. Empty without a record.
    menu: the run's submodels, smallest first.
    """

    round: int
    tensors: Tensors
    settings: Settings
    fleet: Mapping[Submodel, int] = field(default_factory=dict)
    agents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    holders: Mapping[tuple[Submodel, ...], int] = field(default_factory=dict)
    menu: tuple[Submodel, ...] = ()


def itself(settings: Settings, menu: Sequence[Submodel], submodel: Submodel) -> Sequence[Submodel]:
    """Return the update's own submodel alone."""
    return (submodel,)


@dataclass(frozen=True)
class Method:
    """A federated method.

    name: the name for `--method`; a method of another package gets the name that selects it.
    summary: one line.
    paper: authors, title, identifier.
    settings: the declarations of its settings.
    features: features of the network that it requires (see `Submodel.features`).
    menu: returns the submodels that it proposes, smallest first.
    start: returns the first state, from the initial tensors of the whole network, the menu and the
        settings.
    assign: chooses a submodel among those that a device can afford (at least one).
    place: returns the plan that maps a submodel's tensors to homes.
    dispatch: returns the tensors that a device receives; also used for evaluation and export.
    recipe: returns the recipe of a device's training. Its `hook` names the hooks to run.
    parts: returns the contributions of an update; fastest as `RowParts`.
    finish: returns the next state, with `round` one higher, also after a round without updates. It
        changes only coordinates that an update covers (`coverage_mask` of
        `federated.engine.server_optimizer`).
    trains: returns the submodels of the menu that an update of a submodel trains as a whole, with
        that submodel. In nested networks every update changes weights of smaller submodels, but
        only these were run on data with their own loss.
    hooks: code that a device runs beyond its recipe, which requires PyTorch; None if the recipe is
        complete. They run only if `hook` of the recipe is their name.
    inactive: yields reasons why the method's own mechanism has no effect with this menu and these
        settings, each as a clause: the problem, a colon and the remedy.
    passes: the networks that a device runs in local training, to count multiply-adds; hooks that
        run further networks list them here.
    breaks: the `LAWS` that do not hold, each with its reason.
    forbids: the `MODES` that its parts do not support, each with its reason.
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
    parts: Callable[[State, Plan, Update], Iterable[Part]]
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
    def record(self) -> type[Settings]:
        """The settings as a type that validates them, and from which their schema is made."""
        fields = [(key, known.annotation, known.default) for key, known in self.settings.items()]
        made: type[Settings] = msgspec.defstruct(  # type: ignore[assignment]
            self.name.replace(":", "."),  # a valid name in schemas
            fields,
            bases=(Settings,),
            module=__name__,
            frozen=True,
            forbid_unknown_fields=True,
            kw_only=True,
        )
        with PREPARING:
            msgspec.convert({}, made)
        return made

    @property
    def allows(self) -> frozenset[str]:
        """The modes that its parts support."""
        return frozenset(MODES.keys() - self.forbids.keys())


def configure(
    method: Method, given: Mapping[str, Any], *, seed: int = 0, rounds: int = 0
) -> Settings:
    """Return the method's settings: the given ones, and defaults for the others. seed, rounds: of
    the run (0: unknown).

    Raises Unknown and ConfigError with the name of the setting.
    """
    for key in given:
        if key not in method.settings:
            raise Unknown(f"{method.name} setting", key, method.settings)
    tree = {**given, "seed": seed, "rounds": rounds}
    return validate(method.record, tree, f"method {method.name}")


def round_at(when: float, rounds: int) -> int:
    """Return the number of rounds that a schedule setting means in a run of `rounds` rounds: below
    1 a fraction of them, otherwise the setting itself.
    """
    return round(when * rounds) if when < 1 else int(when)
