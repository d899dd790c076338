"""The plan of the next round: who trains what, how many updates close the round, and when it closes
in any case.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from coordinator.assign.selection import wants
from coordinator.phases.context import RunContext
from coordinator.phases.fleet_history import FleetHistory
from coordinator.phases.patience import limit_phase
from coordinator.round.plan import RoundPlan
from coordinator.round.rules import typical
from coordinator.run.allotment import draw_agents, judge_agents, raise_unable, record_decisions
from coordinator.settings.config import Config
from federated.method import State

__all__ = ["plan_round"]


def plan_round(run: RunContext, state: State, history: FleetHistory) -> RoundPlan:
    """Decide who of the agents that are ready trains what in the next round, and record why. Raises
    FleetError where no agent can train.
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
    needed, wanted = wants(run.config.fleet, len(able))
    chosen = draw_agents(run, number, able, wanted, busy)
    record_decisions(run, number, judged, chosen, busy)
    verdicts = {name: judged[name] for name in able}
    # where late updates count, any agent may be asked while the round is under way
    working = chosen if run.past is None else able
    predicted = {name: verdicts[name].decision.seconds for name in working}
    usual = typical(run.fleet.round, "train", predicted.items())
    limit = limit_phase(
        run.config.fleet.deadline, run.patience, max(predicted.values(), default=0.0), usual
    )
    if run.config.fleet.mode == "sync":
        needed, wanted = count_quorum(run.config, needed, len(chosen)), len(chosen)
    fleet = tuple(Counter(able.values()).items())
    return RoundPlan(
        number,
        run.fleet.attempt,
        chosen,
        fleet,
        surveys,
        verdicts,
        standings,
        limit,
        needed,
        wanted,
    )


def count_quorum(config: Config, needed: int, asked: int) -> int:
    """How many updates close a round that waits for its agents."""
    return max(1, math.ceil(config.fleet.quorum * min(needed, asked) - 1e-9))
