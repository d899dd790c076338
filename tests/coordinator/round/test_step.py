"""The round as a value: what each event makes of it, and what it asks for. No clock, link or disk
takes part.
"""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from coordinator.observe.events import AgentWent, LeaseExpired
from coordinator.round import actions as do
from coordinator.round import round_events as on
from coordinator.round.agents import SILENCE
from coordinator.round.round import RETURN, Round, Rules, Wasted, carried, entries
from coordinator.round.rules import CAP, FIRST, LEAST, SLACK, lease_of
from coordinator.round.step import step
from coordinator.round.task_state import Planned, Spare
from federated.task import beats
from tests.support.machine import Machine, task
from tests.support.peer import PROFILE

# ---- the order of folding ------------------------------------------------------------------------


def test_updates_are_folded_in_the_order_of_names() -> None:
    made = Machine(agents="abcd")
    made.begin("dcba")
    made.arrive("cb")
    assert made.order == ""
    made.arrive("a")
    assert made.order == "abc"
    made.arrive("d")
    assert (made.order, made.closing) == ("abcd", "quorum")


def test_nobody_waits_for_who_went_or_failed() -> None:
    made = Machine(agents="abcd")
    made.begin("abcd")
    made.leave("a")
    made.see(on.TaskFailed(0.0, task("b").key, 1, "no"))
    made.arrive("cd")
    assert made.order == "cd"
    assert made.of("b").outcome == "failed: no"


def test_who_comes_back_is_waited_for_again() -> None:
    made = Machine(agents="abc")
    made.begin("abc", 10.0)
    made.leave("a")
    made.arrive("b")
    assert made.order == "b"
    made.beat("a")
    made.arrive("c")
    assert made.order == "b"
    made.arrive("a")
    assert made.order == "bac"


@pytest.mark.parametrize(("most", "order"), [(0, ""), (3, ""), (2, "b"), (1, "bc")])
def test_no_more_wait_for_an_earlier_name_than_may(most: int, order: str) -> None:
    made = Machine(Rules(most=most), "abcd")
    made.begin("abcd")
    made.arrive("bcd")
    assert made.order == order


def test_in_a_buffered_phase_updates_are_folded_as_they_come() -> None:
    made = Machine(agents="abc")
    made.begin("abc", flowing=True, quorum=2)
    made.arrive("c")
    assert made.order == "c"
    made.arrive("a")
    assert (made.order, made.closing) == ("ca", "quorum")


# ---- the end of a phase --------------------------------------------------------------------------


def test_who_has_only_just_gone_may_come_back_to_a_phase_that_waits_for_nobody_else() -> None:
    made = Machine(agents="ab")
    made.begin("ab", 10.0)
    made.arrive("a")
    made.leave("b")
    made.wait(RETURN - 0.1)
    assert not made.closing
    made.wait(0.1)
    assert made.closing == "nobody left"
    assert made.of("b").outcome == "gone"


def test_simulated_devices_do_not_come_back() -> None:
    made = Machine(Rules(leases=False), "ab")
    made.begin("ab", 10.0)
    made.arrive("a")
    made.leave("b")
    assert made.closing == "nobody left"


def test_at_its_deadline_a_phase_closes_with_what_came_and_tells_the_others() -> None:
    made = Machine(agents="abc")
    made.begin("abc", limit=30.0)
    made.arrive("bc")
    assert made.order == ""
    actions = made.wait(30.0)
    assert (made.order, made.closing, made.of("a").outcome) == ("bc", "deadline", "late")
    assert [a.reason for a in actions if isinstance(a, do.Abort)] == ["round 1 is closed"]


def test_a_training_that_nothing_came_of_waits_for_late_agents_until_its_deadline() -> None:
    made = Machine(agents="a")
    made.begin("a", 10.0, limit=300.0)
    made.stay("a", FIRST + 1)
    assert made.of("a").late
    assert not made.closing
    made.arrive("a")
    assert (made.order, made.closing) == ("a", "quorum")


