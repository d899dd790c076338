"""InCo with FedNova: Chan et al., Internal Cross-layer Gradients for Extending Homogeneity to
Heterogeneity in FL (arXiv 2308.11464).

FedNova's mean step per weight, then the cross-layer step (`federated.methods.common.crosslayer`).
The authors train with Adam, to which FedNova's normaliser of SGD does not belong, and their FedNova
on ResNets stays at 10 to 15 %; `optimiser = "sgd"` is the fair one.
"""

from __future__ import annotations

from federated.method import Method
from federated.methods.common.crosslayer import inco
from federated.methods.fednova import fednova

__all__ = ["inco_nova"]


def inco_nova() -> Method:
    return inco(fednova(), "inco-nova")
