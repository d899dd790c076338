"""What a round gives to whom: a verdict for each agent that is there, a draw among those that can train, and a record of why."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

from coordinator import decisions
from coordinator.agent import Agent
from coordinator.decisions import Candidate, Decision
from coordinator.selection import generator, select
from coordinator.standing import Standing, measured_anew, waited
from federated.errors import FleetError
from federated.method import State
from models.cost import cost
from models.submodel import Submodel

if TYPE_CHECKING:
    from coordinator.rounds import Run

__all__ = ["assign", "choose", "record"]

log = logging.getLogger(__name__)


def assign(run: Run, state: State, agents: Sequence[Agent], number: int) -> dict[str, Submodel]:
    """The method's choice for each agent, among what it can afford; what the configuration pins, where it does."""
    run.standings.update({a.name: measured_anew(run.standings.get(a.name, Standing()), a.profile) for a in agents if a.profile is not None})
    candidates = [
        Candidate(a.name, a.profile, run.standings[a.name], run.assigned.get(a.name), run.pinned(a.name)) for a in agents if a.profile is not None
    ]

    def choice(index: int, candidate: Candidate, can: Sequence[Submodel]) -> Submodel:
        return run.method.assign(state, candidate.profile, can, generator(run.config.seed, 2, number, index))

    recipe = run.method.recipe(state, run.menu[-1])
    made = decisions.decide(run.menu, recipe, candidates, run.config.assign, run.config.fleet.deadline, choice)
    run.verdicts = {verdict.decision.agent: verdict for verdict in made}
    for name, verdict in run.verdicts.items():
        if verdict.submodel is None:
            log.warning("%s is left out: %s", name, verdict.decision.reason)
            run.standings[name] = waited(run.standings[name])
    return {name: verdict.submodel for name, verdict in run.verdicts.items() if verdict.submodel is not None}


def choose(run: Run, state: State, able: Mapping[str, Submodel], number: int, wanted: int, busy: Set[str] = frozenset()) -> dict[str, Submodel]:
    """Which of the agents that can train do so in this round. Raises FleetError when no agent can hold any submodel.

    wanted: how many. busy: those at work on earlier rounds; where rounds do not wait, they count.
    """
    at_work = len(busy & able.keys()) if run.config.fleet.mode == "buffered" else 0
    names = select(sorted(able.keys() - busy), max(0, wanted - at_work), generator(run.config.seed, 1, number))
    assigned = {name: able[name] for name in names}
    if not able:
        reasons = "; ".join(f"{name}: {verdict.decision.reason}" for name, verdict in run.verdicts.items())
        if any(offer.fits for verdict in run.verdicts.values() for offer in verdict.offers):
            raise FleetError(f"no agent can be given anything: {reasons}")
        smallest = cost(run.menu[0], run.method.recipe(state, run.menu[0]).batch)
        raise FleetError(
            f"no agent can hold a submodel: the smallest, {run.menu[0].name}, needs {smallest.memory // 10**6} MB to train and "
            f"{run.config.assign.memory:.0%} of an agent's memory may be filled; {reasons}"
        )
    run.assigned.update(assigned)
    return assigned


def record(run: Run, number: int, chosen: Mapping[str, Submodel], busy: Set[str] = frozenset()) -> None:
    """Keeps what was decided of every agent that the run knows, and why, before the round is under way."""
    made: dict[str, Decision] = decisions.absent({a.name: a.absence for a in run.fleet.agents.values() if a.name not in run.verdicts})
    for name, verdict in run.verdicts.items():
        drawn = name in chosen or verdict.submodel is None
        why = "at work on an earlier round" if name in busy else f"not drawn (fraction {run.config.fleet.fraction:g})"
        made[name] = verdict.decision if drawn else decisions.undrawn(verdict.decision, why)
    profiles = {a.name: a.profile for a in run.fleet.agents.values() if a.profile is not None}
    run.store.ledger.decided(number, made, profiles)
