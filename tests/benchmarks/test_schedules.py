"""Schedules of faults in virtual time: what they replace, that they pass, and that they find what is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.schedules.command import attempt, shrink
from benchmarks.schedules.faults import COORDINATOR, KINDS, Fault, draw
from benchmarks.schedules.planted import DEFECTS
from benchmarks.schedules.trial import REPLACED, run_schedule


def test_only_disk_and_clock_are_replaced_in_production_code() -> None:
    """Links, broker and trainer are handed in, as other ones are elsewhere."""
    assert set(REPLACED) == {
        "coordinator.start.RunClock",
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


def test_a_schedule_repeats() -> None:
    first, second = (run_schedule(draw(3)) for _ in range(2))
    assert first == second
    assert first.finished


def test_schedules_draw_every_kind_of_fault() -> None:
    assert {fault.kind for seed in range(300) for fault in draw(seed).faults} == set(KINDS)


@pytest.mark.parametrize("seed", range(4))
def test_schedules_hold(seed: int) -> None:
    outcome = run_schedule(draw(seed))
    assert not outcome.wrong
    assert outcome.folded


@pytest.mark.parametrize(
    "fault",
    [
        Fault("disk full", COORDINATOR, 0.25, 20.0),  # agents say once who they are, and were not heard
        Fault("bit", COORDINATOR, 100.0, 1.0),  # an update that was folded is damaged in the spool, and was folded again
        Fault("retained lost", "", 0.1, 0.0, 1.0),  # nobody could join who had not seen the run's card
    ],
)
def test_what_schedules_found_stays_mended(fault: Fault) -> None:
    outcome = run_schedule(replace(draw(5), faults=(fault,)))
    assert outcome.injected == {fault.kind: 1}
    assert outcome.finished
    assert not outcome.wrong


def test_a_planted_defect_is_found_and_its_faults_are_few() -> None:
    """A bit flips in the spool while the coordinator is down, and the replay does not look."""
    faults = Fault("cut", "a0", 5.0, 2.0), Fault("delay", "a1", 9.0, 3.0, 0.5), Fault("bit", COORDINATOR, 300.0, 1.0)
    schedule = replace(draw(5), faults=faults)
    with DEFECTS["a replay trusts the spool"].planted():
        assert attempt(schedule).wrong == "unequal: the state is not what was folded"
        assert [fault.kind for fault in shrink(schedule).faults] == ["bit"]
    assert not attempt(schedule).wrong
