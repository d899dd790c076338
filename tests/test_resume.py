"""A coordinator that dies inside a round and comes back: nothing is lost, nothing is folded twice, nothing is asked for again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from coordinator import defences
from coordinator.evaluation import Evaluator
from coordinator.journal import Journal
from coordinator.observe.events import Event, StageTook
from coordinator.store import Store
from federated.task import Update
from tests.support.federation import RUN, Member, digits, federate
from tests.support.revival import Fuse, revived

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
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    return dict(federate(tmp_path_factory.mktemp("whole"), members(), SETTINGS).result.state.tensors)


INSTANTS: dict[str, tuple[Any, str, Fuse]] = {
    "before the round is written down": (Journal, "begin", Fuse(1)),
    "before anyone hears of it": (Journal, "begin", Fuse(2, after=True)),
    "before the first fold": (defences, "fold", Fuse(1)),
    "between two folds": (defences, "fold", Fuse(2, after=True)),
    "again and again": (defences, "fold", Fuse(2, 3, 6, 9)),
    "before a snapshot": (Journal, "snapshot", Fuse(1)),
    "between a snapshot and what it makes superfluous": (Journal, "snapshot", Fuse(2, after=True)),
    "after the last fold of the second round": (defences, "fold", Fuse(2 * AGENTS, after=True)),
    "before the round closes": (Journal, "close", Fuse(1)),
    "when it has closed": (Journal, "close", Fuse(2, after=True)),
    "in evaluation": (Evaluator, "evaluate", Fuse(1)),
    "before it is stored": (Store, "save", Fuse(1)),
    "when it is stored": (Store, "save", Fuse(1, after=True)),
    "when the last round is stored": (Store, "save", Fuse(2, after=True)),
}


@pytest.mark.parametrize("instant", INSTANTS)
def test_a_coordinator_that_dies_goes_on_inside_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, torch.Tensor], instant: str
) -> None:
    where, name, fuse = INSTANTS[instant]
    fuse.calls = 0
    monkeypatch.setattr(where, name, fuse.around(getattr(where, name)))
    trained: Counter[tuple[str, int]] = Counter()
    result, deaths = revived(tmp_path, members(trained), SETTINGS)
    assert deaths == len(fuse.deaths)
    assert trained == {(f"a{i}", number): 1 for i in range(AGENTS) for number in (1, 2)}, "nothing is asked for twice"
    assert all(torch.equal(undisturbed[home], result.state.tensors[home]) for home in undisturbed)
    store = Store.open(tmp_path / "runs", RUN, read_only=True)
    for number in (1, 2):
        entries = store.entries(number)
        assert [(e.agent, e.outcome) for e in entries] == [(f"a{i}", "folded") for i in range(AGENTS)]
        assert [e.position for e in entries] == list(range(AGENTS))
        assert all(len(e.digest) == 64 for e in entries)
    store.close()
    assert not list((tmp_path / "runs" / RUN).glob("total-*"))
    assert not list((tmp_path / "runs" / RUN / "spool").iterdir())


def test_what_does_not_outlive_its_process_goes_as_soon_as_it_is_folded(tmp_path: Path) -> None:
    """A simulation of many devices needs no room for all their updates."""

    def look(event: Event) -> None:
        if isinstance(event, StageTook) and event.stage == "finish":
            there.extend((tmp_path / "runs" / RUN / "spool").rglob("*.update"))

    there: list[Path] = []
    revived(tmp_path, members(), SETTINGS, read=look, durable=False)
    assert there == []
