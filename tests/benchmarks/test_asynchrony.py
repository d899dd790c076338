"""Comparison of synchronous and buffered rounds: how two runs are compared, and a short run of
both.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import asynchrony
from benchmarks.asynchrony import Course, compare, find_time


def test_the_first_second_at_which_a_mark_is_high_enough_counts() -> None:
    assert find_time((0.1, 0.5, 0.4, 0.6), (1.0, 2.0, 3.0, 4.0), 0.5) == 2.0
    assert find_time((0.1, 0.2), (1.0, 2.0), 0.5) is None


def test_runs_are_compared_at_what_both_reached() -> None:
    """Both runs reached 12 updates and an accuracy of 0.8."""
    slow, quick = (
        Course((4.0, 8.0), (6, 12), (0.7, 0.8)),
        Course((1.0, 2.0, 3.0), (5, 10, 15), (0.6, 0.85, 0.9)),
    )
    first, second = compare({"sync": (slow, 0.0), "buffered": (quick, 0.5)})
    assert (first.updates, first.seconds, first.accuracy, first.to_accuracy) == (12, 8.0, 0.8, 8.0)
    assert (second.updates, second.seconds, second.accuracy, second.to_accuracy, second.late) == (
        12,
        3.0,
        0.8,
        2.0,
        0.5,
    )


@pytest.mark.slow
def test_buffered_rounds_do_not_wait_for_the_slowest_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulate two synchronous rounds, and as many updates in buffers of four. The slowest tier
    takes 1.6 seconds, the fastest 0.4.
    """
    monkeypatch.setattr(asynchrony, "ROUNDS", 2)
    runs = {
        mode: asynchrony.run_mode(mode, 0.004, 0, tmp_path, lambda text: None)
        for mode in ("sync", "buffered")
    }
    (waiting, never), (_, often) = runs["sync"], runs["buffered"]
    assert waiting.seconds[-1] >= 2 * 1.6
    assert (never, often > 0.2) == (0.0, True)
    sync, quick = compare(runs)
    assert quick.seconds < sync.seconds
