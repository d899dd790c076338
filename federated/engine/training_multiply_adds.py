"""Count the multiply-adds of local training, as FedFA compares methods (Park and Joe-Wong, arXiv
2406.09877, section 5.2).

    mean = sum_n N_n MACS_n / sum_n N_n,    MACE = N_p mean,    TMAC = T E MACE

MACS_n: multiply-adds of one local epoch with architecture n, which N_n devices train. N_p devices
take part in each of T rounds, with E local epochs each. T counts the rounds up to and including the
first that reaches the target accuracy.

The paper does not say whether backward passes count. Here they do not: MACS_n counts every forward
pass of training, `Method.passes`: teachers, students, nested widths, and all exits. Surveys before
the first round (ZiCo), calibration of batch norm, and evaluation are not training, so they do not
count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from federated.task import Recipe
from models.cost import cost
from models.submodel import Submodel

__all__ = ["Pass", "Passes", "effort", "macs", "own_pass"]


@dataclass(frozen=True)
class Pass:
    """Network that a device runs on its examples during training.

    submodel: the network; its branches count once, since training runs them merged
        (`models.layers.mergeable_branches`)
    times: passes of each example per local epoch; the expected number where the method draws
    learns: True if a backward pass follows
    """

    submodel: Submodel
    times: float = 1.0
    learns: bool = True


Passes = Callable[[Recipe, Submodel, Submodel | None], Sequence[Pass]]
"""All passes of a local training, from its recipe, the device's submodel, and the submodel that the
device trained before (None: its first training).
"""


def own_pass(recipe: Recipe, submodel: Submodel, before: Submodel | None) -> tuple[Pass, ...]:
    """Return one forward and backward pass through the device's submodel, as most methods need."""
    return (Pass(submodel),)


def macs(passes: Iterable[Pass], *, backward: bool = False) -> float:
    """Return the multiply-adds per example and local epoch. backward: include backward passes."""
    total = 0.0
    for one in passes:
        known = cost(one.submodel.plain)
        total += one.times * (
            known.training_macs if backward and one.learns else known.forward_macs
        )
    return total


@dataclass(frozen=True)
class Effort:
    """Multiply-adds of the forward passes of training.

    mean: of one local epoch of one device, averaged over the run
    mace: of one local epoch of all devices that train in a round, averaged over the run
    total: of the whole run
    tmac: up to and including the first round that reaches the target; None without such a round
    """

    mean: float
    mace: float
    total: float
    tmac: float | None


def effort(rounds: Sequence[Sequence[float]], epochs: int, reached: int | None) -> Effort:
    """Return the effort of a run.

    rounds: multiply-adds of one local epoch of each device that trained, by round
    epochs: local epochs per round
    reached: number of rounds until the target was reached; None if it was not
    ValueError: no device trained.
    """
    trained = [one for several in rounds for one in several]
    if not trained:
        raise ValueError("cannot compute the effort of a run in which no device trained")
    until = None if reached is None else epochs * sum(map(sum, rounds[:reached]))
    return Effort(fmean(trained), sum(trained) / len(rounds), epochs * sum(trained), until)
