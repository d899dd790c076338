"""Agents that waste the time of others: mute ones, ones that come and go, ones that claim too much
or too little, ones that repeat themselves.
"""

from __future__ import annotations

import dataclasses
import math

import pytest

from coordinator.round import actions as do
from coordinator.round import round_events as on
from coordinator.round.round import Wasted
from coordinator.round.rules import FIRST, LEAST, SLACK
from coordinator.round.task_state import Planned
from tests.support.machine import OTHER, SUBMODEL, Machine, task


def mute(made: Machine, round: int, work: str = "train") -> float:
    """A phase in which agent `a` stays silent about its work and `b` delivers at once; the seconds
    that it lasts.
    """
    tasks = tuple(Planned(task(name, round, work), 2.0) for name in "ab")
    began = made.now
    made.see(on.PhaseBegan(began, work, round, tasks, 1e6, 2))  # type: ignore[arg-type]
    made.see(on.UpdateCame(made.now, task("b", round, work).key, 1, "t", "d" * 64, 0.5))
    while not made.closing:
        made.stay("a", 1.0)
        made.beat("b")
    return made.now - began


def test_a_mute_agent_sits_out_ever_more_rounds() -> None:
    made, asked, cost = Machine(agents="ab"), list[int](), 0.0
    for round in range(1, 41):
        if not made.round.agents["a"].resting("train", round):
            asked.append(round)
            cost += mute(made, round)
    assert asked == [1, 3, 6, 11, 20, 37]
    assert cost == pytest.approx(FIRST + LEAST * (2 + 4 + 8 + 16 + 16), abs=12)
    assert not made.round.agents["a"].resting("evaluate", 38), "of other work nothing is known"


def test_an_update_ends_the_rest_of_an_agent() -> None:
    made = Machine(agents="ab")
    mute(made, 1)
    assert (
        made.round.agents["a"].resting("train", 2)
        == "its last 1 tasks timed out, so it sits out until round 2"
    )
    made.begin("a")
    made.arrive("a")
    assert not made.round.agents["a"].resting("train", 2)


def test_several_tasks_that_time_out_in_a_phase_count_once_and_not_if_one_was_answered() -> None:
    made = Machine(agents="a")
    tasks = tuple(
        Planned(dataclasses.replace(task("a", work="evaluate"), submodel=s), 2.0)
        for s in (SUBMODEL, OTHER)
    )
    made.see(on.PhaseBegan(0.0, "evaluate", 1, tasks, 600.0, 2))
    made.stay("a", FIRST + 1)
    assert made.round.agents["a"].wasted == {"evaluate": Wasted(1, 1)}
    made.see(on.PhaseBegan(made.now, "evaluate", 2, tasks, 600.0, 2))
    made.see(on.UpdateCame(made.now, tasks[0].task.key, 1, "t", "d" * 64, math.nan))
    made.stay("a", FIRST + 1)
    assert made.round.agents["a"].wasted == {}


def test_an_agent_that_goes_and_comes_back_again_and_again_does_not_keep_a_phase_open() -> None:
    made = Machine(agents="ab")
    made.begin("ab", 5.0)
    made.arrive("b")
    until = made.now + 4 * FIRST
    while made.now < until + 2 and not made.closing:
        made.leave("a")
        made.now += 0.6
        made.see(on.AgentConnected(made.now, "a", "s"))
        made.wait(0.6)
        made.beat("b")
    assert made.closing == "nobody left"
    assert made.now <= until + 2


def test_no_claim_of_one_agent_shortens_the_lease_of_another_that_was_measured() -> None:
    made = Machine(agents="ab")
    tasks = tuple(
        Planned(task(name), seconds) for name, seconds in zip("ab", (1e-3, 300.0), strict=True)
    )
    made.see(on.PhaseBegan(0.0, "train", 1, tasks, 1e9, 2))
    for name, took in (("a", 1.0), ("b", 300.0)):
        made.now = took
        made.arrive(name)
    tasks = tuple(Planned(dataclasses.replace(one.task, round=2), one.seconds) for one in tasks)
    made.see(on.PhaseBegan(made.now, "train", 2, tasks, 1e9, 2))
    assert made.of("b").task.lease == SLACK * 300.0


def test_a_beat_or_a_reconnect_makes_an_agent_hear_its_task_again_but_not_at_any_rate() -> None:
    made = Machine(agents="a")
    made.begin("a")
    out = [
        a
        for i in range(100)
        for a in made.see(on.AgentBeat(i * 0.1, "a", "s", "idle", math.nan, 0))
    ]
    assert sum(isinstance(a, do.Ask) for a in out) == 3
    out = [a for i in range(100) for a in made.see(on.AgentConnected(10.0 + i * 0.1, "a", f"s{i}"))]
    assert sum(isinstance(a, do.Ask) for a in out) <= 10


def test_offers_and_failures_that_nobody_asked_for_change_nothing() -> None:
    made = Machine(agents="a")
    made.begin("a")
    before = made.round
    made.see(on.TaskFailed(5.0, task("a", 9).key, 1, "no"))
    assert made.round is before
