"""Jumps of the wall clock are detected by comparison with the monotonic clock."""

from __future__ import annotations

import pytest

from federated.runtime.clock_jumps import JumpDetector, Reading, measure_jump, read_clocks


def test_a_jump_is_the_difference_between_the_clocks() -> None:
    assert measure_jump(Reading(100.0, 5.0), Reading(103.0, 8.0)) == 0
    assert measure_jump(Reading(100.0, 5.0), Reading(3700.0, 6.0)) == 3599
    assert measure_jump(Reading(100.0, 5.0), Reading(40.0, 6.0)) == -61


@pytest.mark.parametrize(("wall", "said"), [(3601.0, "forward by 3600 s"), (-59.0, "back by 60 s")])
def test_a_jump_is_reported_once(wall: float, said: str) -> None:
    readings = iter([Reading(0.0, 0.0), Reading(wall, 1.0), Reading(wall + 1, 2.0)])
    jumps = JumpDetector(lambda: next(readings))
    assert said in jumps.check()
    assert jumps.check() == ""


def test_a_clock_that_is_corrected_gradually_did_not_jump() -> None:
    """500 ppm over a day, checked every minute."""
    readings = iter([Reading(60 * n * 1.0005, 60.0 * n) for n in range(1441)])
    jumps = JumpDetector(lambda: next(readings))
    assert not any(jumps.check() for _ in range(1440))


def test_this_machine_has_both_clocks() -> None:
    assert abs(measure_jump(read_clocks(), read_clocks())) < 1
