"""What training cost in multiply-adds, as FedFA compares methods (Park and Joe-Wong, arXiv 2406.09877).

    mean = sum_n N_n MACS_n / sum_n N_n,    MACE = N_p mean,    TMAC = T E MACE

MACS_n: multiply-adds of one pass over its data by a device with architecture n, of which there are N_n. N_p devices take part in each of T rounds,
with E passes each. The paper does not say whether backward passes count; here they do not, and whoever counts them multiplies by three.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Effort", "effort"]


@dataclass(frozen=True)
class Effort:
    """Multiply-adds. mean: of one pass by one device; mace: of one pass by all who take part in a round; tmac: of all rounds."""

    mean: float
    mace: float
    tmac: float


def effort(macs: Mapping[str, float], agents: Mapping[str, int], *, participants: float, epochs: int, rounds: int) -> Effort:
    """macs: of one pass over its data, by architecture; agents: how many have each. ValueError: nobody has any."""
    count = sum(agents.values())
    if count < 1:
        raise ValueError("the effort of no agent: expected at least one")
    mean = sum(number * macs[name] for name, number in agents.items()) / count
    mace = participants * mean
    return Effort(mean, mace, rounds * epochs * mace)
