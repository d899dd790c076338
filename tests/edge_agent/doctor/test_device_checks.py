"""What a device lacks: room, memory, runtimes, cool air."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.device.heat import Heat
from edge_agent.doctor import device_checks
from edge_agent.doctor.check import Check
from federated.wire import messages
from models.submodel import Network
from tests.support.doctor import CARD


def test_a_disk_without_room_or_rights_is_said(tmp_path: Path) -> None:
    assert device_checks.disk(tmp_path / "not" / "yet", 10**6).state == "ok"
    assert device_checks.disk(tmp_path, 10**18).state == "fail"
    unwritable = device_checks.disk(Path("/proc/self"), None)
    assert (unwritable.state, unwritable.exit) == ("fail", 7)


def test_memory_that_holds_not_the_least_submodel_fails() -> None:
    assert device_checks.memory(10**6).state == "ok"
    check = device_checks.memory(10**15)
    assert (check.state, check.exit) == ("fail", 6)
    assert "method.widths" in check.remedy


def test_what_a_run_needs_is_counted_from_its_card() -> None:
    largest, least = device_checks.needed(CARD) or (0, 0)
    assert largest > 4 * 10_000
    assert least > 16 * 10**6
    assert device_checks.needed(None) is None
    assert (
        device_checks.needed(
            messages.Run(
                "r", "m", "x", Network("nothing:here", "", (1,), 2), CARD.calibration, 32, "s"
            )
        )
        is None
    )


def test_runtimes_that_are_missing_or_die_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        device_checks.TRIAL, "torch", "raise ModuleNotFoundError(\"No module named 'torch'\")"
    )
    assert device_checks.runtime("torch") == Check(
        "torch", "warn", "not installed: this device can answer, not train", device_checks.TRAIN
    )
    monkeypatch.setitem(
        device_checks.TRIAL, "torch", "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    )
    died = device_checks.runtime("torch")
    assert (died.state, died.exit, died.found) == ("fail", 4, "ended by signal 4")
    monkeypatch.setitem(
        device_checks.TRIAL, "onnxruntime", "raise OSError('libgomp.so.1: cannot open')"
    )
    assert "libgomp.so.1" in device_checks.runtime("onnxruntime").found


def test_heat_is_said_where_it_holds_the_device_back() -> None:
    assert device_checks.heat(Heat()).found == "this machine does not say"
    assert device_checks.heat(Heat(51.2, 1500.0, False, False)) == Check(
        "heat", "ok", "51 C, 1500 MHz"
    )
    assert device_checks.heat(Heat(84.0, 600.0, True, True)).state == "warn"
