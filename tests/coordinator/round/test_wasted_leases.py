"""Agents that waste time: silent ones, ones that come and go, false claims, repeated messages."""

from __future__ import annotations

import dataclasses
import math

import pytest
from msgspec.structs import replace

from coordinator.round import round_actions as do
from coordinator.round import round_events as on
from coordinator.round.leases import FIRST_LEASE, MIN_LEASE, SLACK
from coordinator.round.round_state import HEARTBEATS, Wasted
from coordinator.round.task_state import MAX_LEASES, Planned
from tests.support.round_state_machine import OTHER, SUBMODEL, Machine, task


def run_phase(machine: Machine, round: int, work: str = "train") -> float:
    """Run a phase in which agent `a` shows no progress and `b` delivers at once. Return its
    seconds.
    """
    tasks = tuple(Planned(task(name, round, work), 2.0) for name in "ab")
    began = machine.now
    machine.see(on.PhaseBegan(began, work, round, tasks, 1e6, 2))  # type: ignore[arg-type]
    machine.see(on.UpdateCame(machine.now, task("b", round, work).key, 1, "t", "d" * 64, 0.5))
    while not machine.closing:
        machine.stay("a", 1.0)
        machine.beat("b")
    return machine.now - began


def test_an_agent_without_progress_sits_out_more_and_more_rounds() -> None:
    machine, asked, cost = Machine(agents="ab"), list[int](), 0.0
    for round in range(1, 41):
        if not machine.round.agents["a"].explain_rest("train", round):
            asked.append(round)
            cost += run_phase(machine, round)
    assert asked == [1, 3, 6, 11, 20, 37]
    assert cost == pytest.approx(FIRST_LEASE + MIN_LEASE * (2 + 4 + 8 + 16 + 16), abs=12)
    assert not machine.round.agents["a"].explain_rest("evaluate", 38), "other work is counted apart"


def test_an_update_ends_the_rest_of_an_agent() -> None:
    machine = Machine(agents="ab")
    run_phase(machine, 1)
    assert (
        machine.round.agents["a"].explain_rest("train", 2)
        == "1 task timed out, so it is not selected until round 2"
    )
    machine.begin("a")
    machine.arrive("a")
    assert not machine.round.agents["a"].explain_rest("train", 2)


def test_expired_leases_count_once_per_phase_and_not_after_an_update() -> None:
    machine = Machine(agents="a")
    tasks = tuple(
        Planned(dataclasses.replace(task("a", work="evaluate"), submodel=s), 2.0)
        for s in (SUBMODEL, OTHER)
    )
    machine.see(on.PhaseBegan(0.0, "evaluate", 1, tasks, 600.0, 2))
    machine.stay("a", FIRST_LEASE + 1)
    assert machine.round.agents["a"].wasted == {"evaluate": Wasted(1, 1)}
    machine.see(on.PhaseBegan(machine.now, "evaluate", 2, tasks, 600.0, 2))
    machine.see(on.UpdateCame(machine.now, tasks[0].task.key, 1, "t", "d" * 64, math.nan))
    machine.stay("a", FIRST_LEASE + 1)
    assert machine.round.agents["a"].wasted == {"evaluate": Wasted(1, 1, delivered=True)}
    assert not machine.round.agents["a"].suspect


def test_an_agent_that_keeps_reconnecting_does_not_keep_a_phase_open() -> None:
    machine = Machine(agents="ab").begin("ab", 5.0)
    machine.arrive("b")
    until = machine.now + 4 * FIRST_LEASE
    while machine.now < until + 2 and not machine.closing:
        machine.leave("a")
        machine.now += 0.6
        machine.see(on.AgentConnected(machine.now, "a", "s"))
        machine.wait(0.6)
        machine.beat("b")
    assert machine.closing == "no agents left"
    assert machine.now <= until + 2


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("period", [1.0, 5.0, 19.0])
def test_an_agent_that_comes_and_goes_becomes_a_suspect(period: float, restarts: bool) -> None:
    """Its absences do not excuse it, and its restarts count once as progress."""
    machine = Machine(agents="ab").begin("ab", 5.0)
    machine.arrive("b")
    began, session = machine.now, 0
    while not machine.closing:
        machine.see(on.AgentLeft(machine.now, "a", f"s{session or ''}", "went away"))
        machine.wait(period)
        machine.beat("b")
        session += restarts
        machine.see(on.AgentConnected(machine.now, "a", f"s{session or ''}"))
    assert machine.now - began <= 2 * FIRST_LEASE + period
    assert machine.round.agents["a"].suspect


