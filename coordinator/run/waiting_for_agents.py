"""Wait before a round until the run is not paused and enough agents can train."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from coordinator.fleet.message_loop import MessageLoop
from coordinator.fleet.run_clock import TimeShare
from coordinator.observe.events import AgentsAwaited, Publish, RoundDelayed, RunPaused
from coordinator.phases.run_context import RunContext
from coordinator.round.round_state import Agent, RoundPlan
from coordinator.store.run_store import Store
from federated.errors import FleetError
from federated.runtime.unit_formatting import format_count

__all__ = ["wait_before_round", "wait_for_agents", "wait_for_plan"]

POLL = 0.2  # seconds
REPUBLISH = 60.0  # seconds after which the run's card is published again, if a broker lost it
# seconds before the round after one without updates; they double with each, MAX_EMPTY times at most
MIN_DELAY, MAX_EMPTY = 15.0, 6


def wait_before_round(run: RunContext) -> None:
    """Wait until the run is not paused and enough agents are ready. Raises FleetError if they do
    not come.

    After rounds without updates, wait longer each time, since the cause may pass.
    """
    config, fleet = run.config.fleet, run.fleet
    empty = count_empty(run.store) if fleet.round.rules.timeouts else 0
    until = fleet.clock() + (MIN_DELAY * 2 ** (empty - 1) if empty else 0.0)
    while fleet.clock() < until:
        run.publish(RoundDelayed("no update in the last round; delaying the next one"))
        fleet.turn(POLL)
    while True:
        while run.control.paused:  # agents stay connected
            run.publish(RunPaused())
            fleet.turn(POLL)
        request = partial(run.request_graphs, run.recipes)
        wait_for_agents(fleet, config.min_agents, config.wait, run.publish, request)
        if not run.control.paused:  # it may be paused while waiting for agents
            return


def wait_for_plan(run: RunContext, plan: Callable[[], RoundPlan]) -> RoundPlan:
    """Wait until a ready agent can train, and return the plan of the round. An agent that claims to
    have no memory must not end a run of others.

    plan: plans the round with the ready agents, or raises FleetError if none can train. It is tried
        again when another agent comes or is free, when training graphs were exported, and each
        minute. The error is raised if no such agent comes within `fleet.wait` seconds, or can come,
        as in a simulation, and no export is in progress.
    """
    fleet, limit = run.fleet, run.config.fleet.wait
    since = fleet.clock()
    while True:
        exported = run.graphs.finished
        try:
            return plan()
        except FleetError as error:
            over = not fleet.round.rules.timeouts or (limit and fleet.clock() - since > limit)
            if over and not run.graphs.waiting and run.graphs.finished == exported:
                raise
            why = str(error)
        unable, share = {agent.name for agent in fleet.list_free()}, TimeShare(time.monotonic)
        until, able = fleet.clock() + min(REPUBLISH, limit or REPUBLISH), False
        while run.control.paused or (
            fleet.clock() < until and run.graphs.finished == exported and not able
        ):
            run.publish(RunPaused() if run.control.paused else RoundDelayed(why))
            fleet.turn(min(POLL, share.pause or POLL))
            if not share.pause:
                with share.spend():
                    able = not unable.issuperset(agent.name for agent in fleet.list_free())
        # without its card, which a broker may lose, no agent can join the run
        fleet.endpoint.publish(fleet.run)
        wait_for_agents(fleet, run.config.fleet.min_agents, limit, run.publish)


def wait_for_agents(
    fleet: MessageLoop,
    wanted: int,
    limit: float,
    publish: Publish,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[Agent]:
    """Wait for `wanted` ready agents, and return all ready ones. Raises FleetError if they do not
    come within `limit` seconds (0: no limit). meanwhile: called while it waits.
    """
    start = published = time.monotonic()
    share = TimeShare(time.monotonic)
    while True:
        if not share.pause:  # not after each message: it looks at every agent
            with share.spend():
                if len(ready := fleet.list_ready()) >= wanted:
                    return ready
                publish(AgentsAwaited(len(ready), wanted))
                meanwhile()
        now = time.monotonic()
        if now - published > REPUBLISH:
            published = now
            fleet.endpoint.publish(fleet.run)
        waited = now - start
        if limit and waited > limit:
            raise FleetError(
                f"expected {format_count(wanted, 'agent')}, found {len(ready)} after "
                f"{waited:.0f} s: "
                f"{describe_absence(fleet) or 'no others connected'}"
            )
        fleet.turn(min(POLL, share.pause or POLL))


def count_empty(store: Store) -> int:
    """Return the number of consecutive rounds without updates up to the last one, at most
    `MAX_EMPTY`.
    """
    done, empty = store.rounds_done, 0
    while empty < min(done, MAX_EMPTY) and not any(
        entry.outcome == "folded" for entry in store.read_entries(done - empty)
    ):
        empty += 1
    return empty


def describe_absence(fleet: MessageLoop) -> str:
    """Return the reasons why agents cannot be asked."""
    return "; ".join(
        f"{a.name} {'was ' if a.refused else ''}{a.absence}"
        for a in fleet.agents.values()
        if a.absence
    )
