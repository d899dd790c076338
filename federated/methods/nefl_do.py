"""NeFL-D_O: Kang, Cha, Shin, Lee and Kang, NeFL: Nested Model Scaling for Federated Learning with System Heterogeneous Clients (arXiv 2308.07761).

NeFL-D whose steps begin where the paper's tables of NeFL-D_O have them: at 1 + n, n the number of blocks left out right after a step's own.
"""

from __future__ import annotations

from dataclasses import replace

from federated.method import Method, varied
from federated.methods.nefl_d import nefl_d

__all__ = ["nefl_do"]


def nefl_do() -> Method:
    base = nefl_d()
    summary = "nefl-d whose steps begin as large as the blocks left out after them"
    return replace(base, name="nefl-do", summary=summary, settings=varied(base.settings, first_step="skipped"))