@pytest.mark.parametrize("work", ["calibrate", "evaluate"])
def test_a_mute_agent_costs_an_evaluation_no_more_than_its_lease(work: str) -> None:
    made = Machine(agents="a")
    made.see(on.PhaseBegan(0.0, work, 1, (Planned(task("a", work=work), 2.0),), 600.0, 1))  # type: ignore[arg-type]
    made.stay("a", FIRST)
    assert not made.closing
    made.stay("a", 0.1)
    assert made.closing == "nobody left"
    assert made.round.agents["a"].wasted == {work: Wasted(1, 1)}


def test_a_phase_without_tasks_is_over_at_once() -> None:
    made = Machine()
    made.begin("", quorum=0)
    assert made.closing == "quorum"
    made.begin("", quorum=1)
    assert made.closing == "nobody left"


@pytest.mark.parametrize("evaluated", [False, True])
def test_a_late_update_that_left_the_spool_is_asked_for_again_where_its_round_begins_anew(
    evaluated: bool,
) -> None:
    made = Machine(Rules(stale=2, every=1), "abc")
    made.begin("abc", quorum=1, carries=True)
    made.arrive("c")
    made.see(
        on.PhaseBegan(
            0.0, "train", 2, (Planned(task("c", 2)),), 600.0, 3, carries=True, flowing=True
        )
    )
    made.arrive("c", 2)
    made.arrive("a")
    made.see(on.SnapshotTaken(0.0, (task("c", 2).key, task("a").key), written=True))
    made.arrive("b")
    if evaluated:
        made.see(on.PhaseBegan(0.0, "evaluate", 2, (Planned(task("c", 2, "evaluate")),), 600.0, 1))
    made.see(on.TasksDropped(0.0, (), "its spool is damaged", round=True))
    assert {state.key.agent: state.stage for state in carried(made.round)} == {
        "a": "asked",
        "b": "whole",
    }
    assert made.round.agents["a"].tasks == (task("a").key,)


# ---- another process -----------------------------------------------------------------------------


def test_a_round_that_is_stored_leaves_nothing_to_say_again() -> None:
    made = Machine(agents="a")
    made.begin("a")
    made.arrive("a")
    assert made.round.settled
    made.see(on.RoundStored(1.0))
    made.see(on.Resumed(2.0, Rules()))
    assert not made.round.agents["a"].online, "it says itself that it is there"


def test_after_a_replay_all_that_is_under_way_is_said_again() -> None:
    made = Machine(agents="abcd")
    made.begin("abc", 20.0)
    made.arrive("a")
    made.leave("c")
    actions = made.see(on.Resumed(10.0, Rules()))
    assert [a.task.agent for a in actions if isinstance(a, do.Ask)] == ["b", "c"]
    assert (made.of("b").late, made.of("b").resumed, made.of("b").asked) == (False, True, 10.0), (
        "leases begin anew"
    )
    assert made.round.agents["b"].online, "until it has been silent for long enough"
    assert not made.round.agents["d"].online, (
        "it has no part in the round, and says itself that it is there"
    )
    made.arrive("bc")
    assert (made.order, made.closing) == ("abc", "quorum")


def test_an_update_that_was_being_folded_is_folded_after_a_replay() -> None:
    made = Machine(agents="a")
    made.begin("a")
    made.round, _ = step(made.round, on.UpdateCame(0.0, task("a").key, 1, "t", "d" * 64, 0.5))
    assert made.of("a").stage == "folding"
    assert do.Fold(task("a").key) in made.see(on.Resumed(1.0, Rules()))
    assert (made.order, made.closing) == ("a", "quorum")


def test_a_spare_whose_task_was_being_made_is_asked_after_a_replay() -> None:
    made = Machine(agents="abc")
    made.begin("ab", wanted=2, spares=(Spare("c"),))
    made.leave("a")
    assert do.Prepare("c") in made.see(on.Resumed(1.0, Rules()))


