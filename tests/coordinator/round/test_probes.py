"""Tasks of suspects: no phase waits for them, and a slow device is readmitted."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from coordinator.round import round_actions as do
from coordinator.round import round_events as on
from coordinator.round.leases import FIRST_LEASE, GROWTH_CAP, MIN_LEASE, SLACK
from coordinator.round.round_state import Pace, Rules, Wasted, list_tasks
from coordinator.round.task_state import Planned
from tests.support.round_state_machine import Machine, task
from tests.support.scripted_agent import PROFILE


def begin(machine: Machine, round: int, work: str = "train", probed: str = "a") -> None:
    """Begin a phase with agents `a` and `b`."""
    tasks = tuple(Planned(task(name, round, work), 2.0, name in probed) for name in "ab")
    quorum = sum(not one.probe for one in tasks)
    machine.see(on.PhaseBegan(machine.now, work, round, tasks, 1e6, quorum))  # type: ignore[arg-type]


def deliver(machine: Machine, agent: str, round: int, work: str = "train") -> list[do.Action]:
    key = task(agent, round, work).key
    return machine.see(on.UpdateCame(machine.now, key, 1, "t", "d" * 64, 0.5))


def make_suspect(work: str = "train") -> Machine:
    """Return a machine after a first phase in which `a` wasted its lease."""
    machine = Machine(agents="ab")
    begin(machine, 1, work, probed="")
    deliver(machine, "b", 1, work)
    machine.stay("a", FIRST_LEASE + 1)
    assert machine.closing
    assert machine.round.agents["a"].suspect
    return machine


@pytest.mark.parametrize("work", ["train", "calibrate", "evaluate"])
def test_no_phase_waits_for_a_silent_suspect(work: str) -> None:
    machine, waited, asked = make_suspect(work), 0.0, list[int]()
    for round in range(2, 60):
        agent = machine.round.agents["a"]
        busy = any(state.open for state in list_tasks(machine.round, "a"))
        probed = not busy and not agent.explain_rest(work, round)  # type: ignore[arg-type]
        began = machine.now
        if probed:
            asked.append(round)
            begin(machine, round, work)
        else:
            one = (Planned(task("b", round, work), 2.0),)
            machine.see(on.PhaseBegan(began, work, round, one, 1e6, 1))  # type: ignore[arg-type]
        deliver(machine, "b", round, work)
        assert machine.closing == "quorum"
        waited += machine.now - began
        machine.beat("b")
        machine.stay("a", 5.0)  # the rest of a round
    assert waited == 0.0
    assert asked, "it is asked again after its rest"
    assert machine.round.agents["a"].wasted[work].leases >= 3, "silent probes count"
    gaps = [after - before for before, after in itertools.pairwise(asked)]
    assert gaps == sorted(gaps), "it is asked less and less often"


def test_an_update_within_the_phase_is_folded_but_is_not_part_of_the_quorum() -> None:
    machine = make_suspect()
    begin(machine, 3)
    deliver(machine, "a", 3)
    assert not machine.closing, "the phase waits for b"
    deliver(machine, "b", 3)
    assert machine.closing == "quorum"
    assert machine.order.endswith("ab")
    assert not machine.round.agents["a"].suspect


def test_a_slow_device_is_readmitted_by_an_update_after_its_phase() -> None:
    machine = make_suspect()
    begin(machine, 3)
    deliver(machine, "b", 3)
    assert machine.closing
    machine.beat("a", step=1)
    machine.wait(MIN_LEASE)
    machine.see(on.PhaseBegan(machine.now, "train", 4, (Planned(task("b", 4), 2.0),), 1e6, 1))
    found = deliver(machine, "a", 3)
    assert [one for one in found if isinstance(one, do.Answer)] == [
        do.Answer("a", "t", False, "round 3 is closed", "answered")
    ]
    assert do.Forget(task("a", 3).key) in found
    assert not machine.round.agents["a"].suspect
    assert machine.round.agents["a"].pace["train"] == Pace(MIN_LEASE / 2.0, MIN_LEASE)
    assert not machine.order.endswith("a"), "its weights are of an earlier round"
    deliver(machine, "b", 4)
    assert machine.closing == "quorum"


def test_the_lease_of_a_probe_ends_after_its_phase() -> None:
    machine = make_suspect()
    began = machine.now
    begin(machine, 3)
    deliver(machine, "b", 3)
    before = machine.round.agents["a"].wasted["train"]
    machine.beat("b")
    found = machine.stay("a", 2 * MIN_LEASE + 60.0)
    assert do.Abort(machine.of_task("a").task, "round 3 is closed") in found
    assert machine.of_task("a").outcome == "late"
    assert machine.now - began < 200
    assert machine.round.agents["a"].wasted["train"] == Wasted(before.leases + 1, 3)


def test_a_phase_without_other_updates_waits_for_its_probe() -> None:
    machine = make_suspect()
    begin(machine, 3)
    key = task("b", 3).key
    machine.see(on.TaskFailed(machine.now, key, 1, "out of memory"))
    assert not machine.closing
    deliver(machine, "a", 3)
    assert machine.closing == "no agents left"
    assert machine.order.endswith("a")


def test_a_resumed_coordinator_gives_up_probes_of_closed_phases() -> None:
    machine = make_suspect()
    begin(machine, 3)
    deliver(machine, "b", 3)
    found = machine.see(on.Resumed(machine.now, Rules()))
    assert [one.reason for one in found if isinstance(one, do.Abort)] == ["round 3 is closed"]
    assert machine.of_task("a").outcome == "late"
    assert not any(isinstance(one, do.Ask) for one in found)


def test_an_agent_that_is_silent_whenever_it_is_trusted_rests_longer_each_time() -> None:
    machine, silent = Machine(agents="ab"), list[int]()
    for round in range(1, 101):
        agent = machine.round.agents["a"]
        if agent.explain_rest("train", round):
            continue
        begin(machine, round, probed="a" if agent.suspect else "")
        if agent.suspect:
            deliver(machine, "a", round)
        deliver(machine, "b", round)
        if not agent.suspect:
            machine.stay("a", 16 * FIRST_LEASE + 1)
            silent.append(round)
        machine.beat("b")
        assert machine.closing
    assert len(silent) <= 8
    gaps = [after - before for before, after in itertools.pairwise(silent)]
    assert gaps == sorted(gaps)


@pytest.mark.parametrize("paused", [False, True])
def test_a_failure_after_the_lease_makes_a_suspect(paused: bool) -> None:
    """Otherwise an agent could hold every round with false progress, and fail in the end."""
    machine = Machine(agents="ab").begin("ab", 2.0)
    machine.arrive("b")
    for step in range(1, 100):
        machine.now += 1.0
        machine.beat("a", step)
        machine.wait(0.0)
    assert not machine.closing, "progress extends the lease"
    machine.see(on.TaskFailed(machine.now, task("a").key, 1, "busy", paused=paused))
    assert machine.closing
    assert machine.round.agents["a"].suspect


def test_a_failure_within_the_lease_makes_no_suspect() -> None:
    machine = Machine(agents="ab").begin("ab", 2.0)
    machine.see(on.TaskFailed(machine.now + 1.0, task("a").key, 1, "out of memory"))
    assert not machine.round.agents["a"].suspect


def test_new_timings_end_what_was_learned_about_predictions() -> None:
    machine = Machine(agents="ab").begin("ab", 2.0)
    machine.now = 8.0
    machine.arrive("ab")
    assert machine.round.agents["a"].pace == {"train": Pace(4.0, 8.0)}
    machine.see(on.ProfileCame(machine.now, "a", PROFILE))
    assert machine.round.agents["a"].pace == {"train": Pace(4.0, 8.0)}, "the same timings"
    slow = tuple(replace(one, seconds=1e6) for one in PROFILE.timings)
    machine.see(on.ProfileCame(machine.now, "a", replace(PROFILE, timings=slow)))
    assert machine.round.agents["a"].pace == {"train": Pace(1.0, 8.0)}


@pytest.mark.parametrize("agents", ["ab", "abc"])
@pytest.mark.parametrize("claim", ["from the start", "later", "new timings"])
def test_an_agent_that_delivers_once_cannot_claim_a_long_lease(agents: str, claim: str) -> None:
    """It claims 2^39 examples, delivers in time, and then says nothing."""
    honest, first = agents[:-1], 1e7 if claim == "from the start" else 2.0
    liar = agents[-1]
    planned = [*(Planned(task(name), 2.0) for name in honest), Planned(task(liar), first)]
    machine = Machine(agents=agents)
    machine.see(on.PhaseBegan(0.0, "train", 1, tuple(planned), 1e9, len(agents)))
    assert machine.of(liar).task.lease == FIRST_LEASE
    machine.now = 2.0
    machine.arrive(agents)
    assert machine.closing == "quorum"
    if claim == "new timings":
        slow = tuple(replace(one, seconds=1e6) for one in PROFILE.timings)
        machine.see(on.ProfileCame(machine.now, liar, replace(PROFILE, timings=slow)))
    planned = [*(Planned(task(name, 2), 2.0) for name in honest), Planned(task(liar, 2), 1e7)]
    began = machine.now
    machine.see(on.PhaseBegan(began, "train", 2, tuple(planned), 1e9, len(agents)))
    for name in honest:
        deliver(machine, name, 2)
    while not machine.closing and machine.now < began + 1000.0:
        machine.stay(liar, 1.0)
        for name in honest:
            machine.beat(name)
    assert machine.now - began <= SLACK * GROWTH_CAP * 2.0 + 1.0
    assert machine.round.agents[liar].suspect


def test_an_agent_that_delivers_just_before_its_extended_lease_ends_becomes_a_suspect() -> None:
    machine = Machine(agents="ab")
    begin(machine, 1, probed="")
    deliver(machine, "a", 1)
    deliver(machine, "b", 1)
    for round, suspect in ((2, False), (3, True)):
        begin(machine, round, probed="")
        deliver(machine, "b", round)
        for step in range(1, int(2 * MIN_LEASE)):
            machine.now += 1.0
            machine.beat("a", step)
            machine.wait(0.0)
        assert not machine.closing, "progress extends the lease"
        deliver(machine, "a", round)
        assert machine.of("a").outcome == "folded"
        assert machine.round.agents["a"].suspect is suspect
        assert bool(machine.round.agents["a"].explain_rest("train", round + 1)) is suspect


def test_an_agent_that_delivers_within_its_lease_is_no_suspect() -> None:
    machine = Machine(agents="ab")
    for round in range(1, 6):
        begin(machine, round, probed="")
        deliver(machine, "b", round)
        machine.stay("a", MIN_LEASE - 1.0)
        deliver(machine, "a", round)
    assert not machine.round.agents["a"].wasted
