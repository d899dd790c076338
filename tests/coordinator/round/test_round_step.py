"""The new state and the actions that `step` returns for each event."""

from __future__ import annotations

import math
import string

import pytest
from msgspec.structs import replace

from coordinator.observe.events import AgentLeft, LeaseExpired
from coordinator.round import round_actions as do
from coordinator.round import round_events as on
from coordinator.round.agent_handlers import SILENCE
from coordinator.round.leases import FIRST_LEASE, MEDIAN_CAP, MIN_LEASE, SLACK, compute_lease
from coordinator.round.round_state import (
    HEARTBEATS,
    Pace,
    Round,
    Rules,
    Wasted,
    list_carried_tasks,
    list_phase_tasks,
)
from coordinator.round.round_step import step
from coordinator.round.task_state import MISSED_BEATS, RETURN_TIME, Planned, Spare
from federated.task import QUICKEST, heartbeat_interval
from federated.wire.links.mqtt_client_setup import LONGEST_DELAY
from federated.wire.messages import Condition
from tests.support.round_state_machine import Machine, task
from tests.support.scripted_agent import PROFILE

# ---- the order of folding ------------------------------------------------------------------------


def test_updates_are_folded_in_the_order_of_names() -> None:
    machine = Machine(agents="abcd").begin("dcba")
    machine.arrive("cb")
    assert machine.order == ""
    machine.arrive("a")
    assert machine.order == "abc"
    machine.arrive("d")
    assert (machine.order, machine.closing) == ("abcd", "quorum")


def test_updates_do_not_wait_for_lost_or_failed_agents() -> None:
    machine = Machine(agents="abcd").begin("abcd")
    machine.leave("a")
    machine.see(on.TaskFailed(0.0, task("b").key, 1, "no"))
    machine.arrive("cd")
    assert machine.order == "cd"
    assert machine.of("b").outcome == "failed: no"


def test_updates_wait_again_for_an_agent_that_returns() -> None:
    machine = Machine(agents="abc").begin("abc", 10.0)
    machine.leave("a")
    machine.arrive("b")
    assert machine.order == "b"
    machine.beat("a")
    machine.arrive("c")
    assert machine.order == "b"
    machine.arrive("a")
    assert machine.order == "bac"


@pytest.mark.parametrize(("most", "order"), [(0, ""), (3, ""), (2, "b"), (1, "bc")])
def test_no_more_updates_than_allowed_wait_for_an_earlier_name(most: int, order: str) -> None:
    machine = Machine(Rules(most=most), "abcd").begin("abcd")
    machine.arrive("bcd")
    assert machine.order == order


def test_a_buffered_phase_folds_updates_in_order_of_arrival() -> None:
    machine = Machine(agents="abc").begin("abc", flowing=True, quorum=2)
    machine.arrive("c")
    assert machine.order == "c"
    machine.arrive("a")
    assert (machine.order, machine.closing) == ("ca", "quorum")


# ---- the end of a phase --------------------------------------------------------------------------


def test_a_phase_waits_a_little_for_an_agent_that_just_left() -> None:
    machine = Machine(agents="ab").begin("ab", 10.0)
    machine.arrive("a")
    machine.leave("b")
    machine.wait(RETURN_TIME - 0.1)
    assert not machine.closing
    machine.wait(0.1)
    assert machine.closing == "no agents left"
    assert machine.of("b").outcome == "gone"


def test_a_phase_waits_longer_than_agents_wait_to_reconnect() -> None:
    """After a long outage, such as that of a coordinator with its broker, each agent may be in its
    longest delay; the rest is for connecting.
    """
    assert 2 * LONGEST_DELAY <= RETURN_TIME


def test_simulated_devices_do_not_return() -> None:
    machine = Machine(Rules(timeouts=False), "ab").begin("ab", 10.0)
    machine.arrive("a")
    machine.leave("b")
    assert machine.closing == "no agents left"


def test_simulated_devices_may_be_silent_while_the_machine_is_busy() -> None:
    machine = Machine(Rules(timeouts=False), "ab").begin("ab", 10.0)
    machine.wait(2 * SILENCE)
    assert all(machine.round.agents[name].online for name in "ab")
    machine.arrive("ab")
    assert (machine.order, machine.closing) == ("ab", "quorum")


