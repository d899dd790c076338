"""An agent that pauses, and one that measures itself again, in a whole run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.fleet import Fleet
from coordinator.store import Store
from federated import participant
from federated.task import Profile, Timing, Update
from federated.wire import messages
from tests.support.federation import RUN, Member, digits, federate

SMALL = {"method.widths": [0.5], "method.depths": [2], "train.steps": 1, "rounds": 3, "evaluate.every": 3}


def until(met: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not met():
        assert time.monotonic() < end
        time.sleep(0.01)


def trained(folder: Path, round_: int) -> dict[str, str]:
    """How each agent that was asked to train in a round ended."""
    store = Store.open(folder / "runs", RUN, read_only=True)
    try:
        return {entry.agent: entry.outcome for entry in store.entries(round_)}
    finally:
        store.close()


def test_a_paused_agent_is_not_asked_until_it_may_work_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first agent's rounds end when the second one came, when it has paused, and when it goes on."""
    monkeypatch.setattr(participant, "LOOK", 0.02)
    why, begun = {"now": ""}, threading.Event()
    fleets: list[Fleet] = []

    class Second(Member):
        def measure(self, run: messages.Run) -> Profile:
            assert begun.wait(20)
            return super().measure(run)

    resting = Second("a1", digits(1, 2), pause=lambda: why["now"])

    def by_round(update: Update) -> Update:
        if update.work == "train" and update.round == 1:
            begun.set()
            until(lambda: "a1" in fleets[0].agents and fleets[0].agents["a1"].ready)
        if update.work == "train" and update.round in (2, 3):
            why["now"] = "on battery" if update.round == 2 else ""
            until(lambda: resting.participant is not None and resting.participant.paused == why["now"])
        return update

    members = [Member("a0", digits(0, 2), change=by_round), resting]
    federate(tmp_path, members, {**SMALL, "fleet.min_agents": 1, "rounds": 4}, watch=fleets.append)
    assert [sorted(trained(tmp_path, number)) for number in (1, 2, 3, 4)] == [["a0"], ["a0", "a1"], ["a0"], ["a0", "a1"]]


def test_a_task_that_comes_to_a_paused_agent_is_declined_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It pauses in the moment between its status and the task: it looks, and the coordinator does not know yet."""
    looks = iter(["", ""])
    monkeypatch.setattr(participant, "LOOK", 1e9)
    member = Member("a1", digits(1, 2), pause=lambda: next(looks))

    def pause_in_round_1(update: Update) -> Update:
        if update.work == "train" and update.round == 1:
            assert member.participant is not None
            member.participant.paused = "72 C, not below 70 C"  # not yet said
        return update

    federate(tmp_path, [Member("a0", digits(0, 2), change=pause_in_round_1), member], {**SMALL, "rounds": 2})
    outcomes = [trained(tmp_path, number).get("a1") for number in (1, 2)]
    assert "paused: 72 C, not below 70 C" in outcomes


def test_what_a_device_measured_again_is_what_the_coordinator_goes_by(tmp_path: Path) -> None:
    member = Member("a1", digits(1, 2), speed=0.01)

    def slow_down(update: Update) -> Update:
        if update.work == "train" and update.round == 1:
            assert member.participant is not None
            old = member.participant.profile
            member.participant.remeasured(replace(old, cpus=0.5, timings=tuple(Timing(t.submodel, t.batch, 0.03) for t in old.timings)))
        return update

    member.change = slow_down
    done = federate(tmp_path, [Member("a0", digits(0, 2)), member], {**SMALL, "rounds": 2})
    profile = done.fleet.agents["a1"].profile
    assert profile is not None
    assert (profile.cpus, {t.seconds for t in profile.timings}) == (0.5, {0.03})
    assert trained(tmp_path, 2)["a1"] == "folded"
