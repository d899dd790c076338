"""Runs that slow or lost agents do not stall: buffered rounds, late updates, replacements, and
kills of the coordinator.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coordinator.assign.selection import make_generator
from coordinator.broker import local_broker as brokers
from coordinator.fleet.message_loop import MessageLoop
from coordinator.observe.round_records import Entry
from coordinator.phases.evaluation import Evaluator
from coordinator.phases.training import Training
from coordinator.round.task_state import Planned
from coordinator.run import runner
from coordinator.run.run_preparation import make_weights, prepare
from coordinator.settings.config import Config
from coordinator.store.agent_tables import AgentTables
from coordinator.store.journal import Journal
from coordinator.store.run_store import Store
from coordinator.trust import configured_defences
from federated.engine.aggregate import Total, fold
from federated.engine.late_updates import Base, Touched, find_touched, make_buffered
from federated.errors import ConfigError
from federated.method import State
from federated.methods.catalogue import find_method
from federated.task import Update
from federated.wire.links.memory import MemoryBroker, MemoryLink
from models.submodel import Submodel
from tests.support.memory_federation import RUN, Member, digits, federate, make_config, run_members
from tests.support.restarted_coordinator import Fuse, Killed, run_with_restarts
from tests.support.waiting import eventually

PINS = ("w1-d2", "w0.5-d2")
QUICK = {
    "method.name": "fedfa-w",
    "method.widths": [0.5, 1.0],
    "model.name": "mlp-small",
    "train.steps": 2,
    "evaluate.examples": 20,
    "evaluate.devices": False,
    "evaluate.between": False,
    "evaluate.every": 100,
    "assign.submodels": {"a[02]": PINS[0], "*": PINS[1]},
}
BUFFERED = {**QUICK, "fleet.mode": "buffered", "fleet.buffer": 2, "rounds": 5, "journal.every": 1}

Sent = dict[tuple[str, int], Update]
"""What devices sent, by agent and round of the task."""


def member(
    index: int,
    of: int,
    sent: Sent,
    seconds: float = 0.0,
    change: Callable[[Update], Update] = lambda update: update,
) -> Member:
    """Return an agent with this duration of each training."""

    def slowly(update: Update) -> Update:
        if update.work == "train":
            time.sleep(seconds)
            update = change(update)
            sent[update.agent, update.round] = update
        return update

    return Member(f"a{index}", digits(index, of), change=slowly)


def entries(folder: Path, rounds: int) -> list[list[Entry]]:
    store = Store.open(folder / "runs", RUN, read_only=True)
    try:
        return [store.read_entries(number) for number in range(1, rounds + 1)]
    finally:
        store.close()


def folded_again(folder: Path, config: Config, sent: Sent) -> State:
    """Fold the same updates again, in the order of the run's database, and return the state."""
    store = Store.open(folder / "runs", RUN, read_only=True)
    facts = store.read_facts()
    store.close()
    plain = find_method(config.method_name)
    assert facts.network is not None
    states = [plain.start(make_weights(config, facts.network, plain), facts.menu, config.settings)]
    since: list[Touched] = []
    taking = make_buffered(
        plain, lambda number, now: Base(states[number], tuple(since[number:now]))
    )
    for number, done in enumerate(entries(folder, config.rounds), 1):
        state, total = states[-1], Total()
        for entry in sorted((e for e in done if e.outcome == "folded"), key=lambda e: e.position):
            update = sent[entry.agent, entry.task or number]
            assert fold(
                total,
                taking.parts(state, plain.place(state, update.submodel), update),
                (update.agent, update.round),
            )
        states.append(plain.finish(state, total, make_generator(config.seed, 3, number)))
        since.append(find_touched(total, states[-1].tensors))
    return states[-1]


def same(one: State, other: State) -> bool:
    return all(
        torch.equal(value, other.tensors[home])
        for home, value in one.tensors.items()
        if not home.startswith("stats/")
    )


def taken(done: list[list[Entry]]) -> list[tuple[str, int]]:
    return [
        (entry.agent, entry.task or number)
        for number, row in enumerate(done, 1)
        for entry in row
        if entry.outcome == "folded"
    ]