def test_an_evaluation_that_was_under_way_is_given_up() -> None:
    made = Machine(Rules(stale=1), "ab")
    made.begin("ab", quorum=1, carries=True)
    made.arrive("b")
    made.see(on.PhaseBegan(0.0, "evaluate", 1, (Planned(task("b", work="evaluate")),), 600.0, 1))
    actions = made.see(on.Resumed(1.0, Rules()))
    assert [a.task.key for a in actions if isinstance(a, do.Ask)] == [task("a").key]
    assert made.closing == "interrupted"
    assert [state.task.agent for state in made.round.settled] == ["b"], (
        "what became of the training is still known"
    )


def test_an_agent_that_went_before_the_crash_may_come_back_after_it() -> None:
    made = Machine(agents="ab")
    made.begin("ab", 10.0)
    made.arrive("a")
    made.leave("b")
    made.wait(19.0)
    made.see(on.Resumed(22.0, Rules()))
    assert not made.closing
    made.wait(RETURN)
    assert made.closing == "nobody left"


@pytest.mark.parametrize("round", [True, False])
def test_tasks_that_cannot_be_made_again_are_dropped_and_with_them_the_round(round: bool) -> None:
    made = Machine(Rules(stale=2), "ab")
    made.begin("ab", quorum=1, carries=True)
    made.arrive("b")
    made.see(on.PhaseBegan(0.0, "train", 2, (Planned(task("b", 2)),), 600.0, 1, carries=True))
    made.see(
        on.TasksDropped(
            1.0, (task("b", 2).key if round else task("a").key,), "made otherwise", round
        )
    )
    assert (made.round.phase is None) is round
    if round:
        assert list(made.round.tasks) == [task("a").key], "what was carried stays carried"
        assert made.round.agents["b"].tasks == ()
    else:
        assert made.of("a").outcome == "dropped: made otherwise"
        made.arrive("b", 2)
        assert made.closing == "quorum"


def test_an_update_that_is_gone_from_the_spool_is_asked_for_again() -> None:
    made = Machine(agents="abc")
    made.begin("abc")
    made.arrive("b")
    made.see(on.UpdateLost(1.0, task("b").key))
    assert [a.task.agent for a in made.see(on.Resumed(1.0, Rules())) if isinstance(a, do.Ask)] == [
        "a",
        "b",
        "c",
    ]
    made.arrive("abc")
    assert (made.order, made.closing) == ("abc", "quorum")


def test_events_are_replayed_by_the_rules_that_they_had() -> None:
    made = Machine(Rules(most=2), agents="a")
    made.see(on.Resumed(1.0, Rules(most=1)))
    assert made.round.rules == Rules(most=1)


# ---- late updates --------------------------------------------------------------------------------


def test_a_late_update_is_folded_in_the_next_round_behind_its_own_tasks() -> None:
    made = Machine(Rules(stale=1), "ab")
    made.begin("ab", quorum=1, carries=True)
    made.arrive("b")
    assert [state.task.agent for state in carried(made.round)] == ["a"]
    made.arrive("a")
    assert made.order == "b", "no phase is under way"
    made.see(on.PhaseBegan(made.now, "train", 2, (Planned(task("b", 2)),), 600.0, 1, carries=True))
    assert made.order == "b", "a late update is folded last, and the phase does not wait for it"
    made.arrive("b", 2)
    assert made.order == "bba"
    made.see(on.PhaseBegan(made.now, "train", 3, (Planned(task("b", 3)),), 600.0, 1, carries=True))
    assert [state.key for state in entries(made.round)] == [task("b", 3).key]


