"""How far an update may move what it was sent: by what earlier rounds moved, so that it is known
before anyone of a round answers.

Of each submodel the norms of the changes in the last rounds are kept, those of refused updates too.
A bound is a multiple of their median, which fewer than half of a submodel's updates cannot move as
they like; and a fleet that really has come to move further is refused no longer than until half of
what is known of it says so. Acceptance does not depend on who of a round came first, nor on whether
the coordinator started again.

Where the median of all submodels together is larger, the bound is a multiple of that. Else a device
that trains a submodel alone and has learned all that its data have to say, so that it hardly moves
any more, would be refused as soon as it saw something new. As far as others move anyway is not too
far for it; so a bound can only be raised, and fewer than half of all updates cannot raise it as
they like.

Norms are of three kinds, each with a bound of its own, since one is nothing beside another: of
weights, of running statistics, of variates.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coordinator.trust.norm_tables import WINDOW, Measured
from federated.errors import Refused
from federated.task import Update
from federated.training.variates import PREFIX

__all__ = ["LEAST", "Bound", "bounds", "check_change", "moved"]

LEAST = 5  # updates of a submodel in the last WINDOW rounds, before its norms bound anything
STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True)
class Bound:
    """The largest acceptable norm, and how it came about. median: of the submodel; common: of all
    submodels together.
    """

    factor: float
    median: float
    common: float
    updates: int
    rounds: tuple[int, int]

    @property
    def most(self) -> float:
        return self.factor * max(self.median, self.common)

    @property
    def why(self) -> str:
        first, last = self.rounds
        whose = (
            f"{self.updates} updates of its submodel"
            if self.median >= self.common
            else "the updates of all submodels"
        )
        return (
            f"{self.factor:g} times {max(self.median, self.common):.3g}, the median of {whose} in "
            f"rounds {first} to {last}"
        )


def bounds(known: Iterable[Measured], round: int, factor: float) -> dict[tuple[str, str], Bound]:
    """For a round, the bounds by submodel and kind; none where too little is known, or where
    nothing moved.

    factor: times the median; 0: no bounds.
    """
    groups: dict[tuple[str, str], list[Measured]] = {}
    kinds: dict[str, list[float]] = {}
    for one in known:
        if factor and round - WINDOW <= one.round < round:
            groups.setdefault((one.submodel, one.kind), []).append(one)
            kinds.setdefault(one.kind, []).append(one.norm)
    common = {kind: statistics.median(norms) for kind, norms in kinds.items()}
    found = {}
    for (submodel, kind), ones in groups.items():
        middle = statistics.median(one.norm for one in ones)
        if len(ones) >= LEAST and middle > 0:
            rounds = min(one.round for one in ones), max(one.round for one in ones)
            found[submodel, kind] = Bound(factor, middle, common[kind], len(ones), rounds)
    return found


def moved(update: Update, sent: Mapping[str, Any]) -> dict[str, float]:
    """The norm of each kind of change in an update. sent: what the device received, by local name;
    a variate comes back as its change alone.
    """
    squares: dict[str, float] = {}
    for name, value in update.tensors.items():
        step = value.astype(np.float64)
        if not name.startswith(PREFIX) and name in sent:
            step -= np.asarray(sent[name])
        kind = (
            "variates"
            if name.startswith(PREFIX)
            else "statistics"
            if name.endswith(STATISTICS)
            else "weights"
        )
        squares[kind] = squares.get(kind, 0.0) + float(np.vdot(step, step))
    return {kind: math.sqrt(square) for kind, square in squares.items()}


def check_change(
    update: Update, norms: Mapping[str, float], known: Mapping[tuple[str, str], Bound]
) -> None:
    """Raises Refused for an update that moved further than its submodel's bound of that kind."""
    for kind, norm in norms.items():
        bound = known.get((update.submodel.plain.name, kind))
        if bound is not None and norm > bound.most:
            raise Refused(
                f"update of {update.agent}: expected {kind} to move by at most "
                f"{bound.most:.3g} ({bound.why}), found {norm:.3g}"
            )
