"""ExclusiveFL: FedAvg within each architecture; different architectures share nothing.

A baseline of RecipFL (Zhang et al., How Few Davids Improve One Goliath, WWW 2024, doi
10.1145/3589334.3645544), which has no paper of its own. It is FedAvg (McMahan et al., arXiv
1602.05629) with `sharing = "architecture"`: a submodel with one device is trained by that device
alone. The default widths are RecipFL's two, and the smaller one keeps a fifth of the channels.
"""

from __future__ import annotations

from dataclasses import replace

from federated.method import Method, Setting, vary
from federated.methods.common.inactive_mechanisms import one_size
from federated.methods.fedavg import fedavg

__all__ = ["exclusivefl"]

WIDTHS = (0.2, 1.0)


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