@pytest.mark.parametrize("evaluated", [True, False])
def test_a_carried_task_that_fails_between_two_trainings_is_settled_by_the_second(
    evaluated: bool,
) -> None:
    made = Machine(Rules(stale=2), "ab")
    made.begin("ab", quorum=1, carries=True)
    made.arrive("b")
    if evaluated:
        made.see(on.PhaseBegan(made.now, "evaluate", 1, (), 600.0, 1))
    made.see(on.TaskFailed(1.0, task("a").key, 1, "out of memory"))
    made.see(on.PhaseBegan(made.now, "train", 2, (Planned(task("b", 2)),), 600.0, 1, carries=True))
    made.arrive("b", 2)
    assert [(state.key.agent, state.outcome) for state in made.round.settled] == [
        ("b", "folded"),
        ("a", "failed: out of memory"),
    ]


def test_an_update_that_is_too_late_is_told_so() -> None:
    made = Machine(Rules(stale=1), "ab")
    made.begin("ab", quorum=1, carries=True)
    made.arrive("b")
    made.see(on.PhaseBegan(made.now, "train", 2, (Planned(task("b", 2)),), 600.0, 1, carries=True))
    made.see(on.UpdateCame(made.now, task("b", 2).key, 1, "t", "d" * 64, 0.5))
    assert carried(made.round) == []
    assert [a.reason for a in made.actions if isinstance(a, do.Abort)] == [
        "its weights are too old"
    ]


# ---- replacement ---------------------------------------------------------------------------------


def test_another_is_asked_for_each_that_is_missing_and_none_twice() -> None:
    made = Machine(agents="abcd")
    made.begin("ab", wanted=2, spares=(Spare("d"), Spare("c")))
    actions = made.leave("a")
    assert [a for a in actions if isinstance(a, do.Prepare)] == [do.Prepare("d")]
    assert not [a for a in made.beat("b", 1) if isinstance(a, do.Prepare)], (
        "the task of d is being made"
    )
    made.see(on.TaskAdded(made.now, Planned(task("d"))))
    assert not [a for a in made.beat("b", 2) if isinstance(a, do.Prepare)]
    made.arrive("bd")
    assert (made.order, made.closing) == ("bd", "quorum")


def test_spares_that_have_not_the_time_or_are_at_work_are_not_asked() -> None:
    made = Machine(Rules(stale=5), "abcd")
    made.see(
        on.PhaseBegan(
            0.0, "train", 0, (Planned(task("c", 0)), Planned(task("d", 0))), 600.0, 1, carries=True
        )
    )
    made.arrive("d", 0)
    made.begin(
        "a", wanted=1, limit=100.0, spares=(Spare("b", 200.0), Spare("c", 1.0), Spare("d", 50.0))
    )
    assert [a.agent for a in made.leave("a") if isinstance(a, do.Prepare)] == ["d"]


