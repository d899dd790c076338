"""Many raw agents with one coordinator: a replay verifies that the model consists of
their updates.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from benchmarks import scale
from benchmarks.comparison.rows import Row
from benchmarks.final_model_recomputation import ReplayResult, replay
from benchmarks.fuzzing.samples import SUBMODEL
from benchmarks.raw_agents import fleet_rows
from benchmarks.raw_agents.updates import learn, make_update
from coordinator.broker import local_broker as brokers
from coordinator.store.run_store import Store
from federated.errors import FleetError


def make_course(*peaks: int) -> fleet_rows.Course:
    turns = (
        fleet_rows.Turn(i, 10, 2.0, peak, 0.03, 0.01, fold=0.01) for i, peak in enumerate(peaks, 1)
    )
    return fleet_rows.Course(tuple(turns), 1.0, 10, 90)


def test_a_large_fleet_may_need_three_models_more_than_a_small_one() -> None:
    def find_growth(*peaks: int) -> Row:
        return fleet_rows.make_rows(make_course(100), make_course(*peaks), 10, 10)[-1]

    assert find_growth(110, 130).met
    assert not find_growth(131, 110).met
    assert find_growth(131, 110).ours == pytest.approx(3.1)
    assert find_growth(100).ratio is None


def test_the_time_of_an_agent_without_adding_its_update_has_a_limit() -> None:
    whole, rest = fleet_rows.make_rows(make_course(100), make_course(100), 10, 10)[1:3]
    assert (whole.ours, whole.met) == (pytest.approx(3.0), None)
    assert (rest.ours, rest.limit.value, rest.met) == (pytest.approx(2.0), 4.0, True)


def test_an_agent_of_many_may_need_little_more_time_than_one_of_a_hundred() -> None:
    row = fleet_rows.compare_hundred(make_course(100), make_course(100), 80)  # 0.3 and 0.375 ms
    assert (row.ours, row.limit.value, row.met) == (pytest.approx(0.375), pytest.approx(0.3), True)
    assert not fleet_rows.compare_hundred(make_course(100), make_course(100), 76).met  # 0.395 ms


def test_a_lost_update_is_an_error() -> None:
    right = ReplayResult({1: ["a", "b"], 2: ["a", "b"]}, 0, 0, True)
    scale.check_updates(right, 4)
    for wrong, words in (
        (replace(right, folded={1: ["a", "b"], 2: ["a"]}), "1 are lost"),
        (replace(right, doubled=1), "1 counted twice"),
        (replace(right, foreign=2), "2 not asked for"),
        (replace(right, equal=False), "differs"),
    ):
        with pytest.raises(FleetError, match=words):
            scale.check_updates(wrong, 4)


def test_values_are_spelled_as_toml() -> None:
    assert (
        scale.to_toml({"a*": "w1", "b": [1, 0.5], "c": True})
        == '{"a*" = "w1", "b" = [1, 0.5], "c" = true}'
    )


def test_the_update_of_a_raw_agent_depends_only_on_weights_agent_and_round() -> None:
    weights = {"w": np.ones((2, 3), np.float32), "b": np.zeros(2, np.float32)}
    once, again = learn(weights, "a", 1), learn(weights, "a", 1)
    assert all(
        np.array_equal(once[name], again[name]) and once[name].dtype == np.float32
        for name in weights
    )
    assert not np.array_equal(once["w"], learn(weights, "b", 1)["w"])
    assert not np.array_equal(once["w"], learn(weights, "a", 2)["w"])
    assert np.abs(once["w"] - 1).max() < 0.01


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.processes
@pytest.mark.skipif(brokers.find_mosquitto() is None, reason="mosquitto is not installed")
@pytest.mark.usefixtures("forked_commands")
def test_twenty_agents_lose_nothing_and_a_record_that_was_changed_is_noticed(
    tmp_path: Path,
) -> None:
    made = scale.run_fleet(tmp_path / "runs", scale.Size(20, 2), lambda line: None)
    assert [turn.folded for turn in made.turns] == [20, 20]
    assert made.connected == 20
    found = replay(tmp_path / "runs", scale.RUN, 1)
    assert (found.equal, found.doubled, found.foreign) == (True, 0, 0)
    assert found.folded[1] == [f"a{i:04d}" for i in range(20)]
    for change, equal, foreign in (
        # in round 2 all began from other weights than they say
        ("DELETE FROM updates WHERE round = 1 AND agent = 'a0003'", False, 20),
        ("UPDATE updates SET digest = 'x' WHERE round = 2 AND agent = 'a0003'", True, 1),
    ):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(
            tmp_path / "runs", tmp_path / "copy", ignore=shutil.ignore_patterns("broker")
        )
        with sqlite3.connect(tmp_path / "copy" / scale.RUN / "run.sqlite") as database:
            database.execute(change)
        database.close()
        changed = replay(tmp_path / "copy", scale.RUN, 1)
        assert (changed.equal, changed.foreign) == (equal, foreign)


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.processes
@pytest.mark.skipif(brokers.find_mosquitto() is None, reason="mosquitto is not installed")
@pytest.mark.usefixtures("forked_commands")
@pytest.mark.parametrize(
    ("largest", "measured", "compared"),
    [(6, {"4", "6"}, {"6"}), (4, {"4"}, set[str]()), (0, {"4"}, set[str]())],
)
def test_the_time_of_an_agent_of_the_largest_run_is_compared_in_the_same_measurement(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    largest: int,
    measured: set[str],
    compared: set[str],
) -> None:
    for module in (scale, fleet_rows):
        monkeypatch.setattr(module, "HUNDRED", 4)
    rows = scale.measure(tmp_path, scale.Size(4, 1), largest, lambda line: None)
    assert {row.name.partition(" agents, ")[0] for row in rows} == measured
    growth = {row.name.partition(" ")[0]: row for row in rows if "growth (ms)" in row.name}
    assert growth.keys() == compared
    assert all(row.limit.name == "4 agents" for row in growth.values())


def read_weights(runs: Path) -> dict[str, torch.Tensor]:
    with closing(Store.open(runs, scale.RUN, read_only=True)) as store:
        last = store.read_last()
        assert last is not None
        return dict(last.tensors)


def kill_a_worker(spool: Path, killed: list[int], ended: threading.Event) -> None:
    """Kill one worker once an update is being received."""
    while not ended.wait(0.002):
        if not any(spool.rglob("*.part")):
            continue
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if scale.WORKER in process.cmdline():
                    process.kill()
                    killed.append(process.pid)
                    return


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.processes
@pytest.mark.skipif(brokers.find_mosquitto() is None, reason="mosquitto is not installed")
@pytest.mark.usefixtures("forked_commands")
def test_a_worker_that_is_killed_in_a_round_loses_nothing_and_changes_no_bit(
    tmp_path: Path,
) -> None:
    scale.run_fleet(tmp_path / "alone", scale.Size(12, 3), lambda line: None)
    killed, ended, runs = list[int](), threading.Event(), tmp_path / "workers"
    arguments = (runs / scale.RUN / "spool", killed, ended)
    killer = threading.Thread(target=kill_a_worker, args=arguments)
    killer.start()
    try:
        scale.run_fleet(runs, scale.Size(12, 3, workers=2), lambda line: None)
    finally:
        ended.set()
        killer.join()
    assert killed
    scale.check_updates(replay(runs, scale.RUN, 1), 36)
    alone, found = read_weights(tmp_path / "alone"), read_weights(runs)
    assert found.keys() == alone.keys()
    assert all(torch.equal(found[name], value) for name, value in alone.items())


def test_the_empty_update_of_a_raw_agent_is_deterministic() -> None:
    assert make_update("r", 1, 1, "a", SUBMODEL, "r0") == make_update(
        "r", 1, 1, "a", SUBMODEL, "r0"
    )
