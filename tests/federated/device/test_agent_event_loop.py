"""The driver of an agent: pauses and new measurements in a whole run, and recovery from the loss of
links, processes and coordinators.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.fleet.message_loop import MessageLoop
from coordinator.store.run_store import Store
from federated.device.agent_state import describe_activity
from federated.device.transfers import Uploads
from federated.task import Profile, Task, Timing, Update
from federated.wire import envelope, messages, topics
from federated.wire.link import Delivery
from federated.wire.links.memory import MemoryBroker, MemoryLink
from tests.support.memory_federation import RUN, Member, digits, federate
from tests.support.scripted_coordinator import (
    AGENT,
    CARD,
    Agent,
    ScriptedCoordinator,
    open_spool,
    task,
)
from tests.support.scripted_coordinator import RUN as HAND_RUN
from tests.support.waiting import eventually

SMALL = {
    "model.name": "mlp-small",
    "method.widths": [0.5],
    "method.depths": [2],
    "train.steps": 1,
    "rounds": 3,
    "evaluate.every": 3,
}


def trained(folder: Path, round_: int) -> dict[str, str]:
    """Return the outcome of each agent that had a training task in a round."""
    store = Store.open(folder / "runs", RUN, read_only=True)
    try:
        return {entry.agent: entry.outcome for entry in store.read_entries(round_)}
    finally:
        store.close()


def test_a_paused_agent_is_not_asked_until_it_may_work_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rounds end: after the second agent joined, after the first paused, and after the first
    may work again.
    """
    monkeypatch.setattr("federated.device.agent_step.LOOK", 0.02)
    why, begun = {"now": ""}, threading.Event()
    fleets: list[MessageLoop] = []

    class Second(Member):
        def measure(self, run: messages.Run) -> Profile:
            assert begun.wait(60)
            return super().measure(run)

    resting = Second("a1", digits(1, 2), pause=lambda: why["now"])

    def by_round(update: Update) -> Update:
        if update.work == "train" and update.round == 1:
            begun.set()
            eventually(lambda: "a1" in fleets[0].agents and fleets[0].agents["a1"].ready)
        if update.work == "train" and update.round in (2, 3):
            why["now"] = "on battery" if update.round == 2 else ""
            eventually(
                lambda: (
                    resting.participant is not None
                    and resting.participant.state.paused == why["now"]
                )
            )
        return update

    members = [Member("a0", digits(0, 2), change=by_round), resting]
    federate(tmp_path, members, {**SMALL, "fleet.min_agents": 1, "rounds": 4}, watch=fleets.append)
    assert [sorted(trained(tmp_path, number)) for number in (1, 2, 3, 4)] == [
        ["a0"],
        ["a0", "a1"],
        ["a0"],
        ["a0", "a1"],
    ]