def test_a_spare_that_could_not_be_asked_is_asked_as_soon_as_it_can_be() -> None:
    made = Machine(Rules(stale=1), "ac")
    made.begin("ac", quorum=1, carries=True)
    made.arrive("a")
    spares = Spare("b"), Spare("c")
    made.see(
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
    assert not [a for a in made.actions if isinstance(a, do.Prepare)], (
        "b is not here, c is at work on a task of an earlier round"
    )
    made.see(on.AgentConnected(1.0, "b", "s"))
    assert made.see(on.ProfileCame(1.0, "b", PROFILE)) == [do.Prepare("b")]
    made.arrive("c")
    assert [a for a in made.actions if isinstance(a, do.Prepare)] == [
        do.Prepare("b"),
        do.Prepare("c"),
    ]


def test_a_phase_that_closes_asks_nobody_else() -> None:
    made = Machine(agents="abc")
    made.begin("ab", wanted=2, limit=30.0, spares=(Spare("c"),))
    made.arrive("b")
    made.now = 30.0
    assert not [a for a in made.leave("a") if isinstance(a, do.Prepare)]
    assert made.closing == "deadline"
    made = Machine(agents="abc")
    made.begin("ab", wanted=2, quorum=1, flowing=True, spares=(Spare("c"),))
    made.arrive("a")
    assert not [a for a in made.actions if isinstance(a, do.Prepare)]
    assert made.see(on.TaskAdded(0.0, Planned(task("c")))) == [], "it came too late"


# ---- leases and silence --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("predicted", "seconds"), [(0.0, LEAST), (2.0, LEAST), (20.0, 60.0), (600.0, 1800.0)]
)
def test_a_lease_is_three_times_what_a_device_is_expected_to_need(
    predicted: float, seconds: float
) -> None:
    agent = Machine(agents="a").round.agents["a"]
    for work in ("train", "evaluate"):
        assert lease_of(Round(), agent, work, predicted) == max(FIRST, seconds), (
            "who never did such work may have to warm up"
        )  # type: ignore[arg-type]
        assert lease_of(Round(), replace(agent, pace={work: 1.0}), work, predicted) == seconds  # type: ignore[arg-type]
        late = replace(agent, wasted={work: Wasted(2, 1)})
        assert lease_of(Round(), late, work, predicted) == 4 * seconds, (
            "a device that is slower than predicted delivers in the end"
        )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lease", "seconds"),
    [(10.0, 3.0), (30.0, 6.0), (60.0, 12.0), (1800.0, 15.0), (math.inf, 15.0), (0.0, 15.0)],
)
def test_heartbeats_come_several_times_within_a_lease(lease: float, seconds: float) -> None:
    assert beats(lease) == seconds


def test_no_claim_makes_a_lease_longer_than_four_times_the_median() -> None:
    made = Machine(agents="abc")
    planned = tuple(
        Planned(task(name), seconds) for name, seconds in zip("abc", (30.0, 40.0, 1e6), strict=True)
    )
    made.see(on.PhaseBegan(0.0, "train", 1, planned, 1e9, 3))
    assert [made.of(name).task.lease for name in "abc"] == [90.0, 120.0, SLACK * CAP * 40.0]


def test_a_lease_follows_what_the_coordinator_measured_at_the_last_task() -> None:
    made = Machine(agents="a")
    for number, lease in ((1, FIRST), (2, SLACK * 80.0)):
        made.see(
            on.PhaseBegan(
                made.now,
                "evaluate",
                number,
                (Planned(task("a", number, "evaluate"), 10.0 * number),),
                600.0,
                1,
            )
        )
        assert made.of("a").task.lease == lease, "it took four times as long as was predicted"
        made.now += 40.0
        made.see(
            on.UpdateCame(made.now, task("a", number, "evaluate").key, 1, "t", "d" * 64, math.nan)
        )


def test_who_shows_no_progress_is_late_after_the_lease_and_not_before() -> None:
    made = Machine(agents="a")
    made.begin("a", 20.0)
    assert made.stay("a", 60.0) == []
    assert do.Report(LeaseExpired("a", 60.1)) in made.stay("a", 0.1)


def test_progress_extends_a_lease_and_the_same_heartbeat_again_does_not() -> None:
    made = Machine(agents="ab")
    made.begin("a", 20.0)
    for now, shown, late in ((0.0, 3, False), (55.0, 4, False), (80.0, 4, False), (85.1, 4, True)):
        made.now = now
        made.beat("a", shown)
        made.wait(0.0)
        assert made.of("a").late is late


def test_claimed_progress_extends_a_lease_to_four_times_its_length_at_most() -> None:
    made = Machine(agents="a")
    made.begin("a", 20.0, limit=1e9)
    for second in range(240):
        made.now = float(second)
        made.beat("a", second)
        made.wait(0.0)
    assert not made.of("a").late
    made.stay("a", 1.1)
    assert made.of("a").late


def test_time_in_line_for_an_upload_slot_is_not_the_agents() -> None:
    made = Machine(agents="a")
    made.begin("a", 20.0, limit=1e9)
    line = frozenset({task("a").key})
    made.stay("a", 50.0)
    for _ in range(30):
        made.wait(40.0, line)
        made.beat("a")
    assert not made.of("a").late
    made.stay("a", 9.0)
    assert not made.of("a").late, "fifty-nine of its sixty seconds"
    made.stay("a", 40.0)
    assert made.of("a").late


