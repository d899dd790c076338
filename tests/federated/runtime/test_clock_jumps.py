"""Jumps of the wall clock are detected by comparison with the monotonic clock."""

from __future__ import annotations

import pytest

from federated.runtime.clock_jumps import JumpDetector, read_offset


@pytest.mark.parametrize(("wall", "said"), [(3601.0, "forward by 3600 s"), (-59.0, "back by 60 s")])
def test_a_jump_is_reported_once(wall: float, said: str) -> None:
    readings = iter([0.0, wall - 1.0, wall + 1 - 2.0])
    jumps = JumpDetector(lambda: next(readings))
    assert said in jumps.check()
    assert jumps.check() == ""


def test_a_clock_that_is_corrected_gradually_did_not_jump() -> None:
    """500 ppm over a day, checked every minute."""
    readings = iter([60 * n * 1.0005 - 60.0 * n for n in range(1441)])
    jumps = JumpDetector(lambda: next(readings))
    assert not any(jumps.check() for _ in range(1440))


def test_this_machine_has_both_clocks() -> None:
    assert abs(read_offset() - read_offset()) < 1
