"""The load of other processes excludes this process and its children."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from edge_agent.device.heat_and_load import Load, measure_load

SPIN = "import time; end = time.monotonic() + 30\nwhile time.monotonic() < end: pass"


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
def spinning() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", SPIN])
    yield process
    process.kill()
    process.wait()


@pytest.mark.timed
def test_children_are_not_other_processes(
    spinning: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    time.sleep(0.3)
    with_it = measure_load(1.0)
    monkeypatch.setattr(psutil.Process, "children", lambda process, recursive: [])
    assert measure_load(1.0) > with_it + 0.25, "as a stranger it counts"