def test_heartbeats_of_a_large_fleet_are_rare_and_silence_and_leases_allow_for_it() -> None:
    names = [f"a{number:04}" for number in range(20 * HEARTBEATS)]
    assert Machine(agents=names[:HEARTBEATS]).round.heartbeat == 0.0
    machine = Machine(agents=names).begin(names, 3.0)
    least = machine.round.heartbeat
    assert len(names) / least <= HEARTBEATS
    assert machine.of("a0000").task.lease >= least
    machine.beat("a0000", step=1)
    assert machine.of("a0000").due == MISSED_BEATS * least
    machine.wait(3 * least)
    assert machine.round.agents["a0000"].online
    machine.wait(1.0)
    assert not machine.round.agents["a0000"].online


@pytest.mark.parametrize("agents", [20, 40, 1000, 100_000])
@pytest.mark.parametrize("limit", [0, 20, 1000])
def test_a_broker_may_make_heartbeats_rarer_and_leases_longer(agents: int, limit: int) -> None:
    machine = Machine(Rules(beats=limit), agents="a")
    known = machine.round.agents["a"]
    others = {name: replace(known, name=name) for name in (f"b{i}" for i in range(agents - 1))}
    machine.round = replace(machine.round, agents=machine.round.agents.update(others))
    machine.begin("a", 3.0)
    least = machine.round.heartbeat
    if limit:
        assert agents / (least or QUICKEST) <= limit
    if limit != 20:
        assert least <= 132.0
    lease = machine.of("a").task.lease
    assert lease >= least
    machine.beat("a", step=1)
    assert machine.of("a").due >= MISSED_BEATS * heartbeat_interval(lease, least)
    machine.wait(3 * least)
    assert machine.round.agents["a"].online


def test_at_its_deadline_a_phase_closes_and_aborts_open_tasks() -> None:
    machine = Machine(agents="abc").begin("abc", limit=30.0)
    machine.arrive("bc")
    assert machine.order == ""
    actions = machine.wait(30.0)
    assert (machine.order, machine.closing, machine.of("a").outcome) == ("bc", "deadline", "late")
    assert [a.reason for a in actions if isinstance(a, do.Abort)] == ["round 1 is closed"]


def test_a_training_without_updates_waits_for_late_agents_until_its_deadline() -> None:
    machine = Machine(agents="a").begin("a", 10.0, limit=300.0)
    machine.stay("a", FIRST_LEASE + 1)
    assert machine.of("a").late
    assert not machine.closing
    machine.arrive("a")
    assert (machine.order, machine.closing) == ("a", "quorum")


@pytest.mark.parametrize("work", ["calibrate", "evaluate"])
def test_a_silent_agent_delays_an_evaluation_by_its_lease_at_most(work: str) -> None:
    machine = Machine(agents="a")
    machine.see(on.PhaseBegan(0.0, work, 1, (Planned(task("a", work=work), 2.0),), 600.0, 1))  # type: ignore[arg-type]
    machine.stay("a", FIRST_LEASE)
    assert not machine.closing
    machine.stay("a", 0.1)
    assert machine.closing == "no agents left"
    assert machine.round.agents["a"].wasted == {work: Wasted(1, 1)}


def test_a_phase_without_tasks_closes_at_once() -> None:
    machine = Machine().begin("", quorum=0)
    assert machine.closing == "quorum"
    machine.begin("", quorum=1)
    assert machine.closing == "no agents left"