def test_a_paused_agent_declines_a_task_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator does not know that the agent paused: the status that says so is lost."""
    monkeypatch.setattr("federated.device.agent_step.LOOK", 0.02)
    why = {"now": ""}
    member = Member("a1", digits(1, 2), pause=lambda: why["now"])

    def lose_pauses(delivery: Delivery) -> list[Delivery]:
        said = (
            envelope.decode(delivery.payload)
            if delivery.topic.endswith("/status") and delivery.payload
            else None
        )
        return [] if isinstance(said, messages.Status) and said.paused else [delivery]

    def pause_in_round_1(update: Update) -> Update:
        if update.work == "train" and update.round == 1:
            why["now"] = "72 C, not below 70 C"
            eventually(
                lambda: member.participant is not None and bool(member.participant.state.paused)
            )
        return update

    members = [Member("a0", digits(0, 2), change=pause_in_round_1), member]
    federate(tmp_path, members, {**SMALL, "rounds": 2}, broker=MemoryBroker(tamper=lose_pauses))
    outcomes = [trained(tmp_path, number).get("a1") for number in (1, 2)]
    assert "paused: 72 C, not below 70 C" in outcomes


def test_the_coordinator_uses_a_device_s_new_measurements(tmp_path: Path) -> None:
    member = Member("a1", digits(1, 2), speed=0.01)

    def slow_down(update: Update) -> Update:
        if update.work == "train" and update.round == 1:
            assert member.participant is not None
            old = member.participant.state.profile
            member.participant.update_profile(
                replace(
                    old,
                    cpus=0.5,
                    timings=tuple(Timing(t.submodel, t.batch, 0.03) for t in old.timings),
                )
            )
        return update

    member.change = slow_down
    done = federate(tmp_path, [Member("a0", digits(0, 2)), member], {**SMALL, "rounds": 2})
    profile = done.fleet.agents["a1"].profile
    assert profile is not None
    assert (profile.cpus, {t.seconds for t in profile.timings}) == (0.5, {0.03})
    assert trained(tmp_path, 2)["a1"] == "folded"


# ---- what an agent loses nothing of: driven by hand ----------------------------------------------


def card(agent: Agent, run: messages.Run) -> None:
    agent.clerk.link.publish(topics.run(HAND_RUN), envelope.encode(run), retain=True)


def test_a_coordinator_restart_keeps_all_tasks(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    (offer,) = agent.work(task())
    agent.clerk.tell(task(1, work="evaluate"))
    agent.turn()
    card(agent, replace(CARD, session="s2"))
    assert agent.turn() == [offer], "what is finished is offered at once"
    assert agent.hand.task == task(1, work="evaluate")
    assert len(agent.measured) == 1
    agent.clerk.tell(task(1, work="evaluate"))
    agent.clerk.tell(task())
    assert agent.turn() == [offer], "asked for again: it is there"
    assert len(agent.hand.begun) == 2


def test_a_changed_run_drops_all_tasks(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.work(task())
    card(agent, replace(CARD, session="s2", batch=16))
    assert agent.turn() == []
    assert len(agent.measured) == 2
    assert describe_activity(agent.participant.state) == "idle"
    assert not list(tmp_path.glob("*.update"))


@pytest.mark.parametrize(
    ("old", "new", "goes"),
    [
        (task(1), task(2), True),
        (task(1), task(1, 2), True),
        (task(2, 1), task(1, 2), False),
        (task(1), task(2, work="evaluate"), False),
        (task(1, work="evaluate"), task(2), True),
        (task(1, work="evaluate"), task(1), False),
    ],
    ids=[
        "next round",
        "next attempt",
        "an earlier round",
        "weights evaluated meanwhile",
        "training after evaluation",
        "of one round",
    ],
)
def test_a_newer_task_replaces_an_older_one(
    tmp_path: Path, old: Task, new: Task, goes: bool
) -> None:
    agent = Agent(tmp_path)
    agent.work(old)
    agent.clerk.tell(new)
    agent.turn()
    assert agent.hand.task == new
    assert (tmp_path / f"{old.transfer}.update").exists() != goes


def test_a_killed_agent_offers_its_update_again_without_repeating_work(tmp_path: Path) -> None:
    first = Agent(tmp_path)
    (offer,) = first.work(task())
    second = Agent(tmp_path, first.stop(), "s2", replace(CARD, session="s7"))
    assert second.clerk.hear() == [offer]
    second.clerk.tell(task())
    assert second.turn() == [offer]
    assert second.hand.begun == []
    second.clerk.receipt(task(), "round 1 awaits no such update")
    second.turn()
    assert not list(tmp_path.glob("*.update")) + list(tmp_path.glob("*.task"))
    assert describe_activity(second.participant.state) == "idle"


def test_a_stopped_agent_leaves_its_updates_and_the_end_of_a_run_leaves_nothing(
    tmp_path: Path,
) -> None:
    first = Agent(tmp_path)
    (offer,) = first.work(task())
    first.participant.leave()
    first.link.close()
    first.spool.close()
    second = Agent(tmp_path, first.clerk)
    assert second.clerk.hear() == [offer]
    second.clerk.tell(messages.Goodbye("the run is over"))
    second.turn()
    second.participant.leave()
    assert list(tmp_path.iterdir()) == []


def test_a_finished_update_survives_its_deadline_and_a_task_does_not(tmp_path: Path) -> None:
    """The coordinator may have been away all the while; it says itself what is too late."""
    agent = Agent(tmp_path)
    agent.work(task())
    agent.clerk.tell(task(1, work="evaluate"))
    agent.turn()
    agent.clock.now = 10_000.0
    agent.turn()
    assert agent.hand.task is None
    assert describe_activity(agent.participant.state) == "send"


def test_nothing_is_sent_while_the_link_is_down_and_everything_afterwards(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    (offer,) = agent.work(task())
    agent.clerk.statuses.clear()
    agent.link.drop()
    sent = agent.link.sent_bytes
    for minute in range(600):
        agent.clock.now = 60.0 * minute
        agent.participant.turn(0)
    assert agent.link.sent_bytes == sent
    agent.link.restore()
    assert agent.turn() == [offer]
    assert agent.clerk.statuses[-1] == messages.Status(AGENT, "s1", True)


def test_a_failure_while_the_link_was_down_is_sent_afterwards(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.clerk.shelve(bytes(3000))
    agent.ask(task())
    agent.link.drop()
    agent.hand.end(reason="out of memory")
    assert agent.turn() == []
    agent.link.restore()
    (failure,) = agent.turn()
    assert isinstance(failure, messages.Failure)
    assert failure.reason == "out of memory"


def test_a_failure_that_a_broker_lost_is_sent_again_without_a_retry(
    tmp_path: Path,
) -> None:
    agent = Agent(tmp_path)
    agent.clerk.shelve(bytes(3000))
    agent.ask(task())
    agent.hand.end(reason="out of memory")
    (failure,) = agent.turn()
    agent.clerk.tell(task())
    assert agent.turn() == [failure]
    agent.clerk.tell(task(1, 2))
    assert agent.turn() == []
    assert agent.hand.begun == [task(), task(1, 2)], "another attempt is another chance"


@pytest.mark.parametrize("before", [False, True])
def test_the_older_of_two_namesakes_leaves_and_keeps_its_update(
    tmp_path: Path, before: bool
) -> None:
    clerk = ScriptedCoordinator(MemoryBroker())
    other = envelope.encode(messages.Status(AGENT, "s2", True))
    if before:
        clerk.link.publish(topics.status(HAND_RUN, AGENT), other, retain=True)
    agent = Agent(tmp_path, clerk)
    (offer,) = agent.work(task())
    agent.clerk.statuses.clear()
    agent.clerk.link.publish(topics.status(HAND_RUN, AGENT), other)
    agent.turn()
    assert agent.participant.state.refused != before
    if before:
        assert agent.clerk.statuses[-1] == messages.Status(AGENT, "s1", True), (
            "the other hears of it"
        )
    else:
        assert (
            "another agent joined under the name 'a': give each its own (--name)"
            in agent.participant.state.over
        )
    agent.participant.leave()
    agent.spool.close()
    assert [kept.manifest for kept in open_spool(tmp_path).load_updates(CARD)] == [offer.manifest]  # type: ignore[union-attr]


def test_an_update_of_another_agent_in_a_copied_spool_is_dropped(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    (offer,) = agent.work(task())
    agent.spool.close()
    note = tmp_path / f"{offer.manifest.transfer}.task"
    assert note.exists()
    broker = MemoryBroker()
    uploads = Uploads(MemoryLink(broker, "b"), HAND_RUN, "b", open_spool(tmp_path))
    assert list(uploads.resume(CARD)) == []
    assert not note.exists()


def test_a_spool_over_its_limit_discards_the_oldest_update(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.spool.limit = 12_500
    agent.work(task(1), b"u" * 5000)
    agent.work(task(1, work="calibrate"), b"v" * 2000)
    assert len(list(tmp_path.glob("*.update"))) == 2, "weights go first, but those in use"
    agent.work(task(1, work="evaluate"), b"w" * 3000)
    left = {path.name for path in tmp_path.glob("*.update")}
    assert left == {f"{task(1, work=work).transfer}.update" for work in ("calibrate", "evaluate")}


@pytest.mark.parametrize(
    "reason", ["", "round 1 awaits no such update"], ids=["accepted", "refused"]
)
def test_an_answered_update_is_removed_from_memory_and_disk(tmp_path: Path, reason: str) -> None:
    agent = Agent(tmp_path)
    agent.work(task())
    for _ in range(2):  # it may come twice
        agent.clerk.receipt(task(), reason)
        assert agent.turn() == []
    assert {path.suffix for path in tmp_path.iterdir()} == {".weights"}
    assert agent.participant.state.finished == (not reason)
    assert describe_activity(agent.participant.state) == "idle"


def test_updates_finished_while_the_link_is_down_are_offered_in_order(
    tmp_path: Path,
) -> None:
    """And no questions after them meanwhile, with which a queue would fill up over the hours."""
    agent = Agent(tmp_path)
    agent.work(task())
    agent.ask(task(1, work="evaluate"))
    agent.link.drop()
    agent.hand.end(b"v" * 3000)
    for now in range(0, 7200, 5):
        agent.clock.now = float(now)
        agent.participant.turn(0)
    assert agent.clerk.hear() == []
    agent.link.restore()
    assert [said.work for said in agent.turn() if isinstance(said, messages.Offer)] == [
        "train",
        "evaluate",
    ]


def test_a_goodbye_without_a_reason_ends_an_agent(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.clerk.tell(messages.Goodbye(""))
    agent.turn()
    assert agent.participant.state.over


def test_an_update_that_cannot_be_read_is_a_failure_with_the_reason(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.clerk.shelve(bytes(3000))
    agent.ask(task())
    agent.hand.end(b"u")
    (tmp_path / f"{task().transfer}.update").unlink()
    (failure,) = agent.turn()
    assert isinstance(failure, messages.Failure)
    assert "cannot read its update" in failure.reason
    assert describe_activity(agent.participant.state) == "idle"


def test_a_task_dropped_just_after_its_end_leaves_no_update(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.clerk.shelve(bytes(3000))
    agent.ask(task())
    agent.clerk.tell(messages.Abort(1, 1, "round 1 is closed"))
    agent.hand.end(b"u")
    assert agent.turn() == []
    assert {path.suffix for path in tmp_path.iterdir()} == {".weights"}


def test_an_agent_follows_the_latest_coordinator_alone(tmp_path: Path) -> None:
    """An earlier one that wakes up can neither ask it nor take its update."""
    agent = Agent(tmp_path)
    agent.clerk.epoch = 6
    agent.clerk.tell(messages.Grant("unknown", b"", True))
    agent.turn()
    (offer,) = agent.work(task())
    agent.clerk.epoch = 5
    agent.ask(task(2))
    agent.clerk.receipt(task())
    agent.clerk.tell(messages.Goodbye("over"))
    agent.turn()
    assert not agent.participant.state.over
    assert agent.participant.state.finished == 0
    assert [one.task.round for one in agent.participant.state.tasks] == [offer.round]
    agent.clerk.epoch = 6
    agent.clerk.receipt(task())
    agent.turn()
    assert agent.participant.state.finished == 1
    agent.participant.leave()
    agent.spool.close()


def test_a_restarted_agent_follows_the_latest_coordinator_alone(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.clerk.epoch = 6
    agent.clerk.tell(messages.Grant("unknown", b"", True))
    agent.turn()
    again = Agent(tmp_path, agent.stop(), session="s2")
    again.clerk.epoch = 5
    again.ask(task())
    assert again.participant.state.tasks == ()
    again.clerk.epoch = 6
    again.ask(task())
    assert [one.task for one in again.participant.state.tasks] == [task()]
    again.participant.leave()
    again.spool.close()
