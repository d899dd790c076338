"""Bound how far an update may move from the weights that were sent. The bounds follow from updates
of earlier rounds, so they are known before any agent answers.

The norms of the changes to each submodel in the last rounds are kept, those of refused updates too.
A bound is a multiple of their median, which an attacker with fewer than half of a submodel's
updates cannot set at will. A fleet that really starts to move further is refused only until half of
the kept norms show it. Acceptance does not depend on the order of the answers in a round, nor on
restarts of the coordinator.

Where the median over all submodels is larger, the bound is a multiple of that one. Otherwise a
device that trains a submodel alone and has converged, so that it hardly changes, would be
refused as soon as it saw something new. This can only raise a bound, and an attacker with fewer
than half of all updates cannot raise it at will.

Norms are of three kinds, each with its own bound, because their magnitudes differ: weights, running
statistics and variates.
"""

from __future__ import annotations

import math
import statistics
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coordinator.trust.norm_and_privacy_tables import WINDOW, ChangeNorm
from federated.engine.sums_of_squares import sum_squares_each
from federated.errors import Refused
from federated.task import Update
from federated.training.state_between_rounds import PREFIX

__all__ = ["LEAST", "Bound", "check_change", "compute_bounds", "measure_change"]

LEAST = 5  # updates of a submodel in the last WINDOW rounds, below which it has no bound
STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True)
class Bound:
    """The largest acceptable norm, and its derivation.

    factor: multiple of the median.
    median: of the submodel's norms.
    common: median over all submodels.
    updates: number of norms of the submodel.
    rounds: first and last round of these norms.
    shares: number of norms by each agent, the largest first.
    """

    factor: float
    median: float
    common: float
    updates: int
    rounds: tuple[int, int]
    shares: tuple[int, ...]

    @property
    def most(self) -> float:
        return self.factor * max(self.median, self.common)

    def limit(self, f: int) -> float:
        """Return the norm to which a change is clipped: the median of the submodel, or that over
        all submodels if it is smaller and f attackers may have sent half of the submodel's norms.
        """
        if 2 * sum(self.shares[:f]) < self.updates:
            return self.median
        return min(self.median, self.common)

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


def compute_bounds(
    known: Iterable[ChangeNorm], round: int, factor: float
) -> dict[tuple[str, str], Bound]:
    """Return a round's bounds by submodel and kind, except where too few norms are known or where
    nothing moved.

    factor: multiple of the median; 0 disables all bounds.
    """
    groups: dict[tuple[str, str], _Group] = {}
    for one in known:
        if factor and round - WINDOW <= one.round < round:
            groups.setdefault((one.submodel, one.kind), _Group()).add(one)
    kinds: dict[str, list[float]] = {}
    for (_, kind), group in groups.items():
        kinds.setdefault(kind, []).extend(group.norms)
    common = {kind: statistics.median(norms) for kind, norms in kinds.items()}
    found = {}
    for (submodel, kind), group in groups.items():
        middle = statistics.median(group.norms)
        if len(group.norms) >= LEAST and middle > 0:
            rounds = min(group.rounds), max(group.rounds)
            shares = tuple(sorted(group.senders.values(), reverse=True))
            found[submodel, kind] = Bound(
                factor, middle, common[kind], len(group.norms), rounds, shares
            )
    return found


@dataclass(frozen=True)
class _Group:
    """The norms of one kind of change to one submodel, without the objects that they came in.

    norms: one of each update.
    rounds: of these updates.
    senders: number of norms by agent.
    """

    norms: array[float] = field(default_factory=lambda: array("d"))
    rounds: set[int] = field(default_factory=set)
    senders: Counter[str] = field(default_factory=Counter)

    def add(self, one: ChangeNorm) -> None:
        self.norms.append(one.norm)
        self.rounds.add(one.round)
        self.senders[one.agent] += 1


def measure_change(update: Update, sent: Mapping[str, Any]) -> dict[str, float]:
    """Return the L2 norm of each kind of change in an update. sent: the tensors that the device
    received, by local name; a variate is sent back as a change already.
    """
    squares: dict[str, float] = {}
    old = {name: np.asarray(value) for name, value in sent.items() if not name.startswith(PREFIX)}
    for name, square in sum_squares_each(update.tensors, old).items():
        kind = (
            "variates"
            if name.startswith(PREFIX)
            else "statistics"
            if name.endswith(STATISTICS)
            else "weights"
        )
        squares[kind] = squares.get(kind, 0.0) + square
    return {kind: math.sqrt(square) for kind, square in squares.items()}


def check_change(
    update: Update, norms: Mapping[str, float], known: Mapping[tuple[str, str], Bound]
) -> None:
    """Raise Refused for an update that moved further than a bound of its submodel allows."""
    for kind, norm in norms.items():
        bound = known.get((update.submodel.plain.name, kind))
        if bound is not None and norm > bound.most:
            raise Refused(
                f"update of {update.agent}: expected a change of {kind} of at most "
                f"{bound.most:.3g} ({bound.why}), found {norm:.3g}"
            )