@pytest.mark.parametrize("evaluated", [False, True])
def test_a_late_update_outside_the_spool_is_requested_again_if_its_round_starts_over(
    evaluated: bool,
) -> None:
    machine = Machine(Rules(stale=2, every=1), "abc").begin("abc", quorum=1, carries=True)
    machine.arrive("c")
    machine.see(
        on.PhaseBegan(
            0.0, "train", 2, (Planned(task("c", 2)),), 600.0, 3, carries=True, flowing=True
        )
    )
    machine.arrive("c", 2)
    machine.arrive("a")
    machine.see(on.SnapshotTaken(0.0, (task("c", 2).key, task("a").key), written=True))
    machine.arrive("b")
    if evaluated:
        machine.see(
            on.PhaseBegan(0.0, "evaluate", 2, (Planned(task("c", 2, "evaluate")),), 600.0, 1)
        )
    machine.see(on.TasksDropped(0.0, (), "its spool is damaged", round=True))
    assert {state.key.agent: state.stage for state in list_carried_tasks(machine.round)} == {
        "a": "asked",
        "b": "whole",
    }
    assert machine.round.agents["a"].tasks == (task("a").key,)


# ---- another process -----------------------------------------------------------------------------


def test_a_stored_round_has_no_pending_actions() -> None:
    machine = Machine(agents="a").begin("a")
    machine.arrive("a")
    assert machine.round.settled
    machine.see(on.RoundStored(1.0))
    machine.see(on.Resumed(2.0, Rules()))
    assert not machine.round.agents["a"].online, "it announces itself"


def test_a_replay_repeats_pending_actions() -> None:
    machine = Machine(agents="abcd").begin("abc", 20.0)
    machine.arrive("a")
    machine.leave("c")
    actions = machine.see(on.Resumed(10.0, Rules()))
    assert [a.task.agent for a in actions if isinstance(a, do.Ask)] == ["b", "c"]
    assert (machine.of("b").late, machine.of("b").resumed, machine.of("b").asked) == (
        False,
        True,
        10.0,
    ), "leases start over"
    assert machine.round.agents["b"].online, "until it has been silent for long enough"
    assert not machine.round.agents["d"].online, (
        "it has no task in the round, so it announces itself"
    )
    machine.arrive("bc")
    assert (machine.order, machine.closing) == ("abc", "quorum")


def test_a_replay_repeats_an_interrupted_fold() -> None:
    machine = Machine(agents="a").begin("a")
    machine.round, _ = step(machine.round, on.UpdateCame(0.0, task("a").key, 1, "t", "d" * 64, 0.5))
    assert machine.of("a").stage == "folding"
    assert do.Fold(task("a").key) in machine.see(on.Resumed(1.0, Rules()))
    assert (machine.order, machine.closing) == ("a", "quorum")


def test_a_replay_prepares_a_spare_again() -> None:
    machine = Machine(agents="abc").begin("ab", wanted=2, spares=(Spare("c"),))
    machine.leave("a")
    assert do.Prepare("c") in machine.see(on.Resumed(1.0, Rules()))


def test_a_replay_drops_an_unfinished_evaluation() -> None:
    machine = Machine(Rules(stale=1), "ab").begin("ab", quorum=1, carries=True)
    machine.arrive("b")
    machine.see(on.PhaseBegan(0.0, "evaluate", 1, (Planned(task("b", work="evaluate")),), 600.0, 1))
    actions = machine.see(on.Resumed(1.0, Rules()))
    assert [a.task.key for a in actions if isinstance(a, do.Ask)] == [task("a").key]
    assert machine.closing == "interrupted"
    assert [state.task.agent for state in machine.round.settled] == ["b"], (
        "the results of the training remain"
    )


def test_an_agent_that_left_before_a_crash_may_return_after_it() -> None:
    machine = Machine(agents="ab").begin("ab", 10.0)
    machine.arrive("a")
    machine.leave("b")
    machine.wait(19.0)
    machine.see(on.Resumed(22.0, Rules()))
    assert not machine.closing
    machine.wait(RETURN_TIME)
    assert machine.closing == "no agents left"


@pytest.mark.parametrize("round", [True, False])
def test_tasks_that_cannot_be_made_again_are_dropped(round: bool) -> None:
    machine = Machine(Rules(stale=2), "ab").begin("ab", quorum=1, carries=True)
    machine.arrive("b")
    machine.see(on.PhaseBegan(0.0, "train", 2, (Planned(task("b", 2)),), 600.0, 1, carries=True))
    machine.see(
        on.TasksDropped(
            1.0, (task("b", 2).key if round else task("a").key,), "machine otherwise", round
        )
    )
    assert (machine.round.phase is None) is round
    if round:
        assert list(machine.round.tasks) == [task("a").key], "carried tasks remain"
        assert machine.round.agents["b"].tasks == ()
    else:
        assert machine.of("a").outcome == "dropped: machine otherwise"
        machine.arrive("b", 2)
        assert machine.closing == "quorum"


