"""FedFA-D: Park and Joe-Wong, Federated Learning with Flexible Architectures (arXiv 2406.09877).

FedFA whose sizes differ in depth alone: every layer has all its channels, and the last block of a
section is grafted where deeper ones are missing.
"""

from __future__ import annotations

from dataclasses import replace

from federated.method import Method, varied
from federated.methods.fedfa import fedfa

__all__ = ["fedfa_d"]


def fedfa_d() -> Method:
    base = fedfa()
    return replace(
        base,
        name="fedfa-d",
        summary="FedFA with shallower copies only",
        settings=varied(base.settings, widths=(1.0,)),
    )
