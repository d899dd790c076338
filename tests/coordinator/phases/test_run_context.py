"""The time limit of a phase."""

from __future__ import annotations

import pytest

from coordinator.phases.run_context import ENDLESS, MIN_LIMIT, PATIENCE, limit_phase
from coordinator.round.leases import FIRST_LEASE, MEDIAN_CAP, SLACK
from coordinator.round.task_state import MAX_LEASES


@pytest.mark.parametrize(
    ("deadline", "slowest", "typical", "seconds"),
    [
        (90.0, 1e6, 1e6, 90.0),
        (0.0, 0.0, 0.0, MIN_LIMIT),
        (0.0, 30.0, 20.0, PATIENCE * 30.0),
        (0.0, 1e9, 20.0, MAX_LEASES * SLACK * MEDIAN_CAP * 20.0),
        (0.0, 1e9, 0.0, MAX_LEASES * FIRST_LEASE),
    ],
)
def test_a_phase_lasts_no_longer_than_its_leases(
    deadline: float, slowest: float, typical: float, seconds: float
) -> None:
    assert limit_phase(deadline, PATIENCE, slowest, typical) == seconds


def test_a_simulation_waits_for_its_workers() -> None:
    assert limit_phase(90.0, ENDLESS, 2.0, 0.0) == 2 * ENDLESS
