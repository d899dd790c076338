"""The submodels of methods with exits: one for each place where a network may end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from federated.errors import ConfigError
from models.exits import levels
from models.families import full, parameters, shapes
from models.submodel import Network, Submodel

__all__ = ["endings", "ordered"]


def endings(network: Network, features: Sequence[str]) -> tuple[Submodel, ...]:
    """At full width one submodel for each exit, the shallowest first. Raises ConfigError where the network has no such exits."""
    whole = full(network, features)
    try:
        shapes(whole)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return levels(whole)


def ordered(submodels: Iterable[Submodel]) -> tuple[Submodel, ...]:
    """A menu of these: each once, the smallest first."""
    return tuple(sorted(dict.fromkeys(submodels), key=lambda s: (parameters(s), s.name)))