def test_an_update_missing_from_the_spool_is_requested_again() -> None:
    machine = Machine(agents="abc").begin("abc")
    machine.arrive("b")
    machine.see(on.UpdateLost(1.0, task("b").key))
    assert [
        a.task.agent for a in machine.see(on.Resumed(1.0, Rules())) if isinstance(a, do.Ask)
    ] == [
        "a",
        "b",
        "c",
    ]
    machine.arrive("abc")
    assert (machine.order, machine.closing) == ("abc", "quorum")


def test_a_resumed_round_has_new_rules() -> None:
    machine = Machine(Rules(most=2), agents="a")
    machine.see(on.Resumed(1.0, Rules(most=1)))
    assert machine.round.rules == Rules(most=1)


# ---- late updates --------------------------------------------------------------------------------


def test_a_late_update_is_folded_last_in_the_next_round() -> None:
    machine = Machine(Rules(stale=1), "ab").begin("ab", quorum=1, carries=True)
    machine.arrive("b")
    assert [state.task.agent for state in list_carried_tasks(machine.round)] == ["a"]
    machine.arrive("a")
    assert machine.order == "b", "no phase is open"
    machine.see(
        on.PhaseBegan(machine.now, "train", 2, (Planned(task("b", 2)),), 600.0, 1, carries=True)
    )
    assert machine.order == "b", "a late update is folded last, and the phase does not wait for it"
    machine.arrive("b", 2)
    assert machine.order == "bba"
    machine.see(
        on.PhaseBegan(machine.now, "train", 3, (Planned(task("b", 3)),), 600.0, 1, carries=True)
    )
    assert [state.key for state in list_phase_tasks(machine.round)] == [task("b", 3).key]


@pytest.mark.parametrize("evaluated", [True, False])
def test_a_carried_task_that_fails_between_two_trainings_is_settled_by_the_second(
    evaluated: bool,
) -> None:
    machine = Machine(Rules(stale=2), "ab").begin("ab", quorum=1, carries=True)
    machine.arrive("b")
    if evaluated:
        machine.see(on.PhaseBegan(machine.now, "evaluate", 1, (), 600.0, 1))
    machine.see(on.TaskFailed(1.0, task("a").key, 1, "out of memory"))
    machine.see(
        on.PhaseBegan(machine.now, "train", 2, (Planned(task("b", 2)),), 600.0, 1, carries=True)
    )
    machine.arrive("b", 2)
    assert [(state.key.agent, state.outcome) for state in machine.round.settled] == [
        ("b", "folded"),
        ("a", "failed: out of memory"),
    ]


def test_a_task_that_is_too_old_is_aborted() -> None:
    machine = Machine(Rules(stale=1), "ab").begin("ab", quorum=1, carries=True)
    machine.arrive("b")
    machine.see(
        on.PhaseBegan(machine.now, "train", 2, (Planned(task("b", 2)),), 600.0, 1, carries=True)
    )
    machine.see(on.UpdateCame(machine.now, task("b", 2).key, 1, "t", "d" * 64, 0.5))
    assert list_carried_tasks(machine.round) == []
    assert [a.reason for a in machine.actions if isinstance(a, do.Abort)] == [
        "its weights are too old"
    ]


# ---- replacement ---------------------------------------------------------------------------------


def test_each_missing_agent_is_replaced_once() -> None:
    machine = Machine(agents="abcd").begin("ab", wanted=2, spares=(Spare("d"), Spare("c")))
    actions = machine.leave("a")
    assert [a for a in actions if isinstance(a, do.Prepare)] == [do.Prepare("d")]
    assert not [a for a in machine.beat("b", 1) if isinstance(a, do.Prepare)], (
        "the task of d is being machine"
    )
    machine.see(on.TaskAdded(machine.now, Planned(task("d"))))
    assert not [a for a in machine.beat("b", 2) if isinstance(a, do.Prepare)]
    machine.arrive("bd")
    assert (machine.order, machine.closing) == ("bd", "quorum")


