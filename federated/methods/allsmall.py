"""AllSmall: FedAvg of the smallest network of a menu on every device, the plain alternative to
sizes that differ.

A baseline of RecipFL (Zhang et al., How Few Davids Improve One Goliath, WWW 2024, doi
10.1145/3589334.3645544) and, before it, what InclusiveFL calls a small model to fit all clients
(Liu et al., No One Left Behind, arXiv 2202.08036). The menu is FedAvg's, of which the smallest
alone is proposed; the default sizes are RecipFL's two, of which the small one keeps a fifth of the
channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from federated.method import Method, Settings, varied
from federated.methods.fedavg import fedavg, proposal
from models.families.catalogue import full
from models.submodel import Network, Submodel

__all__ = ["allsmall"]

WIDTHS = (0.2, 1.0)


def smallest(network: Network, settings: Settings) -> tuple[Submodel, ...]:
    return proposal(network, settings)[:1]


def inactive(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    """The menu has the smallest size alone, whatever was left out of it."""
    if menu[0] == full(menu[0].network):
        yield (
            "the smallest submodel is the whole network, as under fedavg: set method.widths or "
            "method.depths to smaller sizes"
        )


def allsmall() -> Method:
    base = fedavg()
    return replace(
        base,
        name="allsmall",
        summary="the smallest network of the menu on every device, however much it could carry",
        paper="a baseline of RecipFL (Zhang et al., WWW 2024) and InclusiveFL (Liu et al., arXiv "
        "2202.08036)",
        settings=varied(base.settings, widths=WIDTHS, sharing=None),
        menu=smallest,
        inactive=inactive,
    )
