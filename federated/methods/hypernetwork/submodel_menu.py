"""List the submodels of RecipFL: narrower networks, networks that end after the first section, or
other networks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from federated.errors import ConfigError
from federated.method import Settings
from federated.methods.common.exit_submodels import sort_menu
from federated.methods.common.inactive_mechanisms import one_size
from federated.methods.common.other_networks import propose_networks
from federated.methods.common.width_depth_submodels import propose_sizes
from federated.methods.hypernetwork.operation_graph import read_graph
from federated.runtime.extension_errors import explain_lookup
from models.families.catalogue import POINT
from models.submodel import Network, Submodel
from models.submodel_building import full

__all__ = ["inactive", "propose"]


def propose(network: Network, settings: Settings) -> tuple[Submodel, ...]:
    """Return the menu, smallest first and the run's whole network last.

    ConfigError: the network has no such submodels, or its graph cannot be read.
    """
    if (
        settings["hidden"] < 4
        or settings["hidden"] % 4
        or settings["cap"] < 1
        or not 0 <= settings["dropout"] < 1
    ):
        found = ", ".join(f"{key} = {settings[key]}" for key in ("hidden", "cap", "dropout"))
        raise ConfigError(
            f"recipfl: expected hidden as a multiple of 4, cap of at least 1, and dropout of at "
            f"least 0 and below 1, found {found}"
        )
    with explain_lookup(POINT):
        if settings["models"]:
            menu = propose_networks(network, settings["models"])
        elif settings["shrink"] == "depth":
            menu = split_sections(network)
        else:
            menu = propose_sizes(network, settings)
    for submodel in menu:
        try:
            read_graph(submodel)
        except Exception as error:  # a custom network can raise anything
            raise ConfigError(
                f"recipfl: cannot read the graph of {submodel.name} ({error}): use another model"
            ) from error
    return menu


def inactive(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    """Yield the reasons why knowledge transfer or different sizes have no effect."""
    if not settings["transfer"]:
        yield (
            "transfer = false lets no strong device teach the small network: set "
            "method.transfer = true"
        )
    yield from one_size(
        menu,
        settings,
        remedy="method.widths to several widths, or method.models to smaller networks",
    )


def split_sections(network: Network) -> tuple[Submodel, ...]:
    """Return two submodels: the first section with an exit at its end, and the whole network.

    ValueError: the network has only one section, or its family has no such exits.
    """
    whole = full(network)
    if len(whole.mask) < 2:
        raise ValueError(
            f"model '{network.title}' has no second section to leave out: set shrink = 'width'"
        )
    mask = (whole.mask[0], *((0,) * len(m) for m in whole.mask[1:]))
    return sort_menu([replace(whole, mask=mask, features=("exits-adapter",)), whole])
