"""Simulate with nothing but PyTorch: the limit that a framework can approach."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own habit)

from benchmarks.simulation.meter import Measured, Meter
from benchmarks.simulation.task import (
    CHOSEN,
    DEVICES,
    LR,
    build_network,
    load_devices,
    measure_accuracy,
)

__all__ = ["simulate"]


def simulate(rounds: int) -> Measured:
    torch.set_num_threads(1)
    net, devices, rng = build_network(), load_devices(), np.random.default_rng(0)
    meter = Meter(rounds)
    own: list[Tensor] = list(net.parameters())
    weights = [one.detach().clone() for one in own]
    optimiser = torch.optim.SGD(own, LR)
    for _ in range(rounds):
        sums, examples = [torch.zeros_like(one) for one in weights], 0
        for index in rng.choice(DEVICES, CHOSEN, replace=False):
            x, y = devices[index]
            with torch.no_grad():
                torch._foreach_copy_(own, weights)
            optimiser.zero_grad()
            F.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            with torch.no_grad():
                torch._foreach_add_(sums, own, alpha=len(y))
            examples += len(y)
        weights = [one / examples for one in sums]
        meter.end_round()
    with torch.no_grad():
        torch._foreach_copy_(own, weights)
    return meter.conclude(measure_accuracy(net))
