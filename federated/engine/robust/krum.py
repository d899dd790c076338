"""Krum: among the n devices of one submodel, choose the update with the least sum of squared
distances to its n - f - 2 nearest (Blanchard et al., arXiv 1703.02757, section 4).

Multi-Krum: the mean of the n - f - 2 updates of one submodel that have the least sums in Krum.
Selecting more is not proven safe (El Mhamdi et al., arXiv 1802.07927).
"""

from __future__ import annotations

from federated.engine.robust.arithmetic import least_for_krum, per_submodel, weigh_nearest
from federated.engine.robust.rule import Rule

__all__ = ["KRUM", "MULTIKRUM"]

KRUM = Rule(
    name="krum",
    help="the single update of each submodel that is nearest to the others",
    compares="submodel",
    needed=least_for_krum,
    promises="between",
    combine=lambda kept, tensors, f: per_submodel(
        kept, tensors, f, least_for_krum, weigh_nearest(lambda n: 1)
    ),
)


MULTIKRUM = Rule(
    name="multikrum",
    help="the mean of the n - f - 2 updates of each submodel that are nearest to the others",
    compares="submodel",
    needed=least_for_krum,
    promises="between",
    combine=lambda kept, tensors, f: per_submodel(
        kept, tensors, f, least_for_krum, weigh_nearest(lambda n: n - f - 2)
    ),
)
