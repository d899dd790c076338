"""Plan the next round: decide about each agent, draw among those that can train, and set the quorum
and the time limit.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from typing import NoReturn

from coordinator.assign import decisions
from coordinator.assign.agent_track_record import Standing, count_round, reset_timings
from coordinator.assign.claimed_count_limit import limit_counts
from coordinator.assign.decision_record import Decision
from coordinator.assign.decisions import Candidate, Verdict
from coordinator.assign.selection import count_wanted, draw_names, make_generator
from coordinator.phases.fleet_history import FleetHistory
from coordinator.phases.run_context import RunContext, limit_phase
from coordinator.round.leases import estimate_typical_seconds
from coordinator.round.round_state import Agent, RoundPlan
from coordinator.settings.config import Config
from federated.errors import FleetError
from federated.method import State
from models.cost import cost
from models.submodel import Submodel

__all__ = ["plan_round"]

log = logging.getLogger(__name__)

BUSY = "still working on an earlier round"


def plan_round(run: RunContext, state: State, history: FleetHistory) -> RoundPlan:
    """Plan the next round with the ready agents, and record the reason for each decision. Raises
    FleetError if no agent can train.
    """
    number = state.round + 1
    agents = run.fleet.list_candidates("train", number)
    if not agents:
        raise FleetError("all agents are still working on tasks of earlier rounds")
    surveys = {a.name: dict(a.profile.survey) for a in agents if a.profile is not None}
    state = replace(state, agents=surveys)
    judged, standings = judge_agents(run, state, history, agents)
    if run.graphs.waiting and not run.measures_time:  # how long exports take must change no result
        raise FleetError("training graphs are being exported")
    able = {
        name: verdict.submodel for name, verdict in judged.items() if verdict.submodel is not None
    }
    if not able:
        raise_unable(run, state, judged)
    busy = {late.task.agent for late in run.fleet.late if late.open}
    needed, wanted = count_wanted(run.config.fleet, len(able))
    chosen = draw_agents(run, number, able, wanted, busy)
    trusted = list_trusted(run, able.keys() - busy)
    probed = frozenset(chosen.keys() - trusted if trusted else ())
    judged |= {name: mark_probe(judged[name]) for name in probed}
    record_decisions(run, number, judged, chosen, busy)
    verdicts = {name: judged[name] for name in able}
    # if late updates count, any agent may be asked during the round
    working = chosen.keys() - probed if run.past is None else able.keys()
    predicted = {name: verdicts[name].decision.seconds for name in working}
    typical = estimate_typical_seconds(run.fleet.round, "train", predicted.items())
    slowest = max(predicted.values(), default=0.0)
    limit = limit_phase(run.config.fleet.deadline, run.patience, slowest, typical)
    if run.config.fleet.mode == "sync":
        # spares take the places of suspects
        available = min(len(chosen), len(trusted) or len(chosen))
        needed, wanted = count_quorum(run.config, needed, available), len(chosen)
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
        probed,
        limit_examples(run, verdicts),
    )


def limit_examples(run: RunContext, names: Collection[str]) -> int:
    """Return the most examples with which an update of these agents counts; 0: no limit. Warn about
    agents that have more.
    """
    agents = run.fleet.agents
    counts = {name: profile.data.examples for name in names if (profile := agents[name].profile)}
    if not run.count_ratio or not counts:
        return 0
    most = limit_counts(counts.values(), run.count_ratio)
    if larger := sorted(name for name, count in counts.items() if count > most):
        log.warning(
            "%s: more than %g times the median of the agents' examples; each counts as %d "
            "examples (robust.examples)",
            ", ".join(f"{name} with {counts[name]} examples" for name in larger),
            run.count_ratio,
            most,
        )
    return most


def list_trusted(run: RunContext, names: Collection[str]) -> frozenset[str]:
    """Return the agents whose last tasks did not time out. In runs that accept late updates, which
    wait for no particular agent, return all.
    """
    agents = run.fleet.agents
    return frozenset(name for name in names if run.past is not None or not agents[name].suspect)


def mark_probe(verdict: Verdict) -> Verdict:
    """Return the verdict with the remark that the round does not wait for the agent."""
    decision = verdict.decision
    reason = f"its last task timed out, so the round does not wait for it; {decision.reason}"
    return replace(verdict, decision=replace(decision, reason=reason))


def count_quorum(config: Config, needed: int, asked: int) -> int:
    """Return the number of updates that close a synchronous round."""
    return max(1, math.ceil(config.fleet.quorum * min(needed, asked) - 1e-9))


def judge_agents(
    run: RunContext, state: State, history: FleetHistory, agents: Sequence[Agent]
) -> tuple[dict[str, Verdict], dict[str, Standing]]:
    """Return a verdict and the standing of each agent. The verdict is the method's choice among the
    submodels that the agent can afford, or the one that a person fixed for it.
    """
    profiles = {agent.name: agent.profile for agent in agents if agent.profile is not None}
    standings = {
        name: reset_timings(history.standings.get(name, Standing()), profile)
        for name, profile in profiles.items()
    }
    recipes = [run.method.recipe(state, submodel) for submodel in run.menu]
    run.request_graphs(recipes)
    candidates = [
        Candidate(
            name,
            profile,
            standings[name],
            history.assigned.get(name),
            run.pins.find(name, run.control.pins),
            {
                submodel.name: why
                for submodel, recipe in zip(run.menu, recipes, strict=True)
                if (why := run.graphs.explain_absence(profile, submodel, recipe))
            },
        )
        for name, profile in profiles.items()
    ]

    choose = decisions.ask_method(run.method, state, run.config.seed)
    recipe = recipes[-1]
    verdicts = {
        verdict.decision.agent: verdict
        for verdict in decisions.decide(
            run.menu, recipe, candidates, run.config, choose, run.decisions
        )
    }
    unable = {
        name: verdict.decision.reason
        for name, verdict in verdicts.items()
        if verdict.submodel is None
    }
    for name, reason in unable.items():
        if reason != run.decisions.unable.get(name):  # not in each round
            log.warning("%s is not selected: %s", name, reason)
        standings[name] = count_round(standings[name])
    run.decisions.unable = unable
    return verdicts, standings


def draw_agents(
    run: RunContext, number: int, able: Mapping[str, Submodel], wanted: int, busy: Set[str]
) -> dict[str, Submodel]:
    """Draw the agents of a round from those that can train.

    wanted: number of agents that should be at work.
    busy: agents still at work on earlier rounds; in buffered mode they count toward `wanted`.
    """
    at_work = len(busy & able.keys()) if run.config.fleet.mode == "buffered" else 0
    names = draw_names(
        sorted(able.keys() - busy),
        max(0, wanted - at_work),
        make_generator(run.config.seed, 1, number),
    )
    return {name: able[name] for name in names}


def raise_unable(run: RunContext, state: State, verdicts: Mapping[str, Verdict]) -> NoReturn:
    """Raise FleetError with the reasons why no agent can train."""
    reasons = "; ".join(f"{name}: {verdict.decision.reason}" for name, verdict in verdicts.items())
    if any(offer.fits for verdict in verdicts.values() for offer in verdict.offers):
        raise FleetError(f"no agent can train now, although submodels fit: {reasons}")
    smallest = cost(run.menu[0], run.method.recipe(state, run.menu[0]).batch)
    raise FleetError(
        f"no submodel fits any agent: the smallest, {run.menu[0].name}, needs "
        f"{smallest.memory // 10**6} MB to train, and training may use "
        f"{run.config.assign.memory:.0%} of an agent's memory; set method.widths to smaller "
        f"fractions, or lower train.batch; {reasons}"
    )


def record_decisions(
    run: RunContext,
    number: int,
    verdicts: Mapping[str, Verdict],
    chosen: Mapping[str, Submodel],
    busy: Set[str],
) -> None:
    """Store the decision about each agent, with its reason, before the round begins. Raises
    StoreError.
    """
    made: dict[str, Decision] = decisions.decide_absent(
        {
            a.name: a.absence or a.explain_rest("train", number) or BUSY
            for a in run.fleet.agents.values()
            if a.name not in verdicts
        }
    )
    for name, verdict in verdicts.items():
        if name in chosen or verdict.submodel is None:
            made[name] = verdict.decision
        elif name in busy:
            made[name] = decisions.mark_undrawn(verdict.decision, BUSY)
        else:
            why = f"not sampled (fleet.fraction = {run.config.fleet.fraction:g})"
            made[name] = decisions.mark_undrawn(verdict.decision, why)
    profiles = {a.name: a.profile for a in run.fleet.agents.values() if a.profile is not None}
    run.store.agents.write_decisions(number, made, profiles)
