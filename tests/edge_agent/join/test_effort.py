"""What a task took is measured, where the device says so, and claimed nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from edge_agent.join.effort import Gauge

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
    gauge = Gauge(None, lambda: next(clock), tmp_path)
    gauge.begin()
    for step in (1, 2, 3):
        assert gauge.before() is False
        gauge.after(step, 3, 0.5)
    assert gauge.notes() == {"seconds": 10.0, "step": 1.5}, (
        "steps of 3, 1 and 2 seconds; no memory where the system says nothing"
    )


def test_the_peak_is_beyond_what_the_process_held_at_its_leanest(tmp_path: Path) -> None:
    gauge = Gauge(None, lambda: 0.0, process(tmp_path, 300 * MB, 300 * MB))
    gauge.begin()
    assert (tmp_path / "clear_refs").read_text() == "5"
    process(tmp_path, 420 * MB, 500 * MB)
    assert gauge.notes() == {"seconds": 0.0, "peak": 200 * MB}
    # what the allocator keeps of the task before is no part of the process
    process(tmp_path, 420 * MB, 420 * MB)
    gauge.begin()
    process(tmp_path, 420 * MB, 450 * MB)
    assert gauge.notes()["peak"] == 150 * MB


def test_a_peak_of_an_earlier_task_is_not_told_as_this_one_s(tmp_path: Path) -> None:
    # a system that does not let it be forgotten
    gauge = Gauge(None, lambda: 0.0, process(tmp_path, 300 * MB, 500 * MB))
    gauge.begin()
    assert "peak" not in gauge.notes()


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="no /proc/self/clear_refs here"
)
def test_the_peak_of_this_very_process() -> None:
    gauge = Gauge()
    gauge.begin()
    value = torch.ones(64 * MB // 4)
    del value
    assert 48 * MB < gauge.notes()["peak"] < 160 * MB
    gauge.begin()
    assert gauge.notes().get("peak", 0) < 48 * MB, "what was freed before is forgotten"
