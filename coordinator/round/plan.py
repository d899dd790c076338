"""The plan of a round: every decision that could not be reproduced after the fleet has changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coordinator.assign.decisions import Verdict
from coordinator.assign.standing import Standing
from models.submodel import Submodel

__all__ = ["RoundPlan"]


@dataclass(frozen=True)
class RoundPlan:
    """Who trains what in a round, and when it closes.

    round: its number, from 1.
    attempt: number that its tasks carry; stays the same if another process resumes the round.
    chosen: agent -> submodel.
    fleet: how many agents would be given each submodel.
    surveys, verdicts, standings: by agent.
    limit: seconds that the round may take.
    needed: updates that close it.
    wanted: agents to be at work at the same time.
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
