"""FedFA-W: Park and Joe-Wong, Federated Learning with Flexible Architectures (arXiv 2406.09877).

FedFA whose sizes differ in width alone: every block is there, so nothing is grafted, and a channel
that no device holds keeps its weights.
"""

from __future__ import annotations

from dataclasses import replace

from federated.method import Method, varied
from federated.methods.fedavg import fedavg
from federated.methods.fedfa import BREAKS, fedfa, unscaled

__all__ = ["fedfa_w"]


def fedfa_w() -> Method:
    base, plain = fedfa(), fedavg()
    sizes = varied(base.settings, depths=plain.settings["depths"])
    return replace(
        base,
        name="fedfa-w",
        summary="FedFA with narrower copies only",
        settings=sizes,
        menu=plain.menu,
        inactive=unscaled,
        breaks=BREAKS,
    )
