"""Assignment of submodels in whole runs over links in memory, with its reasons."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.assign.decision_record import Decision
from coordinator.observe.events import Event, RoundEnded, RoundStarted
from coordinator.phases.run_context import ENDLESS, PATIENCE
from coordinator.store import control_requests
from coordinator.store.run_store import Store
from federated.errors import FleetError
from federated.task import Update
from federated.training.time_prediction import step_seconds
from tests.support.memory_federation import RUN, Member, digits, federate

SMALL = {
    "model.name": "mlp-small",
    "method.widths": [0.5, 0.75, 1.0],
    "method.depths": [2],
    "evaluate.every": 99,
    "evaluate.between": False,
    "evaluate.devices": False,
}
FIRST, MIDDLE, LAST = (f"w{width:g}-d2" for width in (0.5, 0.75, 1.0))


def history(folder: Path, agent: str) -> list[Decision]:
    with closing(Store.open(folder / "runs", RUN, read_only=True)) as store:
        return [decision for _, decision in store.agents.read_decisions(agent)]


@pytest.mark.slow
def test_an_agent_that_misses_the_constraint_is_not_asked_and_the_reason_is_stored(
    tmp_path: Path,
) -> None:
    fleet = [Member("a0", digits(0, 2)), Member("b0", digits(1, 2))]
    done = federate(tmp_path, fleet, {**SMALL, "fleet.select": "name=a*", "fleet.min_agents": 1})
    assert set(done.result.history.assigned) == {"a0"}
    assert history(tmp_path, "a0")[0].reason.startswith("the largest submodel: ")
    assert {d.reason for d in history(tmp_path, "b0")} <= {
        "not selected: name=a* not met: it has b0",
        "not selected: has not measured itself yet",
    }


def test_a_run_without_a_matching_agent_ends_with_the_reasons(
    tmp_path: Path,
) -> None:
    with pytest.raises(FleetError, match=r"found 0 after .*a0 cpus>8 not met: it has 1"):
        federate(
            tmp_path,
            [Member("a0", digits(0, 2))],
            {**SMALL, "fleet.select": "cpus>8", "fleet.wait": 2.0},
        )


def test_a_submodel_that_a_person_pins_counts_from_the_next_round_on_and_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_requests, "POLL", 0.0)

    def pin(event: Event) -> None:
        if isinstance(event, RoundStarted) and event.round == 1:
            control_requests.pin_agent(tmp_path / "runs" / RUN, "a0", FIRST)

    fleet = [Member(f"a{i}", digits(i, 2)) for i in range(2)]
    settings = {**SMALL, "train.steps": 1, "rounds": 2}
    federate(tmp_path, fleet, settings, read=pin)
    fleet = [Member(f"a{i}", digits(i, 2)) for i in range(2)]
    federate(tmp_path, fleet, {**settings, "rounds": 3}, resume=True)
    found = history(tmp_path, "a0")
    assert [decision.submodel for decision in found] == [LAST, FIRST, FIRST]
    assert [decision.reason for decision in found[1:]] == ["pinned by coordinator pin"] * 2
    assert {decision.submodel for decision in history(tmp_path, "a1")} == {LAST}


@pytest.mark.slow
def test_the_decision_about_an_undrawn_agent_names_its_submodel(tmp_path: Path) -> None:
    federate(
        tmp_path,
        [Member(f"a{i}", digits(i, 2)) for i in range(2)],
        {**SMALL, "fleet.fraction": 0.5},
    )
    (asked, undrawn) = sorted(
        (history(tmp_path, f"a{i}")[0] for i in range(2)), key=lambda d: not d.asked
    )
    assert (asked.asked, asked.submodel) == (True, LAST)
    assert undrawn.reason.startswith(
        f"not sampled (fleet.fraction = 0.5); it would get {LAST}: the largest submodel"
    )


def make_starved(*rounds: int) -> Member:
    """Return an agent that runs out of memory with the largest submodel in these rounds."""

    def change(update: Update) -> Update:
        if update.work == "train" and update.submodel.name == LAST and update.round in rounds:
            raise MemoryError("out of memory")
        return update

    return Member("weak", digits(0, 2), change=change)


@pytest.mark.slow
def test_a_submodel_is_tried_again_after_smaller_ones_succeeded(
    tmp_path: Path,
) -> None:
    """The largest fails in round 1 and is tried again after three rounds in time; it fails in round
    5 and is tried again after six.
    """
    settings = {**SMALL, "train.steps": 1, "rounds": 7}
    federate(tmp_path, [make_starved(1, 5), Member("well", digits(1, 2))], settings)
    federate(
        tmp_path,
        [make_starved(1, 5), Member("well", digits(1, 2))],
        {**settings, "rounds": 13},
        resume=True,
    )
    found = history(tmp_path, "weak")
    assert [d.submodel for d in found] == [LAST, *[MIDDLE] * 3, LAST, *[MIDDLE] * 6, *[LAST] * 2]
    assert found[1].reason.startswith(
        f"moved down from {LAST}: ran out of memory in round 1 with {LAST}"
    )
    assert found[4].reason.startswith(f"moved up from {MIDDLE}: the largest submodel")
    assert {d.submodel for d in history(tmp_path, "well")} == {LAST}


@pytest.mark.slow
def test_an_agent_with_slower_steps_than_measured_moves_down(tmp_path: Path) -> None:
    """From round 3 on it reports steps that take four times as long as before."""

    def slow_down(update: Update) -> Update:
        if update.work != "train":
            return update
        assert fleet[0].participant is not None
        predicted = step_seconds(fleet[0].participant.state.profile.timings, update.submodel, 32)
        step = predicted * (4 if update.round >= 3 else 1)
        return replace(
            update,
            notes={**update.notes, "step": step, "seconds": step * update.steps, "peak": 10**6},
        )

    fleet = [
        Member("slow", digits(0, 2), 0.001, change=slow_down),
        Member("well", digits(1, 2), 0.001),
    ]
    federate(tmp_path, fleet, {**SMALL, "rounds": 5, "train.steps": 3})
    found = history(tmp_path, "slow")
    assert [d.submodel for d in found[:3]] == [LAST] * 3
    assert found[3].submodel == found[4].submodel == FIRST
    assert found[3].reason.endswith("steps take 4 times as long as profiled")
    with closing(Store.open(tmp_path / "runs", RUN, read_only=True)) as store:
        second, third = (
            next(e for e in store.read_entries(number) if e.agent == "slow") for number in (2, 3)
        )
        assert third.step == pytest.approx(4 * second.step)
        assert third.peak == 10**6
        assert store.agents.read_standings()["slow"].step == pytest.approx(4.0)


@pytest.mark.slow
def test_claims_of_more_time_than_passed_are_refused(tmp_path: Path) -> None:
    def lie(update: Update) -> Update:
        return (
            replace(update, notes={**update.notes, "seconds": 1e6})
            if update.work == "train"
            else update
        )

    federate(
        tmp_path, [Member("liar", digits(0, 2), change=lie), Member("well", digits(1, 2))], SMALL
    )
    with closing(Store.open(tmp_path / "runs", RUN, read_only=True)) as store:
        outcomes = {e.agent: e.outcome for e in store.read_entries(1)}
    assert outcomes["well"] == "folded"
    assert outcomes["liar"].startswith(
        "refused: update of liar: expected 'seconds' above 0 and within the"
    )


def test_an_agent_that_fails_the_smallest_submodel_is_left_out_for_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(update: Update) -> Update:
        if update.work == "train" and update.round == 1:
            raise RuntimeError("no")
        return update

    settings = {**SMALL, "method.widths": [0.5], "train.steps": 1, "rounds": 5}
    federate(
        tmp_path,
        [Member("once", digits(0, 2), change=fail), Member("well", digits(1, 2))],
        settings,
    )
    found = history(tmp_path, "once")
    assert [d.asked for d in found] == [True, False, False, False, True]
    assert (
        found[1].reason
        == f"excluded for now: failed in round 1 with {FIRST}: no, and there is no smaller submodel"
    )
    assert caplog.text.count("once is not selected: ") == 1, "not in each round"


def test_an_agent_that_misses_the_deadline_gets_a_smaller_submodel(
    tmp_path: Path,
) -> None:
    closed = threading.Event()

    def delay(update: Update) -> Update:
        if update.work == "train" and update.round == 2:
            assert closed.wait(240)
        return update

    def read(event: Event) -> None:
        if isinstance(event, RoundEnded) and event.done.round == 2:
            closed.set()

    fleet = [Member("slow", digits(0, 2), change=delay), Member("well", digits(1, 2))]
    settings = {**SMALL, "train.steps": 1, "rounds": 3, "fleet.deadline": 3.0}
    federate(tmp_path, fleet, settings, read=read)
    with closing(Store.open(tmp_path / "runs", RUN, read_only=True)) as store:
        outcomes = {e.agent: e.outcome for e in store.read_entries(2)}
        standing = store.agents.read_standings()["slow"]
    found = history(tmp_path, "slow")
    assert outcomes == {"slow": "late", "well": "folded"}
    assert [d.submodel for d in found[:2]] == [LAST, LAST]
    assert found[2].submodel != LAST
    assert f"was late in round 2 with {LAST}" in found[2].reason
    assert standing.setbacks[0].submodel == LAST


@pytest.mark.parametrize(("patience", "setbacks"), [(PATIENCE, 1), (ENDLESS, 0)])
def test_an_update_after_the_quorum_is_late_except_in_a_simulation(
    tmp_path: Path, patience: float, setbacks: int
) -> None:
    """A simulated device claims a speed, which the clock of this machine cannot measure."""
    answered = threading.Event()

    def delay(update: Update) -> Update:
        if update.work == "train":
            assert answered.wait(240)
            time.sleep(1.0)
        return update

    def note(update: Update) -> Update:
        if update.work == "train":
            answered.set()
        return update

    fleet = [
        Member("slow", digits(0, 2), speed=1e-4, change=delay),
        Member("well", digits(1, 2), speed=1e-4, change=note),
    ]
    federate(tmp_path, fleet, {**SMALL, "train.steps": 1, "fleet.quorum": 0.5}, patience=patience)
    with closing(Store.open(tmp_path / "runs", RUN, read_only=True)) as store:
        outcomes, standing = (
            {e.agent: e.outcome for e in store.read_entries(1)},
            store.agents.read_standings()["slow"],
        )
    assert outcomes == {"slow": "late", "well": "folded"}
    assert len(standing.setbacks) == setbacks
    assert standing.step == 1.0 or setbacks
