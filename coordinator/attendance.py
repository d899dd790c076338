"""The time before a round: people may have paused the run, and agents have to come."""

from __future__ import annotations

import logging
import time

from coordinator.context import RunContext
from coordinator.fleet import Fleet
from coordinator.observe.events import AgentsAwaited, Publish, RunPaused
from coordinator.run.round import Agent
from coordinator.store import Store
from federated.errors import FleetError
from federated.task import Profile

__all__ = ["await_agents", "await_others", "await_round"]

log = logging.getLogger(__name__)

TURN = 0.2  # seconds between looks
AGAIN = 60.0  # seconds after which the run's card is published again, for a broker that lost it
SHORTEST, MOST = 15.0, 6  # seconds between a round that brought no update and the next one; they double with each, so many times at most


def await_round(run: RunContext) -> None:
    """Return when nobody wants a pause and enough agents are there. Raises FleetError where they do not come.

    After rounds without any update it waits, longer each time, since what kept agents from working may pass.
    """
    config, fleet = run.config.fleet, run.fleet
    empty = count_empty(run.store) if fleet.round.rules.leases else 0
    until = fleet.clock() + (SHORTEST * 2 ** (empty - 1) if empty else 0.0)
    while fleet.clock() < until:
        run.publish(RunPaused())
        fleet.turn(TURN)
    while True:
        while run.helm.paused:  # agents stay, and are heard
            run.publish(RunPaused())
            fleet.turn(TURN)
        await_agents(fleet, config.min_agents, config.wait, run.publish)
        if not run.helm.paused:  # nobody asked for a pause while agents were awaited
            return


def await_others(run: RunContext, error: FleetError, since: float) -> None:
    """Return when other agents are ready than those that cannot train. One that says that it has no memory must not end a run of others.

    error: why they cannot; raised again where others do not come within the configured limit, or where nobody else can come.
    since: when waiting began, in the coordinator's seconds.
    """
    fleet, limit = run.fleet, run.config.fleet.wait
    if not fleet.round.rules.leases:
        raise error
    log.warning("waiting for other agents: %s", error)
    unable, told = measured(fleet), fleet.clock()
    while measured(fleet) == unable and fleet.clock() - told < AGAIN:  # one that failed may try again after a while
        if limit and fleet.clock() - since > limit:
            raise error
        run.publish(RunPaused())
        fleet.turn(TURN)
    await_round(run)


def measured(fleet: Fleet) -> dict[str, Profile | None]:
    """The agents that are ready, with what they measured."""
    return {agent.name: agent.profile for agent in fleet.ready()}


def await_agents(fleet: Fleet, wanted: int, limit: float, publish: Publish) -> list[Agent]:
    """Return the agents that are ready, as soon as there are `wanted`. Raises FleetError when they do not come within `limit` seconds (0: ever)."""
    start = told = time.monotonic()
    while len(ready := fleet.ready()) < wanted:
        now = time.monotonic()
        if now - told > AGAIN:
            told = now
            fleet.endpoint.publish(fleet.run)
        waited = now - start
        if limit and waited > limit:
            raise FleetError(f"{len(ready)} of {wanted} agents after {waited:.0f} s: {describe_absence(fleet) or 'no others came'}")
        publish(AgentsAwaited(len(ready), wanted))
        fleet.turn(TURN)
    return ready


def count_empty(store: Store) -> int:
    """How many rounds in a row, up to the last one, brought no update; at most so many as matter."""
    done, empty = store.rounds_done, 0
    while empty < min(done, MOST) and not any(entry.outcome == "folded" for entry in store.entries(done - empty)):
        empty += 1
    return empty


def describe_absence(fleet: Fleet) -> str:
    """Why the agents that came cannot be asked."""
    return "; ".join(f"{a.name} {'was ' if a.refused else ''}{a.absence}" for a in fleet.agents.values() if a.absence)
