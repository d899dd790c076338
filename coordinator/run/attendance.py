"""The time before a round: people may have paused the run, and agents have to come."""

from __future__ import annotations

import time
from collections.abc import Callable

from coordinator.fleet.fleet import Fleet
from coordinator.observe.events import AgentsAwaited, Publish, RoundDelayed, RunPaused
from coordinator.phases.context import RunContext
from coordinator.round.plan import RoundPlan
from coordinator.round.round import Agent
from coordinator.store.store import Store
from federated.errors import FleetError

__all__ = ["await_able", "await_agents", "await_round"]

TURN = 0.2  # seconds between looks
AGAIN = 60.0  # seconds after which the run's card is published again, for a broker that lost it
# seconds between a round that brought no update and the next one; they double with each, so many
# times at most
SHORTEST, MOST = 15.0, 6


def await_round(run: RunContext) -> None:
    """Return when nobody wants a pause and enough agents are there. Raises FleetError where they do
    not come.

    After rounds without any update it waits, longer each time, since what kept agents from working
    may pass.
    """
    config, fleet = run.config.fleet, run.fleet
    empty = count_empty(run.store) if fleet.round.rules.leases else 0
    until = fleet.clock() + (SHORTEST * 2 ** (empty - 1) if empty else 0.0)
    while fleet.clock() < until:
        run.publish(
            RoundDelayed("the last round brought no update, so the next one begins a little later")
        )
        fleet.turn(TURN)
    while True:
        while run.control.paused:  # agents stay, and are heard
            run.publish(RunPaused())
            fleet.turn(TURN)
        await_agents(fleet, config.min_agents, config.wait, run.publish)
        if not run.control.paused:  # nobody asked for a pause while agents were awaited
            return


def await_able(run: RunContext, plan: Callable[[], RoundPlan]) -> RoundPlan:
    """The plan of a round, as soon as one of the agents that are ready can train: one that claims
    to have no memory must not end a run of others.

    plan: makes it from the agents that are ready, or raises FleetError that says why none can
    train. It is tried again when another agent comes, and each minute. Raises that error where none
    comes within the configured limit, or where none can come, as in a simulation.
    """
    fleet, limit = run.fleet, run.config.fleet.wait
    since = fleet.clock()
    while True:
        try:
            return plan()
        except FleetError as error:
            if not fleet.round.rules.leases or (limit and fleet.clock() - since > limit):
                raise
            why = str(error)
        unable, again = (
            {agent.name for agent in fleet.ready()},
            fleet.clock() + (min(AGAIN, limit) if limit else AGAIN),
        )
        while run.control.paused or (
            fleet.clock() < again and unable.issuperset(agent.name for agent in fleet.ready())
        ):
            run.publish(RunPaused() if run.control.paused else RoundDelayed(why))
            fleet.turn(TURN)
        # a broker may have lost the card, so that nobody else can join
        fleet.endpoint.publish(fleet.run)
        await_agents(fleet, run.config.fleet.min_agents, limit, run.publish)


def await_agents(fleet: Fleet, wanted: int, limit: float, publish: Publish) -> list[Agent]:
    """Return the agents that are ready, as soon as there are `wanted`. Raises FleetError when they
    do not come within `limit` seconds (0: ever).
    """
    start = told = time.monotonic()
    while len(ready := fleet.ready()) < wanted:
        now = time.monotonic()
        if now - told > AGAIN:
            told = now
            fleet.endpoint.publish(fleet.run)
        waited = now - start
        if limit and waited > limit:
            raise FleetError(
                f"{len(ready)} of {wanted} agents after {waited:.0f} s: "
                f"{describe_absence(fleet) or 'no others came'}"
            )
        publish(AgentsAwaited(len(ready), wanted))
        fleet.turn(TURN)
    return ready


def count_empty(store: Store) -> int:
    """How many rounds in a row, up to the last one, brought no update; at most so many as
    matter.
    """
    done, empty = store.rounds_done, 0
    while empty < min(done, MOST) and not any(
        entry.outcome == "folded" for entry in store.entries(done - empty)
    ):
        empty += 1
    return empty


def describe_absence(fleet: Fleet) -> str:
    """Why the agents that came cannot be asked."""
    return "; ".join(
        f"{a.name} {'was ' if a.refused else ''}{a.absence}"
        for a in fleet.agents.values()
        if a.absence
    )
