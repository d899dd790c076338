"""The plan of the next round: the submodel of each agent, the quorum, and the time limit."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from coordinator.assign.selection import count_wanted
from coordinator.phases.context import RunContext
from coordinator.phases.fleet_history import FleetHistory
from coordinator.phases.patience import limit_phase
from coordinator.round.phase_rules import typical_seconds
from coordinator.round.plan import RoundPlan
from coordinator.run.agent_selection import (
    draw_agents,
    judge_agents,
    raise_unable,
    record_decisions,
)
from coordinator.settings.config import Config
from federated.method import State

__all__ = ["plan_round"]


def plan_round(run: RunContext, state: State, history: FleetHistory) -> RoundPlan:
    """Plan the next round with the ready agents, and record the reason for each decision. Raises
    FleetError if no agent can train.
    """
    number = state.round + 1
    agents = run.fleet.candidates("train", number)
    surveys = {a.name: dict(a.profile.survey) for a in agents if a.profile is not None}
    state = replace(state, agents=surveys)
    judged, standings = judge_agents(run, state, history, agents)
    able = {
        name: verdict.submodel for name, verdict in judged.items() if verdict.submodel is not None
    }
    if not able:
        raise_unable(run, state, judged)
    busy = {late.task.agent for late in run.fleet.late if late.open}
    needed, wanted = count_wanted(run.config.fleet, len(able))
    chosen = draw_agents(run, number, able, wanted, busy)
    record_decisions(run, number, judged, chosen, busy)
    verdicts = {name: judged[name] for name in able}
    # if late updates count, any agent may be asked during the round
    working = chosen if run.past is None else able
    predicted = {name: verdicts[name].decision.seconds for name in working}
    typical = typical_seconds(run.fleet.round, "train", predicted.items())
    slowest = max(predicted.values(), default=0.0)
    limit = limit_phase(run.config.fleet.deadline, run.patience, slowest, typical)
    if run.config.fleet.mode == "sync":
        needed, wanted = count_quorum(run.config, needed, len(chosen)), len(chosen)
    return RoundPlan(
        number,
        run.fleet.attempt,
        chosen,
        tuple(Counter(able.values()).items()),
        surveys,
        verdicts,
        standings,
        limit,
        needed,
        wanted,
    )


def count_quorum(config: Config, needed: int, asked: int) -> int:
    """Return the number of updates that close a synchronous round."""
    return max(1, math.ceil(config.fleet.quorum * min(needed, asked) - 1e-9))