@pytest.mark.parametrize("seconds", [FIRST_LEASE - 19, MAX_LEASES * FIRST_LEASE - 1])
def test_an_agent_that_leaves_after_it_was_waited_for_becomes_a_suspect(seconds: float) -> None:
    machine = Machine(agents="ab").begin("ab", 5.0)
    machine.arrive("b")
    for _ in range(int(seconds)):
        machine.beat("a", step=int(machine.now))
        machine.beat("b")
        machine.wait(1.0)
    machine.leave("a")
    while not machine.closing:
        machine.beat("b")
        machine.wait(1.0)
    assert machine.now <= seconds + 22
    assert machine.round.agents["a"].suspect


def test_an_agent_absent_at_the_deadlines_becomes_a_suspect() -> None:
    machine = Machine(agents="ab")
    for number in (1, 2):
        tasks = tuple(Planned(task(name, number), 2.0) for name in "ab")
        machine.see(on.PhaseBegan(machine.now, "train", number, tasks, 40.0, 2))
        machine.arrive("b", number)
        for _ in range(4):
            machine.wait(9.5)
            machine.leave("a")
            machine.wait(0.5)
            machine.beat("b")
            if not machine.closing:
                machine.see(on.AgentConnected(machine.now, "a", "s"))
        assert machine.closing
        assert machine.round.agents["a"].suspect == (number == 2)


def test_losses_of_the_network_within_the_lease_are_excused() -> None:
    machine = Machine(agents="abc").begin("ab", 5.0)
    for seconds in (1.0, 1.0, 25.0):
        machine.wait(3.0)
        machine.leave("a")
        machine.wait(seconds)
        machine.beat("b", step=int(machine.now))
        machine.see(on.AgentConnected(machine.now, "a", "s"))
    assert not machine.of("a").late
    assert not machine.round.agents["a"].wasted
    machine.leave("a")
    machine.arrive("b")
    machine.wait(21.0)
    assert machine.closing == "no agents left"
    assert not machine.round.agents["a"].wasted


def test_a_claim_does_not_shorten_the_lease_of_another_measured_agent() -> None:
    machine = Machine(agents="ab")
    tasks = tuple(
        Planned(task(name), seconds) for name, seconds in zip("ab", (1e-3, 300.0), strict=True)
    )
    machine.see(on.PhaseBegan(0.0, "train", 1, tasks, 1e9, 2))
    for name, now in (("a", 1.0), ("b", 300.0)):
        machine.now = now
        machine.arrive(name)
    tasks = tuple(Planned(dataclasses.replace(one.task, round=2), one.seconds) for one in tasks)
    machine.see(on.PhaseBegan(machine.now, "train", 2, tasks, 1e9, 2))
    assert machine.of("b").task.lease == SLACK * 300.0


def test_an_idle_agent_is_reminded_less_and_less_often() -> None:
    machine = Machine(agents="a").begin("a")
    reminded = [
        i
        for i in range(60)
        for a in machine.see(on.AgentBeat(float(i), "a", "s", "idle", math.nan, 0))
        if isinstance(a, do.Ask)
    ]
    assert reminded == [4, 9, 19, 39]


def test_an_agent_of_a_large_fleet_is_not_reminded_while_its_last_heartbeat_may_wait() -> None:
    names = [f"a{number}" for number in range(20 * HEARTBEATS)]
    machine = Machine(agents=names).begin(names)
    beat = on.AgentBeat(20.0, "a0", "s", "idle", math.nan, 0)
    assert not any(isinstance(action, do.Ask) for action in machine.see(beat))
    later = replace(beat, now=24.0)
    assert any(isinstance(action, do.Ask) for action in machine.see(later))


def test_a_reconnected_agent_is_reminded_at_a_limited_rate() -> None:
    machine = Machine(agents="a").begin("a")
    out = [
        a for i in range(100) for a in machine.see(on.AgentConnected(10.0 + i * 0.1, "a", f"s{i}"))
    ]
    assert sum(isinstance(a, do.Ask) for a in out) <= 10


def test_a_failure_of_an_unknown_task_changes_nothing() -> None:
    machine = Machine(agents="a").begin("a")
    before = machine.round
    machine.see(on.TaskFailed(5.0, task("a", 9).key, 1, "no"))
    assert machine.round is before


def test_an_upload_that_drips_ends_with_its_lease_and_is_not_waited_for_again() -> None:
    """A chunk every 20 seconds counts as progress, up to the maximum of the lease."""
    machine = Machine(agents="ab").begin("ab", 2.0)
    machine.arrive("b")
    while not machine.closing:
        machine.now += 20.0
        for name in "ab":
            machine.beat(name, state="send" if name == "a" else "idle")
        machine.see(on.ChunkCame(machine.now, task("a").key))
        machine.wait(0.0)
    assert machine.now <= MAX_LEASES * FIRST_LEASE + 20.0
    assert machine.round.agents["a"].suspect
