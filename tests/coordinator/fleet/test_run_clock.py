"""The share of the time that repeated work takes."""

from __future__ import annotations

import pytest

from coordinator.fleet.run_clock import LONGEST_PAUSE, SHARE, TimeShare
from tests.support.manual_clock import Clock


@pytest.mark.parametrize(
    ("seconds", "least", "pause"),
    [
        (0.01, 0.0, 0.01 / SHARE),
        (0.01, 1.0, 1.0 - 0.01),
        (1.0, 0.0, LONGEST_PAUSE),
    ],
)
def test_work_on_the_whole_fleet_pauses_in_proportion(
    seconds: float, least: float, pause: float
) -> None:
    clock = Clock()
    share = TimeShare(clock, least)
    assert share.pause == 0
    with share.spend():
        clock.now += seconds
    assert share.pause == pytest.approx(pause)
    clock.now += share.pause + 1e-6
    assert share.pause == 0
