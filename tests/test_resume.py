"""A coordinator that is killed inside a round and resumes: no update is lost, folded twice or
requested again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from coordinator.fleet import round_event_loop
from coordinator.fleet.round_event_loop import RoundEventLoop
from coordinator.observe.events import Event, StageFinished
from coordinator.phases.evaluation import Evaluator
from coordinator.phases.training import Training
from coordinator.run.rounds import Result
from coordinator.store.folder_check import find_file_damage
from coordinator.store.journal import Journal
from coordinator.store.run_store import Store
from coordinator.trust import configured_defences
from federated.task import Update
from tests.support.memory_federation import RUN, Member, digits, federate
from tests.support.restarted_coordinator import Fuse, Killed, run_with_restarts

SETTINGS = {
    "method.widths": [0.5, 1.0],
    "model.name": "mlp-small",
    "train.steps": 2,
    "rounds": 2,
    "evaluate.examples": 20,
    "evaluate.devices": False,
    "journal.every": 2,
}
AGENTS = 5


def members(trained: Counter[tuple[str, int]] | None = None) -> list[Member]:
    def count(update: Update) -> Update:
        if trained is not None and update.work == "train":
            trained[update.agent, update.round] += 1
        return update

    return [Member(f"a{i}", digits(i, AGENTS), change=count) for i in range(AGENTS)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return federate(tmp_path_factory.mktemp("whole"), members(), SETTINGS).result


# schedules kill between any two actions (test_fault_schedules); these really train
INSTANTS: dict[str, tuple[Any, str, Fuse]] = {
    "before anyone hears of it": (Journal, "append", Fuse(40, after=True)),
    "again and again": (configured_defences, "fold", Fuse(2, 3, 6, 9)),
    "between a total and its journal": (Journal, "write_total", Fuse(2, after=True)),
    "in evaluation": (Evaluator, "evaluate", Fuse(1)),
    "when it is stored": (Store, "save", Fuse(1, after=True)),
}


@pytest.mark.parametrize("instant", INSTANTS)
def test_a_killed_coordinator_resumes_inside_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Result, instant: str
) -> None:
    where, name, fuse = INSTANTS[instant]
    fuse.calls = 0
    monkeypatch.setattr(where, name, fuse.around(getattr(where, name)))
    trained: Counter[tuple[str, int]] = Counter()
    result, deaths = run_with_restarts(tmp_path, members(trained), SETTINGS)
    assert deaths == len(fuse.deaths)
    assert trained == {(f"a{i}", number): 1 for i in range(AGENTS) for number in (1, 2)}, (
        "nothing is asked for twice"
    )
    assert all(
        torch.equal(value, result.state.tensors[home])
        for home, value in undisturbed.state.tensors.items()
    )
    store = Store.open(tmp_path / "runs", RUN, read_only=True)
    for number in (1, 2):
        entries = store.read_entries(number)
        assert [(e.agent, e.outcome) for e in entries] == [
            (f"a{i}", "folded") for i in range(AGENTS)
        ]
        assert [e.position for e in entries] == list(range(AGENTS))
        assert all(len(e.digest) == 64 for e in entries)
    store.close()
    assert not list((tmp_path / "runs" / RUN).glob("total-*"))
    assert not list((tmp_path / "runs" / RUN / "spool").iterdir())


def test_an_update_that_is_damaged_while_it_waits_is_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Result
) -> None:
    """Without it the run would stop, or learn from the others alone."""
    damaged = list[Path]()

    def damage(path: Path, digest: str) -> str:
        if not damaged:
            damaged.append(path)
            path.write_bytes(path.read_bytes()[:-1])
        return find_file_damage(path, digest)

    monkeypatch.setattr(round_event_loop, "find_file_damage", damage)
    trained: Counter[tuple[str, int]] = Counter()
    result = federate(tmp_path, members(trained), SETTINGS).result
    assert damaged
    assert sorted(trained.values()) == [1] * (2 * AGENTS - 1) + [2]
    assert all(
        torch.equal(value, result.state.tensors[home])
        for home, value in undisturbed.state.tensors.items()
    )


MOMENTS: dict[str, tuple[Any, str, Fuse]] = {
    "when a round is planned": (Training, "__init__", Fuse(1, 3, 5, 7)),
    "when tasks are out": (RoundEventLoop, "begin", Fuse(1, 4, 7, 10, after=True)),
    "between folds": (configured_defences, "fold", Fuse(2, 5, 8, 11)),
    "before a round is stored": (Store, "save", Fuse(1, 3, 5)),
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_resumed_coordinator_records_the_same_about_its_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """One agent fails with the largest submodel and recovers; another fails with every submodel and
    is excluded for some rounds.
    """

    def fail(update: Update) -> Update:
        if update.work == "train" and update.round <= {"a0": 1, "a1": 2}.get(update.agent, 0):
            raise RuntimeError("no")
        notes = {
            name: value
            for name, value in update.notes.items()
            if name not in ("seconds", "step", "peak")
        }
        return replace(update, notes=notes)  # what it took differs from run to run

    def fleet() -> list[Member]:
        return [Member(f"a{i}", digits(i, 4), change=fail) for i in range(4)]

    settings = {**SETTINGS, "rounds": 5}
    expected = federate(tmp_path / "undisturbed", fleet(), settings).result.history
    assert [one.proofs for one in expected.standings["a0"].setbacks] == []
    assert [(one.submodel, one.proofs) for one in expected.standings["a1"].setbacks] == [
        ("w1-d2", 3),
        ("w0.5-d2", 0),
    ]
    where, name, fuse = MOMENTS[moment]
    fuse.calls = 0
    monkeypatch.setattr(where, name, fuse.around(getattr(where, name)))
    result, deaths = run_with_restarts(tmp_path / "revived", fleet(), settings)
    assert deaths == len(fuse.deaths)
    assert result.history == expected


@pytest.mark.parametrize(
    ("where", "name", "call"), [(configured_defences, "fold", 4), (Evaluator, "evaluate", 1)]
)
def test_a_round_starts_over_if_folded_updates_are_damaged(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: Result,
    caplog: pytest.LogCaptureFixture,
    where: Any,
    name: str,
    call: int,
) -> None:
    """A bit of each file in the spool flips while the coordinator is down, during the training or
    after it.
    """
    real, calls = getattr(where, name), Counter[str]()

    def die(*given: Any, **named: Any) -> Any:
        calls[name] += 1
        if calls[name] != call:
            return real(*given, **named)
        for path in (tmp_path / "runs" / RUN / "spool").rglob("*.update"):
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.unlink()
            path.write_bytes(data)
        raise Killed

    monkeypatch.setattr(where, name, die)
    trained: Counter[tuple[str, int]] = Counter()
    result, deaths = run_with_restarts(
        tmp_path, members(trained), {**SETTINGS, "journal.every": 100}
    )
    assert deaths == 1
    assert "the round starts over" in caplog.text
    assert max(trained.values()) == 2, "they are asked again"
    assert all(
        torch.equal(value, result.state.tensors[home])
        for home, value in undisturbed.state.tensors.items()
    )


def test_updates_of_a_simulation_are_deleted_as_soon_as_they_are_folded(tmp_path: Path) -> None:
    """A simulation of many devices needs no disk space for all their updates."""

    def look(event: Event) -> None:
        if isinstance(event, StageFinished) and event.stage == "finish":
            there.extend((tmp_path / "runs" / RUN / "spool").rglob("*.update"))

    there: list[Path] = []
    run_with_restarts(tmp_path, members(), SETTINGS, read=look, durable=False)
    assert there == []
