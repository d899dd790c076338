"""Compare a measurement with another project's, or with a limit. Less is better in all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

__all__ = ["AT_MOST", "Baseline", "Failure", "Row", "compare", "compare_all", "compare_errors"]

AT_MOST = "at most"  # name of a limit that was decided on, not measured
MOST_APART = 1.0  # percentage points of accuracy that count as equal


@dataclass(frozen=True)
class Baseline:
    """What a measurement is compared with.

    name: what was measured: a project, a program, or the part of the work that cannot be avoided
    value: median, in the unit of the row
    """

    name: str
    value: float


@dataclass(frozen=True)
class Row:
    """One comparison.

    name: what is measured, with its unit in brackets
    ours: median
    peer: another program that does the same; None: none, or the row compares with the limit
    limit: what cannot or should not be exceeded; None: unknown
    ratio: of the peer's median, or else the limit's, to ours; None: compared with nothing, or ours
        is not positive
    goal: least ratio; None: no such goal
    met: whether the goal is reached; None: no goal
    """

    name: str
    ours: float
    peer: Baseline | None
    limit: Baseline | None
    ratio: float | None
    goal: float | None
    met: bool | None

    @property
    def baseline(self) -> Baseline | None:
        """What the ratio compares with."""
        return self.peer or self.limit


@dataclass(frozen=True)
class Failure:
    """Something that could not be measured, or whose result is wrong, and the reason."""

    name: str
    reason: str


def compare(
    name: str,
    ours: float,
    goal: float | None = None,
    *,
    peer: Baseline | None = None,
    limit: Baseline | None = None,
) -> Row:
    """Compare with the peer if there is one, or else with the limit."""
    baseline = peer or limit
    ratio = baseline.value / ours if baseline and ours > 0 else None
    met = None if baseline is None or goal is None else ours * goal <= baseline.value
    return Row(name, ours, peer, limit, ratio, goal, met)


def compare_all(
    name: str, ours: float, peers: Mapping[str, float], limit: Baseline, goals: Mapping[str, float]
) -> list[Row]:
    """Return a row for each peer, and one for the limit. goals: by name of peer or limit."""
    return [
        *(
            compare(name, ours, goals.get(peer), peer=Baseline(peer, value), limit=limit)
            for peer, value in peers.items()
        ),
        compare(name, ours, goals.get(limit.name), limit=limit),
    ]


def compare_errors(name: str, ours: float, baseline: str, theirs: float) -> Row:
    """Return the row of two accuracies (0 to 1), whose goal is that they differ by a percentage
    point at most.
    """
    name = f"{name}, error, within {MOST_APART:g} point (%)"
    row = compare(name, 100 * (1 - ours), peer=Baseline(baseline, 100 * (1 - theirs)))
    return replace(row, met=100 * abs(ours - theirs) <= MOST_APART + 1e-9)
