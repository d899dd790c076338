"""Propose submodels of different widths and depths, and assign them, as most methods do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from federated.errors import ConfigError
from federated.method import Settings, State
from federated.task import Profile
from models.menu import menu
from models.submodel import Network, Submodel
from models.submodel_building import full, parameters

__all__ = ["assign", "propose_sizes"]


def propose_sizes(
    network: Network, settings: Settings, features: Sequence[str] = ()
) -> tuple[Submodel, ...]:
    """Return every width with every depth of the settings; no depths means all blocks.

    ConfigError: no such submodel exists.
    """
    deepest = max(map(len, full(network).mask), default=1)
    try:
        return menu(network, settings["widths"], settings["depths"] or (deepest,), features)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def assign(
    state: State, profile: Profile | None, affordable: Sequence[Submodel], rng: np.random.Generator
) -> Submodel:
    """Return the submodel with the most parameters."""
    return max(affordable, key=lambda s: (parameters(s), s.name))