def test_time_in_the_upload_queue_is_not_counted_after_a_reconnect() -> None:
    made = Machine(agents="a")
    made.begin("a", 20.0, limit=1e9)
    line = frozenset({task("a").key})
    made.wait(10.0, line)
    for _ in range(30):
        made.beat("a")
        made.wait(20.0, line)
    made.leave("a")
    made.beat("a")
    made.wait(0.5, line)
    made.stay("a", 30.0)
    assert not made.of("a").late
    made.arrive("a")
    assert made.of("a").seconds < 60.0
    assert made.round.agents["a"].pace["train"] < 3.0


def test_an_agent_that_comes_back_late_is_judged_by_its_lease_and_not_by_its_silence() -> None:
    made = Machine(agents="ab")
    tasks = tuple(Planned(task(name, work="evaluate"), 2.0) for name in "ab")
    made.see(on.PhaseBegan(0.0, "evaluate", 1, tasks, 600.0, 2))
    made.stay("b", 50.0)
    made.leave("a")
    made.stay("b", 11.0)
    made.see(on.AgentConnected(made.now, "a", "s"))
    made.wait(0.5)
    assert made.of("a").late


def test_chunks_keep_a_slow_upload_alive_though_heartbeats_come_between_them() -> None:
    made = Machine(agents="a")
    known = replace(made.round.agents["a"], pace={"evaluate": 1.0})
    made.round = replace(made.round, agents=made.round.agents.set("a", known))
    made.see(
        on.PhaseBegan(0.0, "evaluate", 1, (Planned(task("a", work="evaluate"), 2.0),), 600.0, 1)
    )
    made.now = 9.0
    made.see(on.ChunkCame(9.0, task("a", work="evaluate").key))
    for second in range(10, 39):
        made.now = float(second)
        made.beat("a", 0, "send")
        made.wait(0.0)
    assert not made.of("a").late
    made.wait(1.1)
    assert made.of("a").late


def test_progress_on_one_task_does_not_extend_the_lease_of_another() -> None:
    made = Machine(Rules(stale=2), "ab")
    made.begin("ab", 20.0, quorum=1, carries=True)
    made.arrive("b")
    made.see(on.PhaseBegan(0.0, "train", 2, (Planned(task("b", 2), 20.0),), 600.0, 1, carries=True))
    for second in range(0, 64, 2):
        made.now = float(second)
        made.see(on.AgentBeat(made.now, "a", "s", "train", math.nan, second, 2, "train"))
        made.wait(0.0)
    assert made.of("a").late


def test_a_restarted_agent_has_some_heartbeats_to_show_progress_but_no_lease_without_end() -> None:
    made = Machine(agents="a")
    made.begin("a", 20.0, limit=1e9)
    made.stay("a", 59.0)
    made.see(on.AgentConnected(59.0, "a", "s2"))
    made.wait(2.5)
    assert not made.of("a").late
    for second in range(62, 245, 3):
        made.now = float(second)
        made.see(on.AgentConnected(made.now, "a", f"s{second}"))
        made.wait(0.0)
    assert made.of("a").late


def test_what_an_old_process_says_is_not_what_the_new_one_does() -> None:
    made = Machine(agents="a")
    made.see(on.AgentBeat(1.0, "a", "old", "train", 9.0, 1))
    assert made.round.agents["a"].state == "idle"
    made.leave("a")
    assert made.leave("a") == [], "it is said once that it went"
    assert made.round.agents["a"].state == "gone"
    made.see(on.AgentConnected(2.0, "a", "s"))
    assert made.round.agents["a"].state == "idle"


def test_an_agent_that_falls_silent_is_gone_after_three_missed_heartbeats() -> None:
    made = Machine(agents="a")
    assert made.wait(SILENCE) == []
    assert made.wait(0.1) == [do.Report(AgentWent("a", "silent for 45 s"))]
    assert not made.round.agents["a"].online


