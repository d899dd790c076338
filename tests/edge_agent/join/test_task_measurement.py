"""Measurement of seconds, step time and peak memory of a task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from edge_agent.join.task_measurement import TaskGauge

MB = 2**20


def ticking(times: list[float]) -> Iterator[float]:
    yield from times


def process(folder: Path, resident: int, peak: int) -> Path:
    (folder / "status").write_text(
        f"Name:\tpython\nVmHWM:\t   {peak // 1024} kB\nVmRSS:\t   {resident // 1024} kB\n"
    )
    return folder


def test_the_first_step_warms_up_and_is_not_counted(tmp_path: Path) -> None:
    clock = ticking([10.0, 11.0, 14.0, 14.0, 15.0, 15.0, 17.0, 20.0])
    gauge = TaskGauge(None, lambda: next(clock), tmp_path)
    gauge.begin()
    for step in (1, 2, 3):
        assert gauge.before_step() is False
        gauge.after_step(step, 3, 0.5)
    assert gauge.notes() == {"seconds": 10.0, "step": 1.5}, (
        "steps of 3, 1 and 2 seconds; no peak if the system reports no memory"
    )


def test_the_peak_excludes_the_memory_of_the_process_without_a_task(tmp_path: Path) -> None:
    gauge = TaskGauge(None, lambda: 0.0, process(tmp_path, 300 * MB, 300 * MB))
    gauge.begin()
    assert (tmp_path / "clear_refs").read_text() == "5"
    process(tmp_path, 420 * MB, 500 * MB)
    assert gauge.notes() == {"seconds": 0.0, "peak": 200 * MB}
    # memory that the allocator keeps from the task before does not count for the process
    process(tmp_path, 420 * MB, 420 * MB)
    gauge.begin()
    process(tmp_path, 420 * MB, 450 * MB)
    assert gauge.notes()["peak"] == 150 * MB


def test_the_peak_of_an_earlier_task_is_not_reported(tmp_path: Path) -> None:
    # on a system that cannot reset the peak
    gauge = TaskGauge(None, lambda: 0.0, process(tmp_path, 300 * MB, 500 * MB))
    gauge.begin()
    assert "peak" not in gauge.notes()


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="no /proc/self/clear_refs here"
)
def test_the_peak_of_this_very_process() -> None:
    gauge = TaskGauge()
    gauge.begin()
    value = torch.ones(64 * MB // 4)
    del value
    assert 48 * MB < gauge.notes()["peak"] < 160 * MB
    gauge.begin()
    assert gauge.notes().get("peak", 0) < 48 * MB, "memory freed before the task does not count"
