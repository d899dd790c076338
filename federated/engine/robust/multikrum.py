"""Multi-Krum: the mean of the n - f - 2 updates of one submodel with the least sums that Krum
compares; more than these are not proven safe (El Mhamdi et al., arXiv 1802.07927).
"""

from __future__ import annotations

from federated.engine.robust.arithmetic import for_distances, selected
from federated.engine.robust.rule import Rule

__all__ = ["MULTIKRUM"]

MULTIKRUM = Rule(
    name="multikrum",
    help="of each submodel, the mean of the n - f - 2 updates that are nearest to the others",
    compares="submodel",
    needed=for_distances,
    clips=False,
    combine=lambda kept, tensors, f: selected(kept, tensors, f, lambda n: n - f - 2),
)
