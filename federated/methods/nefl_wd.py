"""NeFL-WD: Kang, Cha, Shin, Lee and Kang, NeFL: Nested Model Scaling for Federated Learning with
System Heterogeneous Clients (arXiv 2308.07761).

Submodels are both narrower and shallower, as in the paper's tables or by a rule for other networks
(`federated.common.nested_sizes`). Norms and the learnable steps of residual functions belong to
their submodel, the rest to all: see `federated.common.nested`.
"""

from __future__ import annotations

from federated.common.nested import nefl
from federated.method import Method

__all__ = ["nefl_wd"]


def nefl_wd() -> Method:
    return nefl(
        "nefl-wd",
        "narrower copies with fewer blocks, each with norms and learnable steps of its own",
        "wd",
    )
