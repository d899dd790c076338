"""InCo Aggregation: Chan et al., Internal Cross-layer Gradients for Extending Homogeneity to
Heterogeneity in FL (arXiv 2308.11464, section 3.3).

Against FedAvg, here with one mean per weight over all who hold it (the paper's HeteroAvg): the step
of a deep layer takes up that of a shallow layer of its section, after each round
(`federated.methods.common.crosslayer`). Devices do what FedAvg's do.
"""

from __future__ import annotations

from federated.method import Method
from federated.methods.common.crosslayer import inco
from federated.methods.fedavg import fedavg

__all__ = ["inco_avg"]


def inco_avg() -> Method:
    return inco(fedavg(), "inco-avg")
