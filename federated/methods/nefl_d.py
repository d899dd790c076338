"""NeFL-D: Kang, Cha, Shin, Lee and Kang, NeFL: Nested Model Scaling for Federated Learning with
System Heterogeneous Clients (arXiv 2308.07761).

Submodels keep every channel and lack blocks, as in the paper's tables or by a rule for other
networks (`federated.methods.common.nested_sizes`). Norms and the learnable steps of residual
functions belong to their submodel, the rest to all: see `federated.methods.common.nested`.
"""

from __future__ import annotations

from federated.method import Method
from federated.methods.common.nested import nefl

__all__ = ["nefl_d"]


def nefl_d() -> Method:
    return nefl(
        "nefl-d", "copies with fewer blocks, each with norms and learnable steps of its own", "d"
    )
