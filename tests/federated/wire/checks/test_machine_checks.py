"""Checks of the disk, packages and clock of a machine."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from federated.wire.checks import machine_checks
from federated.wire.checks.check_result import Check

ABSENT = Check("torch", "warn", "not installed", "install it")


def test_a_full_or_unwritable_disk_fails(tmp_path: Path) -> None:
    assert machine_checks.check_disk(tmp_path / "not" / "yet", "--runs", 10**6).state == "ok"
    assert machine_checks.check_disk(tmp_path, "--runs", 10**18).state == "fail"
    unwritable = machine_checks.check_disk(Path("/proc/self"), "--runs")
    assert (unwritable.state, unwritable.exit) == ("fail", 7)
    assert "--runs" in unwritable.remedy
    (tmp_path / "file").touch()
    assert machine_checks.check_disk(tmp_path / "file", "--runs").exit == 7


def test_missing_and_crashing_runtimes_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        machine_checks.TRIAL, "torch", "raise ModuleNotFoundError(\"No module named 'torch'\")"
    )
    assert machine_checks.check_runtime("torch", ABSENT) is ABSENT
    monkeypatch.setitem(
        machine_checks.TRIAL, "torch", "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    )
    died = machine_checks.check_runtime("torch", ABSENT)
    assert (died.state, died.exit, died.found) == ("fail", 4, "crashed with signal 4")
    monkeypatch.setitem(
        machine_checks.TRIAL, "onnxruntime", "raise OSError('libgomp.so.1: cannot open')"
    )
    assert "libgomp.so.1" in machine_checks.check_runtime("onnxruntime", ABSENT).found


def test_a_clock_before_the_installation_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine_checks.check_clock().state == "ok"
    monkeypatch.setattr(time, "time", lambda: 86400.0)
    assert machine_checks.check_clock().state == "fail"
