"""What a federated method is: a frozen record of plain functions, and the records that they pass around.

A method says what an update *contributes* (parts); one engine, `federated.aggregate`, adds them. A new method is made from another by
`dataclasses.replace` and states only its difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from federated.errors import ConfigError, Unknown
from federated.task import Profile, Recipe, Update
from models.slicing import Plan, Where
from models.submodel import Network, Submodel

if TYPE_CHECKING:
    from federated.aggregate import Total

__all__ = ["Method", "Part", "Settings", "State", "Tensors", "configure"]

Tensors = Mapping[str, Tensor]
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class State:
    """What a coordinator knows after `round` rounds.

    tensors: home -> tensor. settings: the method's and its recipe's, one flat mapping. fleet: how many agents hold each submodel.
    """

    round: int
    tensors: Tensors
    settings: Settings
    fleet: Mapping[Submodel, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """One rectangle of one home, as one update gives it: adds weight x scale x value to the sum, and weight to what it is divided by.

    home, where, shape: the home, the rectangle in it, and the home's whole shape. value: tensor of the rectangle's shape.
    weight: one number, or a vector over axis 0 of the rectangle. extra: further numbers, summed per rectangle beside the weight.
    """

    home: str
    where: Where
    shape: tuple[int, ...]
    value: Tensor
    weight: float | Tensor = 1.0
    scale: float = 1.0
    extra: tuple[float, ...] = ()


@dataclass(frozen=True)
class Method:
    """A federated method.

    name: as `--method` takes it. summary: one line. paper: authors, title, identifier.
    defaults: every setting that it knows, with its value. features: what it asks of the network (see `Submodel.features`).
    allows: which modes of the engine its parts stand: buffered, robust, private.
    menu: the submodels that it proposes, smallest first. start: from the initial tensors of the whole network, the menu and the settings.
    assign: of the submodels that a device can afford (at least one), the one it gets; the generator is numpy's.
    place: where a submodel's tensors live. dispatch: what a device receives; also the view for evaluation and export.
    recipe: how a device trains. parts: what an update contributes. finish: the next state, the round counted.
    device: hooks of the PyTorch trainer, for what a recipe cannot say; None where it says everything.
    """

    name: str
    summary: str
    paper: str
    defaults: Settings
    features: tuple[str, ...]
    allows: frozenset[str]
    menu: Callable[[Network, Settings], tuple[Submodel, ...]]
    start: Callable[[Tensors, Sequence[Submodel], Settings], State]
    assign: Callable[[State, Profile | None, Sequence[Submodel], np.random.Generator], Submodel]
    place: Callable[[State, Submodel], Plan]
    dispatch: Callable[[State, Plan], dict[str, Tensor]]
    recipe: Callable[[State, Submodel], Recipe]
    parts: Callable[[State, Plan, Update], Iterator[Part]]
    finish: Callable[[State, Total, np.random.Generator], State]
    device: object | None = None


def configure(method: Method, given: Settings) -> dict[str, Any]:
    """The method's settings with those given in place of its defaults. Raises Unknown and ConfigError, naming the setting."""
    for key, value in given.items():
        if key not in method.defaults:
            raise Unknown(f"setting of {method.name}", key, method.defaults)
        default = method.defaults[key]
        if not fits(value, default):
            raise ConfigError(f"setting '{key}' of {method.name}: expected {type(default).__name__} such as {default!r}, found {value!r}")
    return {**method.defaults, **given}


def fits(value: object, default: object) -> bool:
    """Whether a value has the type of a default: an integer passes for a float, a list for a tuple, a truth value for neither."""
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, float):
        return isinstance(value, int | float) and bool(np.isfinite(value))
    if isinstance(default, tuple):
        return isinstance(value, list | tuple)
    return isinstance(value, type(default))