def test_slow_or_busy_spares_are_not_asked() -> None:
    machine = Machine(Rules(stale=5), "abcd")
    machine.see(
        on.PhaseBegan(
            0.0, "train", 0, (Planned(task("c", 0)), Planned(task("d", 0))), 600.0, 1, carries=True
        )
    )
    machine.arrive("d", 0)
    machine.begin(
        "a", wanted=1, limit=100.0, spares=(Spare("b", 200.0), Spare("c", 1.0), Spare("d", 50.0))
    )
    assert [a.agent for a in machine.leave("a") if isinstance(a, do.Prepare)] == ["d"]


def test_an_unavailable_spare_is_asked_as_soon_as_it_is_available() -> None:
    machine = Machine(Rules(stale=1), "ac").begin("ac", quorum=1, carries=True)
    machine.arrive("a")
    spares = Spare("b"), Spare("c")
    machine.see(
        on.PhaseBegan(
            0.0,
            "train",
            2,
            (Planned(task("a", 2)),),
            600.0,
            3,
            wanted=3,
            spares=spares,
            carries=True,
        )
    )
    assert not [a for a in machine.actions if isinstance(a, do.Prepare)], (
        "b is not connected, c works on a task of an earlier round"
    )
    machine.see(on.AgentConnected(1.0, "b", "s"))
    assert machine.see(on.ProfileCame(1.0, "b", PROFILE)) == [do.Prepare("b")]
    machine.arrive("c")
    assert [a for a in machine.actions if isinstance(a, do.Prepare)] == [
        do.Prepare("b"),
        do.Prepare("c"),
    ]


def test_a_closing_phase_asks_no_replacements() -> None:
    machine = Machine(agents="abc").begin("ab", wanted=2, limit=30.0, spares=(Spare("c"),))
    machine.arrive("b")
    machine.now = 30.0
    assert not [a for a in machine.leave("a") if isinstance(a, do.Prepare)]
    assert machine.closing == "deadline"
    machine = Machine(agents="abc").begin(
        "ab", wanted=2, quorum=1, flowing=True, spares=(Spare("c"),)
    )
    machine.arrive("a")
    assert not [a for a in machine.actions if isinstance(a, do.Prepare)]
    assert machine.see(on.TaskAdded(0.0, Planned(task("c")))) == [], (
        "the phase has a reason to close"
    )


# ---- leases and silence --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("predicted", "seconds"), [(0.0, MIN_LEASE), (2.0, MIN_LEASE), (20.0, 60.0), (600.0, 1800.0)]
)
def test_a_lease_is_three_times_the_expected_seconds(predicted: float, seconds: float) -> None:
    agent = Machine(agents="a").round.agents["a"]
    for work in ("train", "evaluate"):
        assert compute_lease(Round(), agent, work, predicted) == max(FIRST_LEASE, seconds), (
            "a first task may need a warm-up"
        )  # type: ignore[arg-type]
        known = replace(agent, pace={work: Pace(1.0, predicted)})
        assert compute_lease(Round(), known, work, predicted) == seconds  # type: ignore[arg-type]
        late = replace(agent, wasted={work: Wasted(2, 1)})
        assert compute_lease(Round(), late, work, predicted) == 4 * seconds, (
            "a slower device delivers in the end"
        )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lease", "seconds"),
    [(10.0, 3.0), (30.0, 6.0), (60.0, 12.0), (1800.0, 15.0), (math.inf, 15.0), (0.0, 15.0)],
)
def test_a_lease_lasts_several_heartbeats(lease: float, seconds: float) -> None:
    assert heartbeat_interval(lease) == seconds


def test_a_claim_extends_a_lease_to_at_most_four_medians() -> None:
    machine = Machine(agents="abc")
    planned = tuple(
        Planned(task(name), seconds) for name, seconds in zip("abc", (30.0, 40.0, 1e6), strict=True)
    )
    machine.see(on.PhaseBegan(0.0, "train", 1, planned, 1e9, 3))
    assert [machine.of(name).task.lease for name in "abc"] == [
        90.0,
        120.0,
        SLACK * MEDIAN_CAP * 40.0,
    ]


