"""NeFL-WD: Kang, Cha, Shin, Lee and Kang, NeFL: Nested Model Scaling for Federated Learning with
System Heterogeneous Clients (arXiv 2308.07761).

Submodels are both narrower and shallower, as in the paper's tables or by a rule for other networks
(`federated.methods.common.nested_sizes`). Norms and the learnable steps of residual functions
belong to their submodel, the rest to all: see `federated.methods.common.nested`.
"""

from __future__ import annotations

from federated.method import Method
from federated.methods.common.nested import nefl

__all__ = ["nefl_wd"]


def nefl_wd() -> Method:
    return nefl(
        "nefl-wd",
        "narrower copies with fewer blocks, each with norms and learnable steps of its own",
        "wd",
    )
