"""The benchmark of predictions: its random draws and its summary."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.cost_prediction.command import (
    Prediction,
    draw_submodels,
    find_network,
    find_probes,
    measure,
    summarise,
    warn_if_disturbed,
)
from federated.errors import Unknown

NETWORK = find_network("preresnet-small")
ONE = Prediction("w1", 1.1, 1.0, 0.1, -0.5, 1000, 100, 50, 1.05, 2.0)


def test_a_seed_draws_the_same_submodels_and_none_that_is_timed_before() -> None:
    chosen = draw_submodels(NETWORK, 7, 40)
    assert chosen == draw_submodels(NETWORK, 7, 40) != draw_submodels(NETWORK, 8, 40)
    assert chosen[:5] == draw_submodels(NETWORK, 7, 5)
    assert len(set(chosen)) == 40
    assert not {*chosen} & {*find_probes(NETWORK)}
    assert min(s.width for s in chosen) < 0.3
    assert max(s.width for s in chosen) > 0.8
    assert {sum(section) for s in chosen for section in s.mask} == {1, 2, 3, 4}


def test_a_summary_tells_mean_and_largest_errors_beside_multiply_adds() -> None:
    found = [
        ONE,
        replace(ONE, error=-0.05, baseline_error=1.0, memory_ratio=1.2, beyond_ratio=1.5),
    ]
    rows = {(row.name, row.baseline.name): row for row in summarise("resnet", found)}
    mean, largest = "resnet, mean error of time (%)", "resnet, largest error of time (%)"
    assert rows[mean, "at most"].ours == pytest.approx(7.5)
    assert rows[largest, "at most"].ours == pytest.approx(10)
    assert rows[mean, "multiply-adds"].ratio == pytest.approx(10)
    assert rows[largest, "multiply-adds"].ratio == pytest.approx(10)
    memory = rows["resnet, largest ratio of predicted and measured memory", "at most"]
    assert (memory.ours, memory.met) == (1.2, True)


@pytest.mark.parametrize(
    ("change", "missed"),
    [({}, 0), ({"error": 0.31}, 2), ({"error": 0.11}, 1), ({"memory_ratio": 1.41}, 1)],
)
def test_each_goal_can_be_missed(change: dict[str, float], missed: int) -> None:
    rows = summarise("resnet", [replace(ONE, **change)])
    assert sum(row.met is False for row in rows) == missed


def test_a_busy_machine_and_a_changing_speed_are_said() -> None:
    said = list[str]()
    warn_if_disturbed(0.1, 0.1, said.append)
    assert not said
    warn_if_disturbed(0.5, 0.1, said.append)
    warn_if_disturbed(0.1, 0.2, said.append)
    assert ["50%" in said[0], "20%" in said[1]] == [True, True]


def test_an_unknown_family_is_named() -> None:
    with pytest.raises(Unknown, match="unknown model 'resnet-19'"):
        find_network("resnet-19")


@pytest.mark.slow
@pytest.mark.processes
def test_submodels_are_measured_in_processes_of_their_own() -> None:
    said = list[str]()
    (one,) = measure(NETWORK, draw_submodels(NETWORK, 7, 1), 8, said.append)
    assert min(one.measured_ms, one.predicted_ms) > 0
    assert one.base_bytes > one.measured_bytes > 0
    assert 1 <= one.memory_ratio <= one.beyond_ratio