def test_a_lease_follows_the_measured_time_of_the_last_task() -> None:
    machine = Machine(agents="a")
    for number, lease in ((1, FIRST_LEASE), (2, SLACK * 80.0)):
        machine.see(
            on.PhaseBegan(
                machine.now,
                "evaluate",
                number,
                (Planned(task("a", number, "evaluate"), 10.0 * number),),
                600.0,
                1,
            )
        )
        assert machine.of("a").task.lease == lease, "the first took four times its prediction"
        machine.now += 40.0
        machine.see(
            on.UpdateCame(
                machine.now, task("a", number, "evaluate").key, 1, "t", "d" * 64, math.nan
            )
        )


def test_an_agent_without_progress_is_late_after_its_lease() -> None:
    machine = Machine(agents="a").begin("a", 20.0)
    assert machine.stay("a", 60.0) == []
    assert do.Report(LeaseExpired("a", 60.1)) in machine.stay("a", 0.1)


def test_progress_extends_a_lease_and_a_repeated_heartbeat_does_not() -> None:
    machine = Machine(agents="ab").begin("a", 20.0)
    for now, shown, late in ((0.0, 3, False), (55.0, 4, False), (80.0, 4, False), (85.1, 4, True)):
        machine.now = now
        machine.beat("a", shown)
        machine.wait(0.0)
        assert machine.of("a").late is late


def test_claimed_progress_extends_a_lease_to_at_most_four_times_its_length() -> None:
    machine = Machine(agents="a").begin("a", 20.0, limit=1e9)
    for second in range(240):
        machine.now = float(second)
        machine.beat("a", second)
        machine.wait(0.0)
    assert not machine.of("a").late
    machine.stay("a", 1.1)
    assert machine.of("a").late


def test_time_in_the_upload_queue_does_not_count_against_a_lease() -> None:
    machine = Machine(agents="a").begin("a", 20.0, limit=1e9)
    line = frozenset({task("a").key})
    machine.stay("a", 50.0)
    for _ in range(30):
        machine.wait(40.0, line)
        machine.beat("a")
    assert not machine.of("a").late
    machine.stay("a", 9.0)
    assert not machine.of("a").late, "fifty-nine of its sixty seconds"
    machine.stay("a", 40.0)
    assert machine.of("a").late


def test_time_in_the_upload_queue_is_not_counted_after_a_reconnect() -> None:
    machine = Machine(agents="a").begin("a", 20.0, limit=1e9)
    line = frozenset({task("a").key})
    machine.wait(10.0, line)
    for _ in range(30):
        machine.beat("a")
        machine.wait(20.0, line)
    machine.leave("a")
    machine.beat("a")
    machine.wait(0.5, line)
    machine.stay("a", 30.0)
    assert not machine.of("a").late
    machine.arrive("a")
    assert machine.of("a").seconds < 60.0
    assert machine.round.agents["a"].pace["train"].ratio < 3.0


def test_a_lease_may_end_while_its_agent_is_away() -> None:
    machine = Machine(agents="ab")
    tasks = tuple(Planned(task(name, work="evaluate"), 2.0) for name in "ab")
    machine.see(on.PhaseBegan(0.0, "evaluate", 1, tasks, 600.0, 2))
    machine.stay("b", 50.0)
    machine.leave("a")
    machine.stay("b", 11.0)
    machine.see(on.AgentConnected(machine.now, "a", "s"))
    machine.wait(0.5)
    assert machine.of("a").late


def test_chunks_extend_the_lease_of_a_slow_upload() -> None:
    machine = Machine(agents="a")
    known = replace(machine.round.agents["a"], pace={"evaluate": Pace(1.0, 2.0)})
    machine.round = replace(machine.round, agents=machine.round.agents.set("a", known))
    machine.see(
        on.PhaseBegan(0.0, "evaluate", 1, (Planned(task("a", work="evaluate"), 2.0),), 600.0, 1)
    )
    machine.now = 9.0
    machine.see(on.ChunkCame(9.0, task("a", work="evaluate").key))
    for second in range(10, 39):
        machine.now = float(second)
        machine.beat("a", 0, "send")
        machine.wait(0.0)
    assert not machine.of("a").late
    machine.wait(1.1)
    assert machine.of("a").late


