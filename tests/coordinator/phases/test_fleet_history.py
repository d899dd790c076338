"""The results of earlier rounds, as a value: each function returns a new one and leaves the old one
unchanged.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.assign.agent_track_record import Setback, Standing
from coordinator.observe.round_records import Entry, Folded
from coordinator.phases.fleet_history import (
    FleetHistory,
    load_history,
    record_counts,
    record_fold,
    record_standings,
    record_tasks,
)
from coordinator.store.run_store import Store
from coordinator.store.training_counts import Counts, Trained
from models.submodel import Network, Submodel
from tests.support.memory_federation import RUN, Member, digits, federate

NET = Network("mlp", "tiny", (1, 8, 8), 10)
SMALL, LARGE = (Submodel(NET, width, ((1, 1),)) for width in (0.5, 1.0))
LATE = Standing(setbacks=(Setback(LARGE.name, "late", 1, "was late"),))


def task(agent: str, round: int, submodel: Submodel) -> Any:
    return SimpleNamespace(agent=agent, round=round, submodel=submodel)


def folded(agent: str, submodel: Submodel, standing: Standing) -> Folded:
    return Folded(Entry(agent, submodel.name, "folded"), submodel, standing)


def test_a_folded_update_is_recorded_in_a_new_history() -> None:
    before = record_fold(FleetHistory(), folded("a", SMALL, LATE), 1)
    after = record_fold(before, folded("a", LARGE, Standing()), 2)
    assert (dict(before.trained), dict(before.folded), dict(before.standings)) == (
        {"a": {SMALL}},
        {"a": 1},
        {"a": LATE},
    )
    assert (dict(after.trained), dict(after.folded), dict(after.standings)) == (
        {"a": {SMALL, LARGE}},
        {"a": 2},
        {"a": Standing()},
    )
    assert FleetHistory() == FleetHistory(), "histories do not share their contents"


def test_a_late_update_after_a_newer_one_is_not_the_last() -> None:
    history = record_fold(
        record_fold(FleetHistory(), folded("a", LARGE, Standing()), 3),
        folded("a", SMALL, Standing()),
        2,
    )
    assert history.folded["a"] == 3


def test_the_latest_task_of_an_agent_counts_without_its_owner() -> None:
    history = record_tasks(
        FleetHistory(),
        [task("a", 2, replace(LARGE, owner="a")), task("a", 1, SMALL), task("b", 1, SMALL)],
    )
    assert dict(history.assigned) == {"a": LARGE, "b": SMALL}


def test_new_standings_leave_those_of_other_agents() -> None:
    history = record_standings(FleetHistory(), {"a": LATE, "b": LATE})
    assert dict(record_standings(history, {"b": Standing()}).standings) == {
        "a": LATE,
        "b": Standing(),
    }


def test_unfolded_updates_do_not_count() -> None:
    history = FleetHistory(
        counts=Counts({"w1": frozenset({"w1", "w0.5"})}, {"w0.5": Trained(), "w1": Trained()})
    )
    after = record_counts(
        history, [Entry("a", "w1", "folded"), Entry("b", "w1", "folded"), Entry("c", "w1", "late")]
    )
    assert after.counts.trained == {"w0.5": Trained(2, 1), "w1": Trained(2, 1)}
    assert history.counts.untrained == ["w0.5", "w1"]


ONE_NETWORK = {"model.name": "mlp-small"}
# each agent's submodel is its own
NETWORK_EACH = {"method.name": "recipfl", "model.name": "resnet-small", "method.models": ["mlp"]}
QUICK = {
    "train.steps": 1,
    "rounds": 3,
    "evaluate.devices": False,
    "evaluate.examples": 20,
    "fleet.fraction": 0.7,
}


@pytest.mark.slow
@pytest.mark.parametrize("given", [ONE_NETWORK, NETWORK_EACH])
def test_a_loaded_history_equals_that_of_the_run(tmp_path: Path, given: dict[str, Any]) -> None:
    def fail(update: Any) -> Any:
        if update.work == "train" and update.round == 2:
            raise RuntimeError("no")
        return update

    fleet = [
        Member("a0", digits(0, 3), change=fail),
        *(Member(f"a{i}", digits(i, 3)) for i in (1, 2)),
    ]
    done = federate(tmp_path, fleet, {**QUICK, **given})
    with closing(Store.open(tmp_path / "runs", RUN, read_only=True)) as store:
        found = load_history(store, store.read_facts().menu)
    assert found == done.result.history
    assert len(found.assigned) == len(found.standings) == 3
