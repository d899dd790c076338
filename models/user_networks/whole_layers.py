"""Explain why a narrow submodel of a user's network is hardly smaller than the whole network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from models.submodel import Submodel
from models.user_networks import user_network

__all__ = ["explain_whole_layers"]

NAMED = 3  # layers and operations that a message names


Shapes = Mapping[str, tuple[int, ...]]


def explain_whole_layers(submodel: Submodel, narrow: Shapes, whole: Shapes) -> str:
    """Return the largest layers that a submodel keeps whole, and the operations that prevent
    narrowing; empty if its share of the parameters is nearer to its width than to 1.

    narrow, whole: shapes of the parameters of the submodel, and of the same blocks at full width
    """
    share = count(narrow) / max(1, count(whole))
    if share <= (1 + submodel.width) / 2:
        return ""
    narrowed = {find_layer(name) for name, shape in narrow.items() if shape != whole[name]}
    largest = sorted(narrow, key=lambda name: -math.prod(whole[name]))
    layers = [layer for layer in map(find_layer, largest) if layer not in narrowed]
    obstacles = find_obstacles(submodel)
    why = f"; channels stay whole because of {name_some(obstacles)}" if obstacles else ""
    return (
        f"{submodel.network.title}: width {submodel.width:g} keeps {share:.0%} of the parameters: "
        f"the largest layers that stay whole are {name_some(layers)}{why}"
    )


def find_layer(name: str) -> str:
    """Return the name of the layer of a tensor: net.first.weight -> first."""
    return name.removeprefix("net.").rpartition(".")[0]


def count(tensors: Shapes) -> int:
    return sum(map(math.prod, tensors.values()))


def find_obstacles(submodel: Submodel) -> tuple[str, ...]:
    """Return what keeps channels whole in a network that the project cuts; empty for others."""
    network = submodel.network
    try:
        scales = user_network.scales_itself(network)
    except ValueError:  # not a user's network, but of a family
        return ()
    return () if scales else user_network.analyse(network).obstacles


def name_some(names: Iterable[str]) -> str:
    """Return the first of some names, and the number of the others."""
    known = list(dict.fromkeys(names))
    more = len(known) - NAMED
    return ", ".join(known[:NAMED]) + (f" and {more} more" if more > 0 else "")
