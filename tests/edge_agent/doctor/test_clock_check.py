"""Checks of the clock against the coordinator's."""

from __future__ import annotations

from edge_agent.doctor import device_checks


def test_clocks_are_compared() -> None:
    assert device_checks.check_skew(0.5, 0.1).state == "ok"
    assert device_checks.check_skew(20.0, 0.1).state == "warn"
    assert device_checks.check_skew(20.0, 60.0).state == "ok", (
        "too slow an answer for this precision"
    )
    assert (
        device_checks.check_skew(-900.0, 0.1).state,
        device_checks.check_skew(-900.0, 0.1).exit,
    ) == (
        "fail",
        3,
    )
    assert "ahead of" in device_checks.check_skew(-900.0, 0.1).found
    assert device_checks.check_skew(float("nan"), 0.1).state == "warn"
