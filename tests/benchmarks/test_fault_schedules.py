"""Fault schedules in virtual time: the replaced functions, the schedules that pass, and the
detection of planted defects.
"""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pytest
import torch

from benchmarks.fault_schedules.command import follow, shrink, try_schedule
from benchmarks.fault_schedules.injected_defects import DEFECTS
from benchmarks.fault_schedules.random_schedules import COORDINATOR, KINDS, Fault, Schedule, draw
from benchmarks.fault_schedules.schedule_run import REPLACED, run_schedule
from benchmarks.fault_schedules.virtual_training import SURVEYS
from coordinator.run import rounds

FAILED = Path(__file__).with_name("failed_schedules.jsonl")


def test_only_disk_and_clock_are_replaced_in_production_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Links, broker and trainer are parameters of the production code. The round's `step` is
    wrapped to observe it.
    """
    names, patch = set[str](), mock.patch

    def noted(name: str, *made: object, **named: object) -> Any:
        # PyTorch patches itself while it is imported
        if sys._getframe(1).f_globals["__name__"].startswith("benchmarks"):
            names.add(name)
        return patch(name, *made, **named)

    monkeypatch.setattr(mock, "patch", noted)
    assert run_schedule(draw(0)).finished
    assert (
        names
        == set(REPLACED)
        == {
            "coordinator.fleet.round_event_loop.step",
            "io.open",
            "mmap.mmap",
            "os.fsync",
            "os.posix_fallocate",
            "os.rename",
            "os.replace",
            "os.unlink",
            "shutil.disk_usage",
            "time.monotonic",
        }
    )


def test_schedules_draw_every_kind_of_fault() -> None:
    assert {fault.kind for seed in range(300) for fault in draw(seed).faults} == set(KINDS)


@pytest.mark.parametrize("seed", range(4))
def test_schedules_hold(seed: int) -> None:
    outcome = run_schedule(draw(seed))
    assert not outcome.wrong
    assert outcome.folded


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(one["schedule"], id=one["found"])
        for one in map(json.loads, FAILED.read_text().splitlines())
    ],
)
def test_schedules_that_failed_before_pass(kept: dict[str, Any]) -> None:
    """Each schedule failed before its defect was fixed. `python -m benchmarks schedules` prints the
    line to add for a new failure.
    """
    schedule = msgspec.convert(kept, Schedule)
    outcome = run_schedule(schedule)
    assert outcome.injected.total() == len(schedule.faults)
    assert outcome.finished
    assert not outcome.wrong


def test_a_schedule_repeats_and_following_it_changes_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    quiet = run_schedule(draw(8))
    assert quiet.finished
    assert follow(8) == quiet
    assert "round 1 of" in capsys.readouterr().out


def test_a_method_that_surveys_its_devices_is_among_them() -> None:
    seed = next(
        seed
        for seed in range(100)
        if draw(seed).settings["method.name"] == "fedfa" and not draw(seed).faults
    )
    SURVEYS.clear()
    assert run_schedule(draw(seed)).finished
    assert [
        found for found in SURVEYS.values() if set(found.get("zico", {})) == {"w0.5-d2", "w1-d2"}
    ]


@pytest.mark.parametrize(
    ("method", "mode"),
    [("fedavg", "buffered"), ("fedavg", "sync"), ("fedfa", "sync"), ("fedrolex", "sync")],
)
def test_no_tensor_of_a_round_stays_in_a_reference_cycle(
    method: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cycle lives until the garbage collector runs, which is seldom: a coordinator with a cycle
    grew by half a model every round.
    """
    schedule = next(one for one in map(draw, range(1000)) if not one.faults)
    settings = {**schedule.settings, "method.name": method, "fleet.mode": mode}
    left, run_round = list[int](), rounds.run_round

    def count_tensors(*given: Any) -> Any:
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        progress = run_round(*given)
        gc.collect()
        gc.set_debug(0)
        left.append(sum(isinstance(one, torch.Tensor | np.ndarray) for one in gc.garbage))
        gc.garbage.clear()
        return progress

    monkeypatch.setattr(rounds, "run_round", count_tensors)
    gc.disable()
    try:
        outcome = run_schedule(replace(schedule, settings=settings))
    finally:
        gc.enable()
    assert not outcome.wrong
    assert len(left) == settings["rounds"]
    assert not any(left)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_replaces_names_that_exist(name: str) -> None:
    with DEFECTS[name].plant():
        pass


@pytest.mark.slow
def test_a_planted_defect_is_found_and_its_faults_are_few() -> None:
    """The defect: the replay does not verify updates. A bit flips in the spool while the
    coordinator is down.
    """
    faults = (
        Fault("cut", "a0", 5.0, 2.0),
        Fault("delay", "a1", 9.0, 3.0, 0.5),
        Fault("bit", COORDINATOR, 100.0, 1.0),
    )
    base = next(
        one["schedule"]
        for one in map(json.loads, FAILED.read_text().splitlines())
        if "damaged in the spool" in one["found"]
    )
    schedule = replace(msgspec.convert(base, Schedule), faults=faults)
    with DEFECTS["a replay trusts the spool"].plant():
        assert try_schedule(schedule).wrong.startswith("unequal: the state")
        assert [fault.kind for fault in shrink(schedule).faults] == ["bit"]
    assert not try_schedule(schedule).wrong
