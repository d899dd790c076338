"""The benchmark of training steps: that it times trainings, and how it compares them."""

from __future__ import annotations

import pytest

from benchmarks.training_steps import EXCESS, PLAIN, STEPS, WHOLE, make_rows, make_tasks


def test_every_task_trains() -> None:
    tasks = make_tasks("resnet-tiny")
    assert tasks.keys() == {WHOLE, *EXCESS, PLAIN}
    for width in (WHOLE, *EXCESS):
        assert tasks[width]() > 1  # the loss of ten classes without a pattern
    tasks[PLAIN]()


def test_times_are_compared_with_multiply_adds() -> None:
    rows = {
        row.name: row
        for row in make_rows(
            "resnet-tiny", {WHOLE: 100.0, "0.75": 60.0, "0.5": 30.0, "0.25": 20.0, PLAIN: 97.0}
        )
    }
    half = rows["resnet-tiny, step of width 0.5 (ms)"]
    assert half.ours == 30.0 / STEPS
    assert 20 < half.baseline.value * STEPS < 40  # about a quarter of the multiply-adds
    assert not rows["resnet-tiny, step of width 0.25 (ms)"].met
    assert rows["resnet-tiny, step (ms)"].ratio == pytest.approx(0.97)
    assert rows["resnet-tiny, step (ms)"].met
