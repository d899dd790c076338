"""The benchmark of simulation: that its contestants do the same work, and how it compares them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.simulation.command import ENTRIES, LOOP, ONE, SEVERAL, make_rows, run_once
from benchmarks.simulation.meter import Measured
from benchmarks.simulation.ours import in_one_process
from federated.errors import FleetError

PYTHON = Path(sys.executable)


@pytest.mark.processes
def test_our_simulation_and_the_plain_loop_both_learn() -> None:
    ours, loop = in_one_process(12), run_once(PYTHON, ENTRIES[LOOP], 12)
    assert min(ours.accuracy, loop.accuracy) > 0.5
    for found in (ours, loop):
        assert 0 < found.client < found.round
        assert found.size > 50_000_000


def test_a_contestant_that_fails_is_named() -> None:
    with pytest.raises(FleetError, match=r"json:nothing failed(.|\n)*nothing"):
        run_once(PYTHON, "json:nothing", 2)


def test_baselines_are_compared_by_time_memory_and_accuracy() -> None:
    found = {
        ONE: Measured(0.5, 0.10, 0.010, 300_000_000, 0.970),
        SEVERAL: Measured(1.5, 0.06, 0.011, 600_000_000, 0.970),
        LOOP: Measured(0.1, 0.09, 0.009, 200_000_000, 0.972),
        "pfl": Measured(0.2, 0.11, 0.011, 250_000_000, 0.955),
        "flwr-ray": Measured(9.0, 1.20, 0.120, 1_400_000_000, 0.965),
    }
    rows = {(row.name, row.baseline.name): row for row in make_rows(found)}
    client, error = "processor time of a client, one process (ms)", "error, within 1 point (%)"
    assert rows[client, LOOP].met
    assert rows[client, "pfl"].ratio == pytest.approx(1.1)
    assert not rows[client, "pfl"].met
    assert rows[client, "pfl"].limit == rows[client, LOOP].limit
    assert rows["round, processes (ms)", "flwr-ray"].met
    assert rows["first round, one process (ms)", "at most"].met
    assert not rows["first round, processes (ms)", "at most"].met
    assert not rows["memory, processes (MB)", "at most"].met
    assert rows["memory, processes (MB)", "flwr-ray"].met is None
    assert rows[f"{ONE}, {error}", "flwr-ray"].met
    assert not rows[f"{ONE}, {error}", "pfl"].met
