"""Jumps of the wall clock are seen against the steady one."""

from __future__ import annotations

import pytest

from federated.runtime.clock_jumps import Jumps, Reading, jump, read


def test_a_jump_is_what_one_clock_went_more_than_the_other() -> None:
    assert jump(Reading(100.0, 5.0), Reading(103.0, 8.0)) == 0
    assert jump(Reading(100.0, 5.0), Reading(3700.0, 6.0)) == 3599
    assert jump(Reading(100.0, 5.0), Reading(40.0, 6.0)) == -61


@pytest.mark.parametrize(("wall", "said"), [(3601.0, "forward by 3600 s"), (-59.0, "back by 60 s")])
def test_a_jump_is_told_once(wall: float, said: str) -> None:
    readings = iter([Reading(0.0, 0.0), Reading(wall, 1.0), Reading(wall + 1, 2.0)])
    jumps = Jumps(lambda: next(readings))
    assert said in jumps.look()
    assert jumps.look() == ""


def test_a_clock_that_is_corrected_gradually_did_not_jump() -> None:
    """500 ppm over a day, looked at every minute."""
    readings = iter([Reading(60 * n * 1.0005, 60.0 * n) for n in range(1441)])
    jumps = Jumps(lambda: next(readings))
    assert not any(jumps.look() for _ in range(1440))


def test_this_machine_has_both_clocks() -> None:
    assert abs(jump(read(), read())) < 1
