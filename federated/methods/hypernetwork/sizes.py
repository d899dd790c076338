"""The submodels of RecipFL: networks that are narrower, end after the first section, or are others
altogether.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from federated.errors import ConfigError
from federated.method import Settings
from federated.methods.common.endings import ordered
from federated.methods.common.inactive import one_size
from federated.methods.fedavg import proposal
from federated.methods.hypernetwork.graph import graph
from federated.runtime.plugins import unknown
from models.cost import cost
from models.families import catalogue
from models.families.catalogue import KIND, full, parameters
from models.submodel import Network, Submodel, Target

__all__ = ["inactive", "propose"]


def propose(network: Network, settings: Settings) -> tuple[Submodel, ...]:
    """Smallest first, the run's whole network last. ConfigError: the network cannot be made smaller
    so, or its graph cannot be read.
    """
    if (
        settings["hidden"] < 4
        or settings["hidden"] % 4
        or settings["cap"] < 1
        or not 0 <= settings["dropout"] < 1
    ):
        found = ", ".join(f"{key} = {settings[key]}" for key in ("hidden", "cap", "dropout"))
        raise ConfigError(
            f"recipfl: {found}; expected a hidden size that is a multiple of 4, a cap "
            "of at least 1, a dropout of at least 0 and below 1"
        )
    try:
        if settings["models"]:
            menu = others(network, settings["models"])
        else:
            menu = (
                sections(network) if settings["shrink"] == "depth" else proposal(network, settings)
            )
    except LookupError as error:
        raise unknown(KIND, error) from error
    except ValueError as error:
        raise ConfigError(str(error)) from error
    for submodel in menu:
        try:
            graph(submodel)
        except Exception as error:  # whatever a network of a user's own raises
            raise ConfigError(
                f"recipfl: the graph of {submodel.name} cannot be read ({error}); take "
                "another model"
            ) from error
    return menu


def inactive(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    if not settings["transfer"]:
        yield (
            "transfer = false lets no strong device teach the small network: set method.transfer "
            "= true"
        )
    yield from one_size(
        menu,
        settings,
        remedy="method.widths to several widths, or method.models to smaller networks",
    )


def sections(network: Network) -> tuple[Submodel, ...]:
    """The first section with an exit of its own, and the whole network. ValueError: there is one
    section, or the family has no such exits.
    """
    whole = full(network)
    if len(whole.mask) < 2:
        raise ValueError(
            f"model '{network.family}' has no second section to leave out: take shrink = 'width'"
        )
    mask = (whole.mask[0], *((0,) * len(m) for m in whole.mask[1:]))
    return ordered([replace(whole, mask=mask, features=("exits-adapter",)), whole])


def others(network: Network, models: Sequence[str]) -> tuple[Submodel, ...]:
    """The networks of these names by parameters, each for the run's data, and last the run's own,
    which is the strong devices'.

    Neither parameters nor multiply-adds alone say which network is larger: on 32x32 images VGG-16
    has fewer parameters than ResNet-101 and takes twice its multiply-adds, and the poster has it as
    the larger one. So a network is refused only if it exceeds the run's own in both.

    LookupError, ValueError: see `models.families.catalogue.network`; ValueError: a network is
    larger than the run's own.
    """
    target: Target = "token" if network.objective in {"next", "masked"} else network.objective  # type: ignore[assignment]
    whole, made = full(network), list[Submodel]()
    for model in dict.fromkeys(models):
        other = catalogue.network(
            model,
            network.inputs,
            network.outputs,
            network,
            target,
        )
        made.append(full(replace(other, label=re.sub(r"[^A-Za-z0-9_.-]", "_", model))))
        if parameters(made[-1]) > parameters(whole) and cost(made[-1]).macs > cost(whole).macs:
            raise ValueError(
                f"model '{model}' has more parameters and takes more multiply-adds than "
                "the run's own model, which must be the largest; "
                f"set model.name={model} and name the present one in models"
            )
    return (*ordered(made), whole)