def test_progress_on_one_task_does_not_extend_the_lease_of_another() -> None:
    machine = Machine(Rules(stale=2), "ab").begin("ab", 20.0, quorum=1, carries=True)
    machine.now = 5.0
    machine.arrive("b")
    machine.see(
        on.PhaseBegan(5.0, "train", 2, (Planned(task("b", 2), 20.0),), 600.0, 1, carries=True)
    )
    for second in range(6, 64, 2):
        machine.now = float(second)
        machine.see(on.AgentBeat(machine.now, "a", "s", "train", math.nan, second, 2, "train"))
        machine.wait(0.0)
    assert machine.of("a").late


def test_a_restart_extends_a_lease_only_up_to_its_maximum() -> None:
    machine = Machine(agents="a").begin("a", 20.0, limit=1e9)
    machine.stay("a", 59.0)
    machine.see(on.AgentConnected(59.0, "a", "s2"))
    machine.wait(2.5)
    assert not machine.of("a").late
    for second in range(62, 245, 3):
        machine.now = float(second)
        machine.see(on.AgentConnected(machine.now, "a", f"s{second}"))
        machine.wait(0.0)
    assert machine.of("a").late


def test_messages_of_an_earlier_process_do_not_change_the_state() -> None:
    machine = Machine(agents="a")
    machine.see(on.AgentBeat(1.0, "a", "old", "train", 9.0, 1))
    assert machine.round.agents["a"].state == "idle"
    machine.leave("a")
    assert machine.leave("a") == [], "a departure is reported once"
    assert machine.round.agents["a"].state == "gone"
    machine.see(on.AgentConnected(2.0, "a", "s"))
    assert machine.round.agents["a"].state == "idle"


def test_a_heartbeat_reports_the_condition_of_the_device() -> None:
    machine, hot = Machine(agents="a"), Condition(71.5, True, "battery")
    machine.see(on.AgentBeat(1.0, "a", "s", "idle", math.nan, 0, condition=hot))
    assert machine.round.agents["a"].condition == hot


def test_a_silent_agent_is_gone_after_three_missed_heartbeats() -> None:
    machine = Machine(agents="a")
    assert machine.wait(SILENCE) == []
    assert machine.wait(0.1) == [do.Report(AgentLeft("a", "silent for 45 s"))]
    assert not machine.round.agents["a"].online


def test_a_store_that_returns_renews_the_leases_that_have_not_expired() -> None:
    machine = Machine(agents="ab").begin("ab", 20.0)
    machine.leave("b")
    actions = machine.see(on.TransfersRestored(FIRST_LEASE - 1.0))
    assert actions == [do.Ask(machine.of("a").task)], "not an absent one"
    for seconds in (30.0, 29.0):
        machine.beat("a")
        machine.wait(seconds)
    machine.beat("a")
    assert not machine.of("a").late
    machine.wait(2.0)
    assert machine.of("a").late
    actions = machine.see(on.TransfersRestored(machine.now))
    assert not actions, "what was late before the outage stays late"


# ---- updates -------------------------------------------------------------------------------------


def test_an_event_without_news_returns_the_same_round() -> None:
    machine = Machine(agents="a").begin("a")
    machine.wait(0.5)
    for event in (
        on.Ticked(1.0),
        on.UpdateCame(1.0, task("x").key, 1, "t", "d" * 64, 0.5),
        on.UpdateCame(1.0, task("a").key, 7, "t", "d" * 64, 0.5),
        on.AgentLeft(1.0, "a", "another session", "went away"),
    ):
        after, actions = step(machine.round, event)
        assert after is machine.round
        assert actions == []


def test_a_repeated_update_is_folded_once() -> None:
    machine = Machine(agents="ab").begin("ab")
    machine.arrive("aa")
    machine.arrive("b")
    machine.arrive("ab")
    assert machine.order == "ab"