# ---- updates -------------------------------------------------------------------------------------


def test_an_agent_that_says_nothing_new_leaves_the_round_as_it_is() -> None:
    made = Machine(agents="a")
    made.begin("a")
    made.wait(0.5)
    for event in (
        on.Ticked(1.0),
        on.UpdateCame(1.0, task("x").key, 1, "t", "d" * 64, 0.5),
        on.UpdateCame(1.0, task("a").key, 7, "t", "d" * 64, 0.5),
        on.AgentLeft(1.0, "a", "another session", "went away"),
    ):
        after, actions = step(made.round, event)
        assert after is made.round
        assert actions == []


def test_an_update_is_folded_once_however_often_it_comes() -> None:
    made = Machine(agents="ab")
    made.begin("ab")
    made.arrive("aa")
    made.arrive("b")
    made.arrive("ab")
    assert made.order == "ab"


def test_a_snapshot_is_taken_after_so_many_folds_and_frees_the_spool() -> None:
    made = Machine(Rules(every=2), "abc")
    made.begin("abc")
    made.arrive("a")
    assert not [a for a in made.actions if isinstance(a, do.Snapshot)]
    made.arrive("b")
    keys = task("a").key, task("b").key
    assert [a for a in made.actions if isinstance(a, do.Snapshot)] == [do.Snapshot(keys)]
    assert made.see(on.SnapshotTaken(1.0, (), written=False)) == [], (
        "it is tried again after the next fold"
    )
    made.arrive("c")
    keys = *keys, task("c").key
    assert do.Snapshot(keys) in made.actions
    assert [
        a.key
        for a in made.see(on.SnapshotTaken(2.0, keys, written=True))
        if isinstance(a, do.Forget)
    ] == list(keys)
    assert made.round.unkept == ()


def test_a_snapshot_that_failed_does_not_keep_the_next_round_from_one() -> None:
    made = Machine(Rules(every=2), "abcd")
    made.begin("abcd")
    made.arrive("ab")
    made.see(on.SnapshotTaken(0.0, (task("a").key, task("b").key), written=False))
    made.arrive("cd")
    made.see(on.SnapshotTaken(0.0, tuple(task(name).key for name in "abcd"), written=False))
    made.begin("abc")
    made.actions.clear()
    made.arrive("ab")
    assert [a for a in made.actions if isinstance(a, do.Snapshot)]


def test_in_a_full_spool_nobody_waits_and_a_snapshot_makes_room() -> None:
    made = Machine(agents="abc")
    made.begin("abc")
    made.arrive("b")
    actions = made.see(on.SpoolFilled(1.0))
    assert made.order == "b"
    assert do.Snapshot((task("b").key,)) in [*actions, *made.actions]
    assert do.Relieve(True) in made.see(on.SnapshotTaken(1.0, (task("b").key,), written=True))


def test_what_no_snapshot_needs_to_hold_leaves_the_spool_as_it_is_folded() -> None:
    made = Machine(Rules(durable=False), "a")
    made.begin("a")
    made.arrive("a")
    assert do.Forget(task("a").key) in made.actions


def test_of_a_barred_agent_nothing_is_folded_and_what_was_folded_stays() -> None:
    made = Machine(agents="abc")
    made.begin("abc")
    made.arrive("ac")
    actions = made.see(on.AgentsBarred(1.0, frozenset("ac"), "revoked"))
    assert [a.key.agent for a in actions if isinstance(a, do.Forget)] == ["c"]
    assert (made.of("a").outcome, made.of("c").outcome) == ("folded", "refused: revoked")
    made.arrive("b")
    assert (made.order, made.closing) == ("ab", "nobody left")
    made.see(on.AgentsBarred(2.0, frozenset(), "revoked"))
    assert not made.round.agents["a"].refused
