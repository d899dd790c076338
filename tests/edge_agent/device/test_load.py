"""The load of other processes excludes this process and its children."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from edge_agent.device.heat_and_load import Load, measure_load
from tests.support.waiting import eventually

SPIN = "while True: pass"
USED = 0.2  # processor seconds of the child; the system counts hundredths


class Machine:
    """Two processors with a clock and busy times set by the test; own seconds are separate."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.used = self.own = 0.0
        monkeypatch.setattr(Load, "_look", lambda load: (self.now, self.used, self.own))
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})

    def passes(self, seconds: float, used: float, own: float) -> None:
        self.now, self.used, self.own = self.now + seconds, self.used + used, self.own + own


def test_share_counts_other_processes_since_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    load = Load()
    machine.passes(10, used=12, own=8)  # of 20 seconds of two processors, others used 4
    assert load.share() == pytest.approx(0.2)
    machine.passes(10, used=0, own=0)
    assert load.share() == 0
    machine.passes(10, used=20, own=0)
    assert load.share() == 1
    machine.passes(10, used=5, own=-8)  # a child that ended took its seconds along
    assert load.share() == 0.25
    assert load.share() == 0, "no time passed"


def test_load_is_unknown_without_permission(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(percpu: bool) -> None:
        raise PermissionError(13, "Permission denied", "/proc/stat")  # as Android answers any app

    monkeypatch.setattr(psutil, "cpu_times", refused)
    load = Load()
    assert (load.known, load.share()) == (False, 0.0)
    assert measure_load(0.0) is None


@pytest.fixture
def spinning() -> Iterator[psutil.Process]:
    """Return a child that uses a processor as far as other processes leave it."""
    process = subprocess.Popen([sys.executable, "-c", SPIN])
    yield psutil.Process(process.pid)
    process.kill()
    process.wait()


def test_children_are_not_other_processes(
    spinning: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How much the child gets depends on the load, so the test counts its processor seconds."""
    load = Load()
    _, used, _ = load._look()
    before = spinning.cpu_times().user
    eventually(lambda: spinning.cpu_times().user - before >= USED, 200.0)
    _, used_now, own = load._look()
    monkeypatch.setattr(psutil.Process, "children", lambda process, recursive: [])
    _, _, alone = load._look()
    assert own - alone >= 0.9 * USED
    assert used_now - used >= 0.9 * USED, "the system's seconds include the child's"
