"""Krum: of the n devices of one submodel, the update with the least sum of squared distances to its
n - f - 2 nearest (Blanchard et al., arXiv 1703.02757, section 4).
"""

from __future__ import annotations

from federated.engine.robust.arithmetic import for_distances, selected
from federated.engine.robust.rule import Rule

__all__ = ["KRUM"]

KRUM = Rule(
    name="krum",
    help="of each submodel, the one update that is nearest to the others",
    compares="submodel",
    needed=for_distances,
    clips=False,
    combine=lambda kept, tensors, f: selected(kept, tensors, f, lambda n: 1),
)