@pytest.mark.slow
def test_a_buffer_closes_without_its_slowest_agent_whose_update_is_folded_later_by_its_age(
    tmp_path: Path,
) -> None:
    sent: Sent = {}
    members = [member(i, 4, sent, seconds) for i, seconds in enumerate((0.02, 0.05, 0.1, 0.8))]
    settings = {**BUFFERED, "rounds": 20}
    done = federate(tmp_path, members, settings)
    found = entries(tmp_path, 20)
    assert all(sum(entry.outcome == "folded" for entry in row) >= 2 for row in found)
    updates = taken(found)
    assert len(updates) == len(set(updates)), "each (agent, round of its task) once"
    assert {entry.agent for entry in found[0] if entry.outcome == "folded"} < {
        "a0",
        "a1",
        "a2",
        "a3",
    }
    assert any(entry.task for row in found for entry in row), "late ones count"
    assert same(folded_again(tmp_path, make_config(settings), sent), done.result.state)


def test_an_agent_gets_the_newest_weights_immediately_after_its_update(tmp_path: Path) -> None:
    """With buffers of one update, the fast agent fills every buffer and never waits for the slow
    one.
    """
    sent: Sent = {}

    def wait(update: Update) -> Update:
        assert update.round > 1 or eventually(lambda: ("a0", 6) in sent)
        return update

    federate(
        tmp_path,
        [member(0, 2, sent), member(1, 2, sent, change=wait)],
        {**BUFFERED, "fleet.buffer": 1, "rounds": 8, "fleet.staleness": 50},
    )
    quick = sorted(round for agent, round in sent if agent == "a0")
    assert quick[:6] == [1, 2, 3, 4, 5, 6]


def test_an_update_that_is_too_old_is_dropped_and_its_agent_gets_a_new_task(tmp_path: Path) -> None:
    sent: Sent = {}

    def wait(update: Update) -> Update:
        assert update.round > 1 or eventually(lambda: ("a0", 4) in sent)
        return update

    members = [member(0, 2, sent, 0.05), member(1, 2, sent, change=wait)]
    federate(tmp_path, members, {**BUFFERED, "fleet.buffer": 1, "rounds": 8, "fleet.staleness": 2})
    found = entries(tmp_path, 8)
    stale = [
        (number, entry)
        for number, row in enumerate(found, 1)
        for entry in row
        if entry.outcome == "stale"
    ]
    assert (3, "a1", 1) in [(number, entry.agent, entry.task) for number, entry in stale]
    assert all(number - entry.task == 2 for number, entry in stale), (
        "made two rounds before the state that it would change"
    )
    assert all(
        number - (entry.task or number) < 3 for number, row in enumerate(found, 1) for entry in row
    )


@pytest.mark.parametrize("late", ["take", "drop"])
def test_an_update_whose_round_is_closed_is_taken_by_a_later_one_or_dropped(
    tmp_path: Path, late: str
) -> None:
    sent: Sent = {}

    def wait(update: Update) -> Update:
        """Return the slow agent's first update after several rounds."""
        assert update.round > 1 or eventually(lambda: ("a0", 3) in sent)
        return update

    members = [
        member(0, 3, sent, 0.12),
        member(1, 3, sent, 0.12),
        member(2, 3, sent, change=wait),
    ]
    settings = {
        **QUICK,
        "fleet.quorum": 0.6,
        "rounds": 8,
        "fleet.late": late,
        "journal.every": 1,
        "fleet.staleness": 7,
    }
    done = federate(tmp_path, members, settings)
    found = entries(tmp_path, 8)
    of_slow = [entry for row in found for entry in row if entry.agent == "a2"]
    if late == "drop":
        assert of_slow[0].outcome == "late"
        assert {entry.task for entry in of_slow} == {0}
    else:
        assert (of_slow[0].outcome, of_slow[0].task) == ("folded", 1)
        assert same(folded_again(tmp_path, make_config(settings), sent), done.result.state)


