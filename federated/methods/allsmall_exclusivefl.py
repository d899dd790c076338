"""AllSmall and ExclusiveFL, two baselines in which submodels of different sizes share nothing:
FedAvg of the smallest submodel on every device, and FedAvg separately for each submodel.

Both are baselines of RecipFL (Zhang et al., How Few Davids Improve One Goliath, WWW 2024, doi
10.1145/3589334.3645544), without papers of their own. InclusiveFL calls AllSmall a small model to
fit all clients (Liu et al., No One Left Behind, arXiv 2202.08036). ExclusiveFL is FedAvg (McMahan
et al., arXiv 1602.05629) with `sharing = "architecture"`: a submodel with one device is trained by
that device alone. The default widths are RecipFL's two, and the smaller one keeps a fifth of the
channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from federated.method import Method, Setting, Settings, vary
from federated.methods.common.inactive_mechanisms import one_size
from federated.methods.common.width_depth_submodels import propose_sizes
from federated.methods.fedavg import fedavg
from models.submodel import Network, Submodel
from models.submodel_building import full

__all__ = ["allsmall", "exclusivefl"]

WIDTHS = (0.2, 1.0)


def propose_smallest(network: Network, settings: Settings) -> tuple[Submodel, ...]:
    """Return the smallest submodel of FedAvg's menu."""
    return propose_sizes(network, settings)[:1]


def inactive(menu: Sequence[Submodel], settings: Settings) -> Iterator[str]:
    """Yield a reason if the smallest submodel is the whole network."""
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
        summary="FedAvg with the smallest submodel on every device",
        paper="a baseline of RecipFL (Zhang et al., WWW 2024) and InclusiveFL (Liu et al., arXiv "
        "2202.08036)",
        settings=vary(base.settings, widths=WIDTHS, sharing=None),
        menu=propose_smallest,
        inactive=inactive,
    )


def exclusivefl() -> Method:
    base = fedavg()
    return replace(
        base,
        name="exclusivefl",
        summary="FedAvg separately for each submodel; different submodels share nothing",
        paper="a baseline of RecipFL (Zhang et al., WWW 2024): McMahan et al. (arXiv 1602.05629) "
        "per architecture",
        settings=vary(
            base.settings,
            widths=WIDTHS,
            sharing=Setting(
                "architecture", "average over devices of the same submodel", ("architecture",)
            ),
        ),
        inactive=one_size,
    )
