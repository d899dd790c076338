"""Compare rows under equal conditions: settings chosen by one search, and equal budgets."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.reproduction.cells import Finished
from benchmarks.reproduction.experiment import CENTRAL, WITHIN, Experiment, Part
from coordinator.settings.config import flatten

__all__ = ["choose_settings", "score_within"]


def choose_settings(experiment: Experiment, found: Sequence[Finished]) -> list[Finished]:
    """Return the simulations with the settings that each cell chooses: those with the highest
    validation score, on average over seeds.
    """
    if not experiment.choices:
        return [*found]
    cells = dict.fromkeys((one.row, one.column) for one in found)
    return [one for cell in cells for one in choose(experiment, found, cell)]


def choose(
    experiment: Experiment, found: Sequence[Finished], cell: tuple[str, str]
) -> list[Finished]:
    """Return the simulations of a cell with the best settings."""
    mine = [one for one in found if (one.row, one.column) == cell]
    groups = [[one for one in mine if has_settings(one, part)] for part in experiment.choices]
    return max((group for group in groups if group), key=lambda one: validate(experiment, one))


def has_settings(one: Finished, choice: Part) -> bool:
    return all(one.settings.get(key) == value for key, value in flatten(choice.settings))


def validate(experiment: Experiment, several: Sequence[Finished]) -> float:
    """Return the mean validation score; below all others if a simulation has none, such as one that
    diverged.
    """
    return statistics.fmean(one.scores.get(experiment.validation, -1.0) for one in several)


def score_within(found: Sequence[Finished], one: Finished, score: str) -> float | None:
    """Return a score of a simulation at the last evaluation before it had cost as much as the
    cheapest row of its column costs in all; None if there was none.

    score: such as `worst within bytes`; the cost is `macs` or `bytes`.
    """
    name, _, cost = score.partition(WITHIN)
    totals = [
        getattr(other.progress[-1], cost)
        for other in found
        if other.column == one.column and other.row != CENTRAL.name and other.progress
    ]
    past = [step for step in one.progress if totals and getattr(step, cost) <= min(totals)]
    return past[-1].scores.get(name) if past else None
