"""The plan of a round: all decisions that a resumed run cannot make again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coordinator.assign.decisions import Verdict
from coordinator.assign.standing import Standing
from models.submodel import Submodel

__all__ = ["RoundPlan"]


@dataclass(frozen=True)
class RoundPlan:
    """The submodels that agents train in a round, and when it closes.

    round: its number, from 1.
    attempt: number of its tasks; a resumed round keeps it.
    chosen: agent -> submodel.
    fleet: submodel and number of agents that would get it.
    surveys: agent -> the results of its survey.
    verdicts: agent -> the decision about it.
    standings: agent -> its standing before the round.
    limit: seconds after which the training closes.
    needed: number of updates that close it.
    wanted: number of agents to be at work at the same time.
    """

    round: int
    attempt: int
    chosen: dict[str, Submodel]
    fleet: tuple[tuple[Submodel, int], ...]
    surveys: dict[str, dict[str, Any]]
    verdicts: dict[str, Verdict]
    standings: dict[str, Standing]
    limit: float
    needed: int
    wanted: int
