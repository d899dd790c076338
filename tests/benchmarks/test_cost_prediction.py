"""The benchmark of predictions: its random draws and its summary."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.cost_prediction.command import (
    Row,
    draw_submodels,
    find_network,
    find_probes,
    measure,
    summarise,
)
from federated.errors import Unknown

NETWORK = find_network("preresnet-small")
ROW = Row("preresnet-small", "w1", 1.1, 1.0, 0.1, -0.5, 1000, 100, 50, 1.05, 2.0)


def test_a_seed_draws_the_same_submodels_and_none_that_is_timed_before() -> None:
    chosen = draw_submodels(NETWORK, 7, 40)
    assert chosen == draw_submodels(NETWORK, 7, 40) != draw_submodels(NETWORK, 8, 40)
    assert chosen[:5] == draw_submodels(NETWORK, 7, 5)
    assert len(set(chosen)) == 40
    assert not {*chosen} & {*find_probes(NETWORK)}
    assert min(s.width for s in chosen) < 0.3
    assert max(s.width for s in chosen) > 0.8
    assert {sum(section) for s in chosen for section in s.mask} == {1, 2, 3, 4}


def test_a_summary_tells_mean_and_worst_and_whether_the_goals_are_met() -> None:
    rows = [ROW, replace(ROW, error=-0.05, baseline_error=1.0, memory_ratio=1.2, beyond_ratio=1.5)]
    found = summarise(rows, ("w0.5",), drift=0.1, busy=0.0)
    assert (found.mape, found.worst) == pytest.approx((0.075, 0.1))
    assert (found.baseline_mape, found.baseline_worst) == pytest.approx((0.75, 1.0))
    assert (found.memory_ratio_worst, found.memory_beyond_worst) == (1.2, 2.0)
    assert found.met
    assert not found.loaded
    assert not summarise([replace(ROW, error=0.31)], (), 0.0, 0.0).met
    assert not summarise([replace(ROW, error=0.11)], (), 0.0, 0.0).met
    assert not summarise([replace(ROW, memory_ratio=1.41)], (), 0.0, 0.0).met
    assert summarise(rows, (), drift=0.2, busy=0.0).loaded
    assert summarise(rows, (), drift=0.0, busy=0.5).loaded


def test_an_unknown_family_is_named() -> None:
    with pytest.raises(Unknown, match="unknown model 'resnet-19'"):
        find_network("resnet-19")


@pytest.mark.slow
@pytest.mark.processes
def test_submodels_are_measured_in_processes_of_their_own() -> None:
    said = list[Row]()
    rows, found = measure(NETWORK, draw_submodels(NETWORK, 7, 1), 8, said.append)
    assert said == rows
    assert found.submodels == 1
    assert rows[0].measured_ms > 0
    assert rows[0].predicted_ms > 0
    assert rows[0].base_bytes > rows[0].measured_bytes > 0
    assert 1 <= rows[0].memory_ratio <= rows[0].beyond_ratio
