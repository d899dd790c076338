"""NeFL-W: Kang, Cha, Shin, Lee and Kang, NeFL: Nested Model Scaling for Federated Learning with
System Heterogeneous Clients (arXiv 2308.07761).

Submodels keep every block and sqrt(gamma) of the channels of each layer, so about a share gamma of
the parameters (section III). Norms and the learnable steps of residual functions belong to their
submodel, the rest to all: see `federated.methods.common.nested`.
"""

from __future__ import annotations

from federated.method import Method
from federated.methods.common.nested import nefl

__all__ = ["nefl_w"]


def nefl_w() -> Method:
    return nefl("nefl-w", "narrower copies, each with norms and learnable steps of its own", "w")
