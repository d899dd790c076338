"""A coordinator that dies inside a round and comes back: nothing is lost, nothing is folded twice, nothing is asked for again."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from coordinator import defences, start
from coordinator.config import load
from coordinator.evaluation import Evaluator
from coordinator.journal import Journal
from coordinator.progress import Lines
from coordinator.rounds import Result
from coordinator.store import Store
from federated.task import Update
from federated.wire.memory import MemoryBroker, MemoryLink
from tests.support.federation import RUN, Member, digits, federate, link_of

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


class Killed(BaseException):
    """What stands for the end of the process."""


class Fuse:
    """Ends the process at these calls of something. after: when that is done, not before."""

    def __init__(self, *deaths: int, after: bool = False) -> None:
        self.deaths, self.after, self.calls = deaths, after, 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def fused(*args: Any, **named: Any) -> Any:
            self.calls += 1
            now = self.calls in self.deaths
            if now and not self.after:
                raise Killed
            result = function(*args, **named)
            if now:
                raise Killed
            return result

        return fused


def members(trained: Counter[tuple[str, int]] | None = None) -> list[Member]:
    def count(update: Update) -> Update:
        if trained is not None and update.work == "train":
            trained[update.agent, update.round] += 1
        return update

    return [Member(f"a{i}", digits(i, AGENTS), change=count) for i in range(AGENTS)]


def lives(folder: Path, agents: list[Member]) -> tuple[Result, int]:
    """Runs a coordinator again and again until it comes to the end, beside agents that live through it all; how often it died."""
    torch.set_num_threads(1)
    broker, deaths = MemoryBroker(), 0
    config = load(None, {}, [("name", RUN), ("seed", 0), ("fleet.min_agents", AGENTS), ("fleet.wait", 30.0), *SETTINGS.items()])
    threads = [threading.Thread(target=a.live, args=(link_of(broker, a), folder), daemon=True) for a in agents]
    for thread in threads:
        thread.start()
    while True:
        prepared = start.prepare(config, folder / "runs", resume=deaths > 0)
        link = MemoryLink(broker, "coordinator")
        try:
            result = start.run(prepared, link, Lines(lambda line: None))
            break
        except Killed:
            deaths += 1
        finally:
            prepared.store.close()
            link.close()
    for thread in threads:
        thread.join(10)
    return result, deaths


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
    result, deaths = lives(tmp_path, members(trained))
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

    class Looking(Lines):
        def took(self, what: str, seconds: float) -> None:
            if what == "finish":
                there.extend((tmp_path / "runs" / RUN / "spool").rglob("*.update"))

    torch.set_num_threads(1)
    there: list[Path] = []
    broker, agents = MemoryBroker(), members()
    config = load(None, {}, [("name", RUN), ("seed", 0), ("fleet.min_agents", AGENTS), ("fleet.wait", 30.0), *SETTINGS.items()])
    threads = [threading.Thread(target=a.live, args=(link_of(broker, a), tmp_path), daemon=True) for a in agents]
    prepared, link = start.prepare(config, tmp_path / "runs", resume=False), MemoryLink(broker, "coordinator")
    for thread in threads:
        thread.start()
    start.run(prepared, link, Looking(lambda line: None), durable=False)
    prepared.store.close()
    for thread in threads:
        thread.join(10)
    assert there == []
