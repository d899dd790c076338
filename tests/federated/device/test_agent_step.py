"""The agent as a pure function: its state and its actions after each event."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple, replace

from federated.device import agent_actions as do
from federated.device import agent_events as on
from federated.device.agent_state import (
    ANSWERS,
    AgentState,
    describe_activity,
    find,
    find_active,
    list_sending,
)
from federated.device.agent_step import LOOK, step
from federated.device.next_agent_actions import REMEMBERED
from federated.task import HEARTBEAT, QUICKEST, Task, is_heartbeat_due
from federated.wire.messages import Condition, Failure, Heartbeat, Status
from tests.support.scripted_coordinator import AGENT, CARD, profile, task

PROFILE = profile(CARD)
NEWER = dataclasses.replace(PROFILE, cpus=4.0)
OTHER = bytes(2999) + b"\1"  # other weights than those of most tasks


class Machine:
    """An agent that has joined, and the actions that it returned. stocked: its weights are
    available at once.
    """

    def __init__(self, *, stocked: bool = True) -> None:
        self.agent, self.stocked, self.now = AgentState(CARD, AGENT, "s1", PROFILE), stocked, 0.0
        self.see(on.Started(0.0))

    def see(self, event: on.AgentEvent) -> list[do.AgentAction]:
        """Return the actions after an event, and after the arrival of available weights."""
        self.agent, out = step(self.agent, event)
        found = list(out)
        for action in out:
            if isinstance(action, do.Fetch) and self.stocked:
                found += self.see(on.WeightsCame(event.now, action.task.digest))
        return found

    def ask(self, of: Task) -> list[do.AgentAction]:
        return self.see(on.TaskCame(self.now, of))

    def end(self, of: Task, failure: str | None = None) -> list[do.AgentAction]:
        return self.see(on.TrainingEnded(self.now, of, 0.5, failure))

    def work(self, *tasks: Task) -> None:
        """Perform tasks up to their offers."""
        for of in tasks:
            self.ask(of)
            self.end(of)

    def pause(self, why: str) -> list[do.AgentAction]:
        return self.see(on.PauseSeen(self.now, why))

    def wait(self, seconds: float = 0.0) -> list[do.AgentAction]:
        self.now += seconds
        return self.see(on.Ticked(self.now))

    def wait_for_heartbeat(self) -> float:
        """Wait for the next heartbeat, and return the seconds."""
        before = self.now
        while not list_messages(self.wait(0.1), Heartbeat):
            assert self.now < before + 2 * HEARTBEAT + 100
        return self.now - before

    def stages(self) -> list[tuple[int, str, str]]:
        return [(one.task.round, one.task.work, one.stage) for one in self.agent.tasks]


def list_messages(actions: Sequence[do.AgentAction], kind: type) -> list[object]:
    """Return the messages of one kind, in order."""
    return [
        action.message
        for action in actions
        if isinstance(action, do.Tell) and isinstance(action.message, kind)
    ]


def quiet(actions: Sequence[do.AgentAction]) -> list[do.AgentAction]:
    """Return all actions but heartbeats, log records and checks of pauses."""
    return [
        action
        for action in actions
        if not isinstance(action, do.Log | do.Look)
        and not (isinstance(action, do.Tell) and isinstance(action.message, Heartbeat))
    ]


def evaluation(round: int = 1, attempt: int = 1) -> Task:
    return task(round, attempt, "evaluate")


# ---- tasks ---------------------------------------------------------------------------------------


def test_a_task_is_fetched_trained_offered_and_forgotten() -> None:
    made = Machine()
    assert quiet(made.ask(task())) == [do.Fetch(task()), do.Train(task())]
    assert quiet(made.end(task())) == [do.Trim(task().digest), do.Offer(task(), restart=True)]
    assert quiet(made.see(on.UpdateAnswered(1.0, task().transfer, True, ""))) == [do.Forget(task())]
    assert (made.agent.tasks, made.agent.finished, made.agent.loss) == ((), 1, 0.5)


def test_a_repeated_task_runs_once_and_gets_a_new_deadline() -> None:
    made = Machine()
    made.ask(task())
    made.now = 50.0
    assert made.ask(task()) == []
    assert quiet(made.wait(50.0)) == [], "its first deadline was at 60"
    assert quiet(made.wait(20.0)) == [do.StopTraining(), do.Forget(task())]


def test_a_finished_task_is_offered_again_on_request_even_past_its_deadline() -> None:
    made = Machine()
    made.work(task())
    made.wait(1000.0)
    assert made.ask(task()) == [do.Offer(task(), restart=True)]


def test_tasks_run_one_at_a_time_in_order_of_arrival() -> None:
    made = Machine()
    made.ask(task())
    assert made.ask(evaluation()) == made.ask(task(work="calibrate")) == []
    assert do.Fetch(evaluation()) in made.end(task())
    assert made.stages() == [
        (1, "train", "sending"),
        (1, "evaluate", "training"),
        (1, "calibrate", "waiting"),
    ]


def test_a_newer_task_supersedes_older_ones_at_every_stage() -> None:
    made = Machine()
    made.work(task(1))
    made.ask(evaluation(1))
    made.ask(task(1, 1, "calibrate"))
    found = made.ask(task(2))
    assert found[1:] == [
        do.Forget(task(1)),
        do.StopTraining(),
        do.Forget(evaluation(1)),
        do.Fetch(task(2)),
        do.Train(task(2)),
    ]
    assert made.stages() == [(2, "train", "training")]


def test_an_evaluation_does_not_supersede_a_training() -> None:
    made = Machine()
    made.ask(task(1))
    made.ask(evaluation(2))
    assert made.stages() == [(1, "train", "training"), (2, "evaluate", "waiting")]
    made.ask(evaluation(3))
    assert made.stages() == [(1, "train", "training"), (3, "evaluate", "waiting")]


def test_a_paused_agent_declines_and_takes_the_same_task_later() -> None:
    made = Machine()
    assert made.pause("on battery") == [
        do.Log("pausing: on battery"),
        do.Tell(Status(AGENT, "s1", True, "on battery")),
    ]
    (failure,) = list_messages(made.ask(task()), Failure)
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.paused) == ("on battery", True)
    made.pause("")
    assert do.Train(task()) in made.ask(task())


def test_a_pause_does_not_stop_a_task_that_has_begun() -> None:
    made = Machine()
    made.ask(task())
    made.pause("too hot")
    assert made.ask(task()) == []
    assert do.Offer(task(), restart=True) in made.end(task())


def test_an_abort_drops_tasks_up_to_its_round_and_attempt() -> None:
    made = Machine()
    made.work(task(1), evaluation(2))
    made.ask(task(2, 1, "calibrate"))
    assert made.see(on.TasksAborted(0.0, 1, 0, "no")) == []
    assert quiet(made.see(on.TasksAborted(0.0, 1, 1, "no"))) == [do.Forget(task(1, 1))]
    assert quiet(made.see(on.TasksAborted(0.0, 3, 1, "no"))) == [
        do.Forget(evaluation(2)),
        do.StopTraining(),
        do.Forget(task(2, 1, "calibrate")),
    ]
    made.ask(task(3, 2))
    assert made.see(on.TasksAborted(0.0, 9, 1, "no")) == [], "of another attempt"


def test_a_task_whose_deadline_passes_while_it_waits_is_never_started() -> None:
    made = Machine()
    made.ask(task())
    made.now = 30.0
    made.ask(dataclasses.replace(evaluation(), deadline=10.0))
    made.ask(task(1, 1, "calibrate"))
    made.now = 45.0
    found = made.end(task())
    assert [action.task.work for action in found if isinstance(action, do.Fetch)] == ["calibrate"]


def test_an_update_is_refused_or_accepted_once_and_only_trainings_count() -> None:
    made = Machine()
    made.work(task(), evaluation())
    refused = made.see(on.UpdateAnswered(0.0, task().transfer, False, "not finite"))
    assert [action.text for action in refused if isinstance(action, do.Log)] == [
        "round 1: the coordinator refused the update: not finite"
    ]
    assert made.see(on.UpdateAnswered(0.0, task().transfer, True, "")) == [], "it came twice"
    made.see(on.UpdateAnswered(0.0, evaluation().transfer, True, ""))
    assert (made.agent.tasks, made.agent.finished) == ((), 0)


# ---- weights and the disk ------------------------------------------------------------------------


def test_only_the_weights_that_are_fetched_start_a_training() -> None:
    made = Machine(stocked=False)
    made.ask(task())
    assert made.see(on.WeightsCame(0.0, "0" * 64)) == []
    assert made.see(on.WeightsCame(0.0, task().digest)) == [do.Train(task())]
    assert made.see(on.WeightsCame(0.0, task().digest)) == []


def test_weights_that_are_published_elsewhere_meanwhile_are_fetched_from_there() -> None:
    made = Machine(stocked=False)
    made.ask(task())
    moved = dataclasses.replace(task(), slot="1")
    assert made.ask(moved) == [do.Fetch(moved)]
    assert made.see(on.WeightsCame(0.0, task().digest)) == [do.Train(moved)]
    assert made.ask(task()) == [], "they are here"


def test_a_full_disk_first_removes_weights_and_then_fails_the_task() -> None:
    made = Machine(stocked=False)
    made.agent = replace(made.agent, loss=0.5)
    made.ask(task())
    assert made.see(on.WeightsFailed(0.0, task().digest, "/spool: full", spare=True)) == [
        do.FreeSpace(),
        do.Fetch(task()),
    ]
    (failure,) = list_messages(
        made.see(on.WeightsFailed(0.0, task().digest, "/spool: full", spare=False)), Failure
    )
    assert isinstance(failure, Failure)
    assert failure.reason == "no room for its weights (3000 bytes) in /spool: full"
    assert made.agent.tasks == ()
    assert math.isnan(made.agent.loss), "of an earlier task"


def test_a_spool_over_its_limit_discards_the_oldest_update_but_not_the_newest() -> None:
    made = Machine()
    made.work(task(1), evaluation(1))
    found = made.see(on.SpoolOverfull(0.0))
    assert do.Log("the spool is full: discarding the update of round 1", True) in found
    assert quiet(found) == [do.Forget(task(1)), do.Trim(evaluation(1).digest)]
    assert made.see(on.SpoolOverfull(0.0)) == []


# ---- failures ------------------------------------------------------------------------------------


def test_a_failure_is_reported_again_for_the_same_attempt_and_a_new_attempt_is_tried() -> None:
    made = Machine()
    made.ask(task())
    found = made.end(task(), "out of memory")
    assert do.Forget(task()) in found
    assert do.Log("round 1: train failed: out of memory", True, task(), "failed") in found
    assert list_messages(made.ask(task()), Failure) == list_messages(found, Failure) != []
    assert do.Train(task(1, 2)) in made.ask(task(1, 2))


def test_the_oldest_failures_are_forgotten_and_all_after_a_coordinator_restart() -> None:
    made = Machine()
    for round in range(1, REMEMBERED + 2):
        made.ask(task(round))
        made.end(task(round), "no")
    assert len(made.agent.failures) == REMEMBERED
    assert do.Train(task(1)) in made.ask(task(1))
    made.see(on.CardCame(0.0, dataclasses.replace(CARD, session="s2")))
    assert made.agent.failures == ()


# ---- the link ------------------------------------------------------------------------------------


def test_nothing_is_sent_while_the_link_is_down_and_everything_in_order_afterwards() -> None:
    made = Machine()
    made.work(task(1))
    made.ask(evaluation(1))
    made.see(on.LinkLost(0.0))
    found = [
        *made.end(evaluation(1), "no"),
        *made.pause("too hot"),
        *made.see(on.UploadStalled(0.0, task(1))),
        *made.wait(100.0),
    ]
    assert [action for action in found if isinstance(action, do.Tell | do.Offer)] == []
    back = quiet(made.see(on.LinkBack(100.0)))
    assert back[:3] == [
        do.AskStatus(),
        do.Tell(PROFILE),
        do.Tell(Status(AGENT, "s1", True, "too hot")),
    ]
    assert list_messages(back[3:4], Failure) != []
    assert back[4:] == [do.Offer(task(1), restart=True)]


def test_an_upload_without_progress_is_offered_as_it_is() -> None:
    made = Machine()
    made.work(task())
    assert made.see(on.UploadStalled(5.0, task())) == [do.Offer(task(), restart=False)]
    assert made.see(on.UploadStalled(5.0, task(2))) == []


@pytest.mark.parametrize(
    ("lease", "pace"), [(0.0, HEARTBEAT), (50.0, 10.0), (5.0, QUICKEST), (1e6, HEARTBEAT)]
)
def test_heartbeats_follow_the_lease_and_report_progress(lease: float, pace: float) -> None:
    made = Machine()
    made.ask(dataclasses.replace(task(), lease=lease, deadline=math.inf))
    (first,) = list_messages(made.see(on.Ticked(0.0, 0, (3, 8))), Heartbeat)
    assert isinstance(first, Heartbeat)
    assert (first.state, first.round, first.work, first.step, first.steps) == (
        "train",
        1,
        "train",
        3,
        8,
    )
    second, *later = (made.wait_for_heartbeat() for _ in range(4))
    assert second <= pace + 0.1, "the lease must not end before it"
    assert later == [pytest.approx(pace, abs=0.2)] * 3


def test_agents_that_start_together_do_not_go_on_to_send_heartbeats_together() -> None:
    names, seconds = [f"a{i}" for i in range(300)], 26
    due = [
        sum(is_heartbeat_due(name, now, now + 1, seconds) for name in names)
        for now in range(100, 100 + seconds)
    ]
    assert sum(due) == len(names)
    assert max(due) <= 25


def test_heartbeats_of_a_large_fleet_are_rare_and_its_growth_changes_nothing_else() -> None:
    made = Machine()
    made.ask(dataclasses.replace(task(), lease=50.0, deadline=math.inf))
    assert len(list_messages(made.wait(0.0), Heartbeat)) == 1
    before = made.agent
    assert made.see(on.CardCame(0.0, dataclasses.replace(CARD, heartbeat=50.0))) == []
    assert made.agent == replace(before, card=made.agent.card)
    made.wait_for_heartbeat()
    assert made.wait_for_heartbeat() == pytest.approx(50.0, abs=0.2)
    made.end(task())
    assert list_messages(made.wait(9.9), Heartbeat) == [], "a new activity waits, too"
    assert len(list_messages(made.wait(0.1), Heartbeat)) == 1


@pytest.mark.parametrize("working", [False, True])
def test_heartbeats_report_the_condition_of_the_device(*, working: bool) -> None:
    made, hot = Machine(), Condition(71.5, True, "battery")
    if working:
        made.ask(task())
    (beat,) = list_messages(made.see(on.Ticked(0.0, condition=hot)), Heartbeat)
    assert isinstance(beat, Heartbeat)
    assert (beat.state, beat.condition) == ("train" if working else "idle", hot)


def test_a_new_activity_sends_a_heartbeat_at_once() -> None:
    made = Machine(stocked=False)
    said = []
    for event in (
        on.Started(0.0),
        on.TaskCame(0.0, task()),
        on.WeightsCame(0.0, task().digest),
        on.TrainingEnded(0.0, task(), 0.5),
    ):
        made.see(event)
        said += list_messages(made.wait(), Heartbeat)
        assert list_messages(made.wait(), Heartbeat) == []
    assert [beat.state for beat in said if isinstance(beat, Heartbeat)] == [
        "idle",
        "download",
        "train",
        "send",
    ]


def test_the_pause_is_checked_at_intervals() -> None:
    made = Machine()
    assert do.Look() not in made.wait(LOOK - 0.01)
    assert do.Look() in made.wait(0.01)
    assert do.Look() not in made.wait(LOOK - 0.01)


# ---- who is here ---------------------------------------------------------------------------------


def make_status(session: str, *, retained: bool = False) -> on.StatusHeard:
    return on.StatusHeard(0.0, Status(AGENT, session, True), retained)


def test_an_agent_leaves_when_a_newer_one_of_its_name_joins() -> None:
    made = Machine()
    made.see(make_status("s1"))
    made.see(make_status("s2"))
    assert (made.agent.over, made.agent.refused) == (
        "another agent joined under the name 'a': give each its own (--name)",
        True,
    )


def test_an_agent_tells_an_older_one_of_its_name_to_leave_a_limited_number_of_times() -> None:
    made = Machine()
    made.see(make_status("s2"))
    made.see(make_status("s1"))
    for _ in range(ANSWERS):
        said, *rest = made.see(make_status("s2"))
        assert isinstance(said, do.Log)
        assert said.warn
        assert rest == [do.Tell(PROFILE), do.Tell(Status(AGENT, "s1", True))]
    made.see(make_status("s2"))
    assert made.agent.refused


def test_an_agent_leaves_when_it_finds_a_namesake_again_after_its_own_birth() -> None:
    made = Machine()
    made.see(make_status("s1"))
    for event in (
        on.LinkBack(0.0),
        make_status("s2", retained=True),
        make_status("s1"),
        on.LinkBack(0.0),
    ):
        made.see(event)
        assert not made.agent.over
    made.see(make_status("s2", retained=True))
    assert made.agent.refused


def test_a_coordinator_restart_keeps_all_tasks() -> None:
    made = Machine()
    made.work(task())
    made.ask(evaluation())
    found = made.see(on.CardCame(0.0, dataclasses.replace(CARD, session="s2")))
    assert found == [
        do.Tell(PROFILE),
        do.Tell(Status(AGENT, "s1", True)),
        do.Offer(task(), restart=True),
    ]
    assert made.stages() == [(1, "train", "sending"), (1, "evaluate", "training")]
    assert made.see(on.CardCame(0.0, dataclasses.replace(CARD, session="s2"))) == [], (
        "it is known now"
    )


def test_a_changed_run_drops_all_tasks_and_requires_a_new_profile() -> None:
    made = Machine()
    made.work(task())
    made.ask(evaluation())
    found = quiet(made.see(on.CardCame(0.0, dataclasses.replace(CARD, batch=16))))
    assert found == [do.Measure(), do.Forget(task()), do.StopTraining(), do.Forget(evaluation())]
    assert made.see(on.ProfileMeasured(0.0, NEWER)) == [
        do.Tell(NEWER),
        do.Tell(Status(AGENT, "s1", True)),
    ]


def test_an_unchanged_card_or_one_of_another_run_changes_nothing() -> None:
    made = Machine()
    for card in (CARD, dataclasses.replace(CARD, run="another")):
        before = made.agent
        assert made.see(on.CardCame(7.0, card)) == []
        assert made.agent is before


@pytest.mark.parametrize(
    "event", [on.Dismissed(0.0, "the run is over"), on.Dismissed(0.0, "")], ids=["a reason", "none"]
)
def test_the_end_of_a_run_removes_everything(event: on.Dismissed) -> None:
    made = Machine()
    made.work(task())
    made.ask(evaluation())
    assert made.see(event) == []
    assert made.wait(100.0) == [do.Look()], "it only leaves"
    assert quiet(made.see(on.Stopped(100.0))) == [
        do.Forget(task()),
        do.StopTraining(),
        do.Forget(evaluation()),
        do.Erase(),
    ]


@pytest.mark.parametrize("refused", [False, True])
def test_an_agent_that_is_stopped_or_rejected_keeps_its_updates_and_signs_off(
    refused: bool,
) -> None:
    made = Machine()
    made.work(task())
    made.ask(evaluation())
    if refused:
        made.see(on.Dismissed(0.0, "its data do not fit", refused=True))
    found = quiet(made.see(on.Stopped(0.0)))
    assert found == [
        do.StopTraining(),
        do.Forget(evaluation()),
        do.Tell(Status(AGENT, "s1", False)),
    ]
    assert made.stages() == [(1, "train", "sending")]
    assert made.wait(100.0) == [do.Look()], "nothing is said after the farewell"
    assert made.see(on.UploadStalled(100.0, task())) == []


# ---- random events -------------------------------------------------------------------------------

TASKS = st.builds(
    lambda round, attempt, work, other, slot, lease: dataclasses.replace(
        task(round, attempt, work, weights=OTHER if other else bytes(3000)), slot=slot, lease=lease
    ),
    st.integers(1, 3),
    st.integers(1, 2),
    st.sampled_from(["train", "calibrate", "evaluate"]),
    st.booleans(),
    st.sampled_from(["0", "1"]),
    st.sampled_from([0.0, 20.0]),
)
DIGESTS = st.sampled_from([task().digest, task(weights=OTHER).digest])
CARDS = st.builds(
    lambda session, batch: dataclasses.replace(CARD, session=session, batch=batch),
    st.sampled_from(["s1", "s2"]),
    st.integers(32, 33),
)
STATUSES = st.builds(Status, st.just(AGENT), st.sampled_from(["r", "s1", "t"]), st.booleans())
NOW = st.just(0.0)  # replaced by the time that is drawn for the event
EVENTS = st.one_of(
    st.builds(on.TaskCame, NOW, TASKS),
    st.builds(on.WeightsCame, NOW, DIGESTS),
    st.builds(on.TrainingEnded, NOW, TASKS, st.just(0.5), st.sampled_from([None, "out of memory"])),
    st.builds(on.WeightsFailed, NOW, DIGESTS, st.just("/spool: full"), st.booleans()),
    st.builds(
        on.UpdateAnswered, NOW, TASKS.map(lambda one: one.transfer), st.booleans(), st.just("")
    ),
    st.builds(on.UploadStalled, NOW, TASKS),
    st.builds(on.TasksAborted, NOW, st.integers(0, 3), st.integers(0, 2), st.just("it is closed")),
    st.builds(on.StatusHeard, NOW, STATUSES, st.booleans()),
    st.builds(on.CardCame, NOW, CARDS),
    st.builds(on.ProfileMeasured, NOW, st.sampled_from([PROFILE, NEWER])),
    st.builds(on.PauseSeen, NOW, st.sampled_from(["", "on battery"])),
    st.builds(on.LinkLost, NOW),
    st.builds(on.LinkBack, NOW),
    st.builds(on.SpoolOverfull, NOW),
    st.builds(on.Ticked, NOW, st.integers(0, 9)),
)


def facts(agent: AgentState) -> tuple[object, ...]:
    """Return the state without the time, as a tuple, so that NaN equals itself."""
    return astuple(replace(agent, now=0.0))


def settled(agent: AgentState, actions: Sequence[do.AgentAction], of: Task) -> bool:
    """Return True if the coordinator learns, now or later, that a task failed."""
    known = [*list_messages(actions, Failure), *agent.unsaid]
    about = (of.round, of.attempt, of.work, of.submodel.name)
    return any(
        isinstance(one, Failure) and (one.round, one.attempt, one.work, one.submodel) == about
        for one in known
    )


def ends_well(
    before: AgentState, event: on.AgentEvent, after: AgentState, actions: Sequence[do.AgentAction]
) -> None:
    """Check that a task leaves the state only if it was answered, failed or dropped, and that its
    download or training is then stopped.
    """
    dropped = any(
        isinstance(action, do.Log) and action.text.startswith("dropping tasks")
        for action in actions
    )
    for one in before.tasks:
        if find(after, one.task) is not None:
            continue
        if one.stage == "sending":
            assert do.Forget(one.task) in actions
        elif isinstance(event, on.TrainingEnded | on.WeightsFailed) and settled(
            after, actions, one.task
        ):
            assert one.stage == ("training" if isinstance(event, on.TrainingEnded) else "fetching")
        else:
            assert dropped
            assert one.stage != "training" or do.StopTraining() in actions
            assert (
                one.stage != "fetching"
                or do.StopFetching() in actions
                or isinstance(event, on.WeightsCame | on.WeightsFailed)
            )
    if isinstance(event, on.TaskCame):
        assert find(after, event.task) is not None or settled(after, actions, event.task)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(EVENTS, st.sampled_from([0.0, 1.0, 30.0])), max_size=40))
def test_an_agent_keeps_its_rules_under_random_events(
    happened: list[tuple[on.AgentEvent, float]],
) -> None:
    agent, _ = step(AgentState(CARD, AGENT, "s1", PROFILE), on.Started(0.0))
    now, hands = 0.0, None  # the task that the trainer has
    for kind, seconds in [*happened, (on.LinkBack(0.0), 0.0), (on.Stopped(0.0), 0.0)]:
        now += seconds
        event = replace(kind, now=now)
        before, (agent, actions) = agent, step(agent, event)
        ends_well(before, event, agent, actions)
        stages = [one.stage for one in agent.tasks if one.stage != "waiting"]
        assert sum(stage != "sending" for stage in stages) <= 1, "one task at a time"
        assert len({(one.task.key, one.task.attempt) for one in agent.tasks}) == len(agent.tasks), (
            "none of them twice"
        )
        if not before.online and not agent.online:
            assert not any(isinstance(action, do.Tell | do.Offer) for action in actions), (
                "nothing is sent offline"
            )
        if agent.online and not agent.over:
            assert agent.said == agent.paused
            assert not agent.unsaid
            assert all(one.offered for one in list_sending(agent)), "nothing waits to be said"
            assert find_active(agent) is not None or all(
                one.stage == "sending" for one in agent.tasks
            ), "nothing waits for nothing"
        if (
            isinstance(event, on.TrainingEnded)
            and hands is not None
            and hands.key == event.task.key
            and hands.attempt == event.task.attempt
        ):
            hands = None
        for action in actions:
            assert not (isinstance(action, do.Train) and hands is not None), (
                "the trainer has one task"
            )
            hands = (
                action.task
                if isinstance(action, do.Train)
                else None
                if isinstance(action, do.StopTraining)
                else hands
            )
        assert describe_activity(agent) == (
            hands.work if hands is not None else describe_activity(agent)
        )
        assert (hands is not None) == ("training" in stages)
        assert agent is before or actions or facts(agent) != facts(before), (
            "the same object where nothing changed"
        )
    assert all(one.stage == "sending" for one in agent.tasks), (
        "the rest is resumed in the next process"
    )


def test_the_pure_modules_import_nothing_that_waits_or_touches_the_machine() -> None:
    forbidden = {"logging", "os", "pathlib", "random", "secrets", "socket", "threading", "time"}
    driven = {
        f"federated.device.{name}"
        for name in ("agent_event_loop", "agent_run_files", "task_execution", "transfers")
    } | {"federated.wire.link"}
    for name in (
        "agent_actions",
        "agent_events",
        "agent_state",
        "agent_step",
        "next_agent_actions",
    ):
        tree = ast.parse(
            Path(str(importlib.import_module(f"federated.device.{name}").__file__)).read_text()
        )
        found = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        found |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not found & (forbidden | driven), name


def test_a_profile_that_the_coordinator_lacks_is_repeated_ever_more_seldom() -> None:
    made = Machine()
    times = [
        second
        for second in range(1, 200)
        if do.Tell(PROFILE) in made.see(on.AnnouncementLost(float(second)))
    ]
    assert times == [1, 21, 61, 141]
