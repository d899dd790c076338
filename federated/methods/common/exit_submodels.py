"""List the submodels of a method with early exits: one for each place where a network may end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from federated.errors import ConfigError
from federated.method import Settings
from models.layers.early_exits import levels
from models.submodel import Network, Submodel
from models.submodel_building import full, parameters, shapes

__all__ = ["exit_submodels", "inner_submodels", "sort_menu"]


def exit_submodels(network: Network, features: Sequence[str]) -> tuple[Submodel, ...]:
    """Return one full-width submodel for each exit, shallowest first. ConfigError: the network has
    no such exits.
    """
    whole = full(network, features)
    try:
        shapes(whole)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return levels(whole)


def sort_menu(submodels: Iterable[Submodel]) -> tuple[Submodel, ...]:
    """Return a menu without duplicates, smallest first."""
    return tuple(sorted(dict.fromkeys(submodels), key=lambda s: (parameters(s), s.name)))


def inner_submodels(
    settings: Settings, menu: Sequence[Submodel], submodel: Submodel
) -> Sequence[Submodel]:
    """Return the submodels of a menu that end at one of a submodel's exits, at the same width. A
    device trains all its exits.
    """
    whole = [block for section in submodel.mask for block in section]

    def ends_within(other: Submodel) -> bool:
        return all(
            mine or not its
            for mine, its in zip(
                whole, (block for section in other.mask for block in section), strict=True
            )
        )

    return [other for other in menu if other.width == submodel.width and ends_within(other)]
