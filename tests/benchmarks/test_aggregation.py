"""The benchmark of aggregation: that its contestants compute what they are timed for."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from benchmarks.aggregation.command import measure_streaming, measure_threads, ours, ours_fast
from benchmarks.aggregation.updates import map_updates, write_updates
from benchmarks.peers.interleaved_processes import hold
from federated.engine import fused_addition


@pytest.mark.parametrize("contestant", [ours, ours_fast])
def test_our_contestants_compute_the_weighted_mean(contestant, monkeypatch):
    monkeypatch.setattr(fused_addition, "LEAST", fused_addition.LEAST)  # which it changes
    with write_updates("fedavg", 3) as folder:
        found = contestant({"method": "fedavg", "folder": folder})()
        updates = map_updates(folder)
        weights = [update.samples for update in updates]
        assert len(set(weights)) == 3
        for name in ("stem.weight", "linear.weight"):
            values = [update.tensors[name].astype(np.float64) for update in updates]
            expected = np.average(values, axis=0, weights=weights)
            np.testing.assert_allclose(found.tensors[name], expected, rtol=1e-5, atol=1e-7)


def test_a_contestant_that_fails_is_named():
    with pytest.raises(RuntimeError, match="listdir"):
        hold({"one": ("os:listdir", {"method": "fedavg", "folder": "/none"})})


def test_two_threads_are_compared_with_one_and_with_reading():
    rows = {row.baseline.name: row for row in measure_threads(2, []) if "numba" in row.name}
    assert rows.keys() == {"reading", "our one thread"}
    assert len({row.ours for row in rows.values()}) == 1
    assert all(row.ours > 0 and row.baseline.value > 0 for row in rows.values())


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory from /proc")
def test_adding_updates_one_by_one_takes_the_memory_of_one_sum():
    assert 0.9 < measure_streaming(3).ours < 1.1