def test_tasks_are_dropped_when_late_updates_no_longer_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator is killed after the first training and resumed with late = 'drop'; the late
    update arrives in the second training.
    """
    monkeypatch.setattr(Evaluator, "evaluate", Fuse(1).around(Evaluator.evaluate))
    second = threading.Event()

    def wait(update: Update) -> Update:
        if update.round == 2:
            second.set()
        assert (update.agent, update.round) != ("a2", 1) or second.wait(60)
        return update

    broker, fleets = MemoryBroker(), list[MessageLoop]()
    members = [
        member(0, 3, {}, change=wait),
        member(1, 3, {}, 0.5, wait),
        member(2, 3, {}, change=wait),
    ]
    settings = {**QUICK, "fleet.quorum": 0.6, "rounds": 3}
    with run_members(members, broker, tmp_path):
        for late, end in (("take", pytest.raises(Killed)), ("drop", nullcontext())):
            config = make_config({**settings, "fleet.late": late}, 3)
            prepared, link = (
                prepare(config, tmp_path / "runs", resume=late == "drop"),
                MemoryLink(broker, "coordinator"),
            )
            with closing(prepared), closing(link), end:
                runner.run(prepared, link, lambda event: None, fleets.append)
    assert {entry.task for row in entries(tmp_path, 3) for entry in row} == {0}
    assert fleets[-1].late == []


def test_a_method_without_support_for_late_updates_drops_them_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sent: Sent = {}
    with caplog.at_level(logging.WARNING, logger="coordinator.run.rounds"):
        federate(
            tmp_path,
            [member(0, 1, sent)],
            {**QUICK, "method.name": "scaffold", "fleet.late": "take"},
        )
    assert "not supported by method scaffold" in caplog.text


def test_a_method_without_support_for_late_updates_is_refused_in_buffered_mode(
    tmp_path: Path,
) -> None:
    wanted = (
        r"fleet.mode = 'buffered': not supported by method depthfl: FedDyn .*; "
        r"supported methods: allsmall, .*heterofl"
    )
    with pytest.raises(ConfigError, match=wanted):
        prepare(make_config({**BUFFERED, "method.name": "depthfl"}), tmp_path, resume=False)


def test_a_failed_agent_is_replaced_and_no_agent_gets_two_tasks(tmp_path: Path) -> None:
    """Two of four agents are needed. The first fails, and a third brings the second update."""
    sent: Sent = {}
    lock, first = threading.Lock(), list[str]()

    def fail(update: Update) -> Update:
        with lock:
            first.append(update.agent)
            if len(first) == 1:
                raise RuntimeError("the first of all fails")
        return update

    members = [member(i, 4, sent, 0.1, fail) for i in range(4)]
    federate(tmp_path, members, {**QUICK, "fleet.fraction": 0.5})
    (row,) = entries(tmp_path, 1)
    assert len(first) == len(set(first)) == 3
    assert sorted(entry.outcome for entry in row) == [
        "failed: the first of all fails",
        "folded",
        "folded",
    ]
    assert {entry.agent for entry in row} == set(first)


def test_more_agents_are_selected_than_needed_and_the_round_does_not_wait_for_the_last(
    tmp_path: Path,
) -> None:
    sent: Sent = {}
    members = [member(i, 4, sent, 3.0 if i == 2 else 0.0) for i in range(4)]
    done = federate(
        tmp_path, members, {**QUICK, "fleet.fraction": 0.5, "fleet.over": 1.0, "rounds": 2}
    )
    for row in entries(tmp_path, 2):
        assert len(row) == 4
        assert sum(entry.outcome == "folded" for entry in row) in (2, 3)
    assert done.result.seconds < 6


INSTANTS: dict[str, tuple[Any, str, int]] = {
    "before the sixth fold": (configured_defences, "fold", 6),
    "before a snapshot": (Journal, "write_total", 4),
    "in the evaluation of the second round": (Evaluator, "evaluate", 2),
}


@pytest.mark.parametrize("instant", INSTANTS)
def test_a_crash_inside_a_buffer_loses_nothing_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instant: str
) -> None:
    where, name, call = INSTANTS[instant]
    monkeypatch.setattr(where, name, Fuse(call).around(getattr(where, name)))
    check_revived(tmp_path, dict(enumerate((0.02, 0.1, 0.2, 0.6))))


def delay_third_agent() -> Callable[[Update], Update]:
    """Return what holds updates back so that the third agent's one of the first round arrives first
    in the second round, where that agent is then selected as a replacement.
    """
    second, besides = threading.Event(), threading.Event()

    def wait(update: Update) -> Update:
        if update.round == 2:
            second.set()
        if (update.agent, update.round) == ("a2", 2):
            besides.set()
        gate = {("a2", 1): second, ("a0", 2): besides, ("a1", 2): besides}.get(
            (update.agent, update.round)
        )
        assert gate is None or gate.wait(60)
        return update

    return wait


def test_a_crash_while_a_replacement_is_selected_loses_and_doubles_no_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AgentTables, "mark_asked", Fuse(1).around(AgentTables.mark_asked))
    check_revived(tmp_path, dict.fromkeys(range(3), 0.02), delay_third_agent())


def test_an_agent_continues_from_an_accepted_update_that_waits_to_be_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third agent's update of the first round completes in the second round, and makes the
    agent available as a replacement before the update is folded. What a codec left out of its
    earlier updates is in it, and must not be in the next one too.
    """
    real, since = Training.make_task, dict[tuple[str, int], int]()

    def record(self: Training, agent: str, submodel: Submodel) -> Planned:
        planned = real(self, agent, submodel)
        since[agent, self.plan.round] = planned.task.since
        return planned

    monkeypatch.setattr(Training, "make_task", record)
    wait = delay_third_agent()
    members = [member(i, 3, {}, 0.02, wait) for i in range(3)]
    federate(tmp_path, members, {**BUFFERED, "rounds": 2})
    assert since == {("a0", 1): 0, ("a1", 1): 0, ("a2", 1): 0} | {
        ("a0", 2): 1,
        ("a1", 2): 1,
        ("a2", 2): 1,
    }


