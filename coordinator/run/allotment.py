"""What a round gives to whom: a verdict for each agent that is there, a draw among those that can
train, and a record of why.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from typing import NoReturn

from coordinator.assign import decisions
from coordinator.assign.decision_record import Decision
from coordinator.assign.decisions import Candidate, Verdict
from coordinator.assign.selection import generator, select
from coordinator.assign.standing import Standing, measured_anew, waited
from coordinator.phases.context import RunContext
from coordinator.phases.fleet_history import FleetHistory
from coordinator.round.round import Agent
from federated.errors import FleetError
from federated.method import State
from models.cost import cost
from models.submodel import Submodel

__all__ = ["draw_agents", "judge_agents", "raise_unable", "record_decisions"]

log = logging.getLogger(__name__)


def judge_agents(
    run: RunContext, state: State, history: FleetHistory, agents: Sequence[Agent]
) -> tuple[dict[str, Verdict], dict[str, Standing]]:
    """A verdict and the standing of each agent: the method's choice among what the agent can
    afford, or what the configuration pins.
    """
    profiles = {agent.name: agent.profile for agent in agents if agent.profile is not None}
    standings = {
        name: measured_anew(history.standings.get(name, Standing()), profile)
        for name, profile in profiles.items()
    }
    candidates = [
        Candidate(name, profile, standings[name], history.assigned.get(name), run.pinned(name))
        for name, profile in profiles.items()
    ]

    def choose(index: int, candidate: Candidate, can: Sequence[Submodel]) -> Submodel:
        return run.method.assign(
            state, candidate.profile, can, generator(run.config.seed, 2, state.round + 1, index)
        )

    recipe = run.method.recipe(state, run.menu[-1])
    made = decisions.decide(run.menu, recipe, candidates, run.config, choose)
    for verdict in made:
        if verdict.submodel is None:
            name = verdict.decision.agent
            log.warning("%s is left out: %s", name, verdict.decision.reason)
            standings[name] = waited(standings[name])
    return {verdict.decision.agent: verdict for verdict in made}, standings


def draw_agents(
    run: RunContext, number: int, able: Mapping[str, Submodel], wanted: int, busy: Set[str]
) -> dict[str, Submodel]:
    """Draw the agents that train in a round, of those that can.

    wanted: how many agents are to be at work. busy: those at work on earlier rounds; where rounds
    do not wait, they count.
    """
    at_work = len(busy & able.keys()) if run.config.fleet.mode == "buffered" else 0
    names = select(
        sorted(able.keys() - busy), max(0, wanted - at_work), generator(run.config.seed, 1, number)
    )
    return {name: able[name] for name in names}


def raise_unable(run: RunContext, state: State, verdicts: Mapping[str, Verdict]) -> NoReturn:
    """Raise FleetError that says why no agent can be given a submodel."""
    reasons = "; ".join(f"{name}: {verdict.decision.reason}" for name, verdict in verdicts.items())
    if any(offer.fits for verdict in verdicts.values() for offer in verdict.offers):
        raise FleetError(f"no agent can be given anything: {reasons}")
    smallest = cost(run.menu[0], run.method.recipe(state, run.menu[0]).batch)
    raise FleetError(
        f"no agent can hold a submodel: the smallest, {run.menu[0].name}, needs "
        f"{smallest.memory // 10**6} MB to train and "
        f"{run.config.assign.memory:.0%} of an agent's memory may be filled; {reasons}"
    )


def record_decisions(
    run: RunContext,
    number: int,
    verdicts: Mapping[str, Verdict],
    chosen: Mapping[str, Submodel],
    busy: Set[str],
) -> None:
    """Write what was decided of every agent that the run knows, and why, before the round begins.
    Raises StoreError.
    """
    made: dict[str, Decision] = decisions.absent(
        {
            a.name: a.absence or a.resting("train", number)
            for a in run.fleet.agents.values()
            if a.name not in verdicts
        }
    )
    for name, verdict in verdicts.items():
        drawn = name in chosen or verdict.submodel is None
        why = (
            "at work on an earlier round"
            if name in busy
            else f"not drawn (fraction {run.config.fleet.fraction:g})"
        )
        made[name] = verdict.decision if drawn else decisions.undrawn(verdict.decision, why)
    profiles = {a.name: a.profile for a in run.fleet.agents.values() if a.profile is not None}
    run.store.agents.write_decisions(number, made, profiles)
