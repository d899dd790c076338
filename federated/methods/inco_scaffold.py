"""InCo with SCAFFOLD: Chan et al., Internal Cross-layer Gradients for Extending Homogeneity to
Heterogeneity in FL (arXiv 2308.11464).

SCAFFOLD's devices, variates and mean, then the cross-layer step
(`federated.methods.common.crosslayer`) on what the weights, not the variates, moved.
"""

from __future__ import annotations

from federated.method import Method
from federated.methods.common.crosslayer import inco
from federated.methods.scaffold import scaffold

__all__ = ["inco_scaffold"]


def inco_scaffold() -> Method:
    return inco(scaffold(), "inco-scaffold")