def test_a_round_that_starts_over_keeps_the_tasks_of_earlier_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spool is damaged while the coordinator is down in the second round; the last agent still
    works on the first.
    """
    real, calls, third = configured_defences.fold, list[int](), threading.Event()

    def die(*given: Any, **named: Any) -> Any:
        calls.append(0)
        if len(calls) != 4:
            return real(*given, **named)
        for path in (tmp_path / "runs" / RUN / "spool" / "round-000002").glob("*.update"):
            path.write_bytes(b"damaged")
        raise Killed

    def wait(update: Update) -> Update:
        if update.round == 3:
            third.set()
        assert (update.agent, update.round) != ("a3", 1) or third.wait(60)
        return update

    monkeypatch.setattr(configured_defences, "fold", die)
    members = [member(i, 4, {}, 0.02, wait) for i in range(4)]
    _, deaths = run_with_restarts(
        tmp_path, members, {**BUFFERED, "rounds": 8, "journal.every": 100, "fleet.staleness": 11}
    )
    assert deaths == 1
    assert ("a3", 1) in taken(entries(tmp_path, 8))


def check_revived(
    folder: Path,
    seconds: Mapping[int, float],
    change: Callable[[Update], Update] = lambda update: update,
) -> None:
    """Run a buffered run whose coordinator is killed once, and check its end. seconds: duration of
    each agent's trainings.
    """
    sent: Sent = {}
    trained: list[tuple[str, int]] = []

    def count(update: Update) -> Update:
        trained.append((update.agent, update.round))
        return change(update)

    members = [member(i, len(seconds), sent, slow, count) for i, slow in seconds.items()]
    result, deaths = run_with_restarts(folder, members, BUFFERED)
    updates = taken(entries(folder, 5))
    assert deaths == 1
    assert [m.error for m in members] == [None] * len(members)
    assert len(updates) == len(set(updates)) >= 10
    assert {agent: submodel.name for agent, submodel in result.history.assigned.items()} == {
        f"a{i}": PINS[i % 2] for i in seconds
    }
    assert dict(result.history.folded) == dict(sorted(updates, key=lambda update: update[1]))
    assert len(trained) == len(set(trained)), "nothing is asked for twice"
    assert not list((folder / "runs" / RUN / "spool").iterdir())
    assert same(folded_again(folder, make_config(BUFFERED), sent), result.state)
    assert np.isfinite([float(value.sum()) for value in result.state.tensors.values()]).all()


@pytest.mark.broker
def test_a_buffer_closes_over_a_real_broker_too(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    with brokers.start(port=0, directory=tmp_path / "broker") as broker:
        sent: Sent = {}
        members = [member(i, 3, sent, seconds) for i, seconds in enumerate((0.02, 0.1, 0.8))]
        done = federate(tmp_path, members, {**BUFFERED, "rounds": 8}, broker=broker.address)
    updates = taken(entries(tmp_path, 8))
    assert len(updates) == len(set(updates)) >= 16
    assert same(
        folded_again(tmp_path, make_config({**BUFFERED, "rounds": 8}), sent), done.result.state
    )