def test_a_snapshot_after_a_number_of_folds_frees_the_spool() -> None:
    machine = Machine(Rules(every=2), "abc").begin("abc")
    machine.arrive("a")
    assert not [a for a in machine.actions if isinstance(a, do.Snapshot)]
    machine.arrive("b")
    keys = task("a").key, task("b").key
    assert [a for a in machine.actions if isinstance(a, do.Snapshot)] == [do.Snapshot(keys)]
    assert machine.see(on.SnapshotTaken(1.0, (), written=False)) == [], (
        "it is tried again after the next fold"
    )
    machine.arrive("c")
    keys = *keys, task("c").key
    assert do.Snapshot(keys) in machine.actions
    assert [
        a.key
        for a in machine.see(on.SnapshotTaken(2.0, keys, written=True))
        if isinstance(a, do.Forget)
    ] == list(keys)
    assert machine.round.unkept == ()


def test_a_phase_with_many_agents_takes_few_snapshots() -> None:
    names = string.ascii_lowercase[:12]
    machine = Machine(Rules(every=1), names).begin(names)
    machine.arrive("ab")
    assert not [a for a in machine.actions if isinstance(a, do.Snapshot)]
    machine.arrive("c")
    keys = tuple(task(name).key for name in "abc")
    assert [a for a in machine.actions if isinstance(a, do.Snapshot)] == [do.Snapshot(keys)]


def test_a_failed_snapshot_does_not_prevent_one_in_the_next_round() -> None:
    machine = Machine(Rules(every=2), "abcd").begin("abcd")
    machine.arrive("ab")
    machine.see(on.SnapshotTaken(0.0, (task("a").key, task("b").key), written=False))
    machine.arrive("cd")
    machine.see(on.SnapshotTaken(0.0, tuple(task(name).key for name in "abcd"), written=False))
    machine.begin("abc")
    machine.actions.clear()
    machine.arrive("ab")
    assert [a for a in machine.actions if isinstance(a, do.Snapshot)]


def test_a_full_spool_ends_the_waiting_and_a_snapshot_makes_room() -> None:
    machine = Machine(agents="abc").begin("abc")
    machine.arrive("b")
    actions = machine.see(on.SpoolFilled(1.0))
    assert machine.order == "b"
    assert do.Snapshot((task("b").key,)) in [*actions, *machine.actions]
    assert do.Relieve(True) in machine.see(on.SnapshotTaken(1.0, (task("b").key,), written=True))


def test_without_durability_an_update_leaves_the_spool_when_folded() -> None:
    machine = Machine(Rules(durable=False), "a").begin("a")
    machine.arrive("a")
    assert do.Forget(task("a").key) in machine.actions


def test_unfolded_updates_of_a_revoked_agent_are_dropped() -> None:
    machine = Machine(agents="abc").begin("abc")
    machine.arrive("ac")
    actions = machine.see(on.AgentsBarred(1.0, frozenset("ac"), "revoked"))
    assert [a.key.agent for a in actions if isinstance(a, do.Forget)] == ["c"]
    assert (machine.of("a").outcome, machine.of("c").outcome) == ("folded", "refused: revoked")
    machine.arrive("b")
    assert (machine.order, machine.closing) == ("ab", "no agents left")
    machine.see(on.AgentsBarred(2.0, frozenset(), "revoked"))
    assert not machine.round.agents["a"].refused


@pytest.mark.parametrize("seconds", [50.0, 70.0])
def test_a_suspension_gives_the_other_agents_new_leases(seconds: float) -> None:
    """The flood of the suspended agent delayed their messages, also beyond their leases."""
    machine = Machine(agents="abc").begin("abc")
    for name in "ab":
        machine.beat(name)
    machine.wait(1.0)
    for _ in range(int(seconds) // 10):
        machine.now += 10.0
        machine.beat("a")
        machine.beat("b")
    machine.wait(0.0)
    assert machine.of("a").late is (seconds > 60.0)
    machine.see(on.AgentsBarred(machine.now, frozenset("c"), "flooded"))
    machine.stay("a", 45.0)
    assert machine.of("a").working
    assert not machine.closing
    machine.arrive("a")
    assert machine.of("a").came
