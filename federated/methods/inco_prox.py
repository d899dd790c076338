"""InCo with FedProx: Chan et al., Internal Cross-layer Gradients for Extending Homogeneity to
Heterogeneity in FL (arXiv 2308.11464).

FedProx's devices, then the cross-layer step (`federated.methods.common.crosslayer`). Against
FedProx's default the pull is ten times as strong: the paper sets mu / 2 = 0.05.
"""

from __future__ import annotations

from federated.method import Method
from federated.methods.common.crosslayer import inco
from federated.methods.fedprox import fedprox

__all__ = ["inco_prox"]


def inco_prox() -> Method:
    return inco(fedprox(), "inco-prox", mu=0.1)
