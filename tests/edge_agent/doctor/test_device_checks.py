"""Checks of the disk, memory, runtimes and heat."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.device.heat_and_load import Heat
from edge_agent.doctor import device_checks
from federated.install_command import pip_command
from federated.wire import messages
from federated.wire.checks.check_result import Check
from models.submodel import Network
from tests.support.doctor_checks import CARD


def test_a_full_or_unwritable_disk_fails(tmp_path: Path) -> None:
    assert device_checks.check_disk(tmp_path / "not" / "yet", 10**6).state == "ok"
    assert device_checks.check_disk(tmp_path, 10**18).state == "fail"
    unwritable = device_checks.check_disk(Path("/proc/self"), None)
    assert (unwritable.state, unwritable.exit) == ("fail", 7)
    (tmp_path / "file").touch()
    assert device_checks.check_disk(tmp_path / "file", None).exit == 7


def test_too_little_memory_for_the_smallest_submodel_fails() -> None:
    assert device_checks.check_memory(10**6).state == "ok"
    check = device_checks.check_memory(10**15)
    assert (check.state, check.exit) == ("fail", 6)
    assert "method.widths" in check.remedy


def test_the_needs_of_a_run_follow_from_its_card() -> None:
    largest, least = device_checks.compute_required_bytes(CARD) or (0, 0)
    assert largest > 4 * 10_000
    assert least > 16 * 10**6
    assert device_checks.compute_required_bytes(None) is None
    assert (
        device_checks.compute_required_bytes(
            messages.Run(
                "r", "m", "x", Network("nothing:here", "", (1,), 2), CARD.calibration, 32, "s"
            )
        )
        is None
    )


def test_missing_and_crashing_runtimes_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        device_checks.TRIAL, "torch", "raise ModuleNotFoundError(\"No module named 'torch'\")"
    )
    assert device_checks.check_runtime("torch") == Check(
        "torch",
        "warn",
        "not installed: this device can run inference, not train",
        pip_command("train"),
    )
    monkeypatch.setitem(
        device_checks.TRIAL, "torch", "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    )
    died = device_checks.check_runtime("torch")
    assert (died.state, died.exit, died.found) == ("fail", 4, "crashed with signal 4")
    monkeypatch.setitem(
        device_checks.TRIAL, "onnxruntime", "raise OSError('libgomp.so.1: cannot open')"
    )
    assert "libgomp.so.1" in device_checks.check_runtime("onnxruntime").found


def test_throttling_leads_to_a_warning() -> None:
    assert device_checks.check_heat(Heat()).found == "unknown"
    assert device_checks.check_heat(Heat(51.2, 1500.0, False, False)) == Check(
        "heat", "ok", "51 C, 1500 MHz"
    )
    assert device_checks.check_heat(Heat(84.0, 600.0, True, True)).state == "warn"
