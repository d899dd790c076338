"""Leases: learned from what a device is predicted to need, and no end as long as something goes on."""

from __future__ import annotations

import math

import pytest

from coordinator.leases import Lease, granted, heard, overdue
from federated.task import beats


@pytest.mark.parametrize(("predicted", "seconds"), [(0.0, 10), (2.0, 10), (20.0, 60), (600.0, 1800)])
def test_a_lease_is_three_times_what_a_device_is_predicted_to_need(predicted: float, seconds: float) -> None:
    assert granted(predicted) == seconds
    assert granted(predicted, first=True) == max(60.0, seconds), "who never trained may have to warm up"


@pytest.mark.parametrize(("lease", "seconds"), [(10.0, 3.0), (30.0, 6.0), (60.0, 12.0), (1800.0, 15.0), (math.inf, 15.0), (0.0, 15.0)])
def test_heartbeats_come_several_times_within_a_lease(lease: float, seconds: float) -> None:
    assert beats(lease) == seconds


def test_who_shows_no_progress_is_overdue_after_the_lease_and_not_before() -> None:
    """A lease of 60 s from second 100 on; heartbeats every 12 s, of which two and a half may pass."""
    lease = Lease(100.0, 60.0)
    assert not overdue(lease, 160.0)
    assert overdue(lease, 160.1)


def test_progress_extends_a_lease_and_the_same_heartbeat_again_does_not() -> None:
    lease = heard(Lease(100.0, 60.0), ("train", 3), 155.0)
    assert not overdue(lease, 170.0)
    again = heard(lease, ("train", 3), 169.0)
    assert overdue(again, 155.0 + 30.1)
    assert not overdue(heard(again, ("train", 4), 180.0), 209.0)


def test_a_task_without_a_lease_is_never_overdue() -> None:
    assert not overdue(Lease(0.0), 1e9)
