"""Cached measurements are reused exactly as long as they are valid."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge_agent.device import measurement_cache
from edge_agent.device.heat_and_load import Heat
from edge_agent.device.measurement_cache import (
    MeasurementCache,
    describe_surroundings,
    locate_cache,
    read_versions,
)
from edge_agent.device.process_limits import Limits

COOL = Heat(50.0, 2000.0, False, False, 3)
AROUND = {"versions": {"torch": "2.13"}, "limits": {"cpus": 0.5, "memory": None}}
WHAT = {"submodel": "w0.5", "batch": 32}


class Idle:
    """Other processes use a fixed share of the processors."""

    used = 0.0

    def share(self) -> float:
        return self.used


class Busy(Idle):
    used = 0.7


def note(
    tmp_path: Path, around: Any = AROUND, heats: Any = (COOL,), **given: Any
) -> MeasurementCache:
    """Return a cache on a device with these heat readings in order, then the last one."""
    left = list(heats)
    return MeasurementCache(
        around,
        where=tmp_path / "t",
        heat=lambda: left.pop(0) if len(left) > 1 else left[0],
        **{"load": Idle, **given},
    )


def never() -> float:
    raise AssertionError("it is known")


def test_measurement_is_cached(tmp_path: Path) -> None:
    first = note(tmp_path)
    assert first.value(WHAT, lambda: 0.25) == 0.25
    second = note(tmp_path)
    assert second.value(WHAT, never) == 0.25
    assert (first.taken, first.known, second.taken, second.known) == (1, 0, 0, 1)


def test_user_without_home_measures_each_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("ESPALIER_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    for seconds in (0.25, 0.5):
        assert (
            MeasurementCache(AROUND, heat=lambda: COOL, load=Idle).value(
                WHAT, lambda seconds=seconds: seconds
            )
            == seconds
        )
    assert "cannot cache" in caplog.text


@pytest.mark.parametrize(
    ("around", "what"),
    [
        ({**AROUND, "versions": {"torch": "2.14"}}, WHAT),
        ({**AROUND, "limits": {"cpus": 0.25, "memory": None}}, WHAT),
        (AROUND, {**WHAT, "batch": 16}),
    ],
)
def test_other_circumstances_are_measured_again(tmp_path: Path, around: Any, what: Any) -> None:
    note(tmp_path).value(WHAT, lambda: 0.25)
    assert note(tmp_path, around).value(what, lambda: 0.5) == 0.5
    assert note(tmp_path).value(WHAT, never) == 0.25, "the first is still known"


def test_fresh_ignores_and_replaces_cached_value(tmp_path: Path) -> None:
    note(tmp_path).value(WHAT, lambda: 0.25)
    assert note(tmp_path, fresh=True).value(WHAT, lambda: 0.3) == 0.3
    assert note(tmp_path).value(WHAT, never) == 0.3


def test_measurement_on_busy_or_throttled_device_is_not_cached(tmp_path: Path) -> None:
    disturbed = note(tmp_path, load=Busy)
    assert disturbed.value(WHAT, lambda: 0.9) == 0.9
    assert disturbed.circumstances.busy == 0.7
    hot = note(tmp_path, heats=(COOL, COOL, replace(COOL, throttled=True)))
    assert hot.value(WHAT, lambda: 0.8) == 0.8
    assert hot.circumstances.throttled
    assert note(tmp_path).value(WHAT, lambda: 0.25) == 0.25


@pytest.mark.parametrize(
    "since", [replace(COOL, throttled=True), replace(COOL, ever=True), replace(COOL, events=4)]
)
def test_cached_value_is_ignored_after_throttling(tmp_path: Path, since: Heat) -> None:
    note(tmp_path).value(WHAT, lambda: 0.25)
    assert note(tmp_path, heats=(since,)).value(WHAT, lambda: 0.5) == 0.5


def test_unknown_throttling_stays_unknown(tmp_path: Path) -> None:
    silent = note(tmp_path, heats=(Heat(),))
    silent.value(WHAT, lambda: 0.25)
    assert silent.circumstances.throttled is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1]",
        b'{"format": 1}',
        b"\xff\xfe",
        b'{"format":1,"value":-1,"about":{},"heat":{},"taken":0}',
    ],
)
def test_damaged_file_is_logged_and_measured_again(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    note(tmp_path).value(WHAT, lambda: 0.25)
    (path,) = (tmp_path / "t").iterdir()
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert note(tmp_path).value(WHAT, lambda: 0.5) == 0.5
    assert "is damaged" in caplog.text
    assert note(tmp_path).value(WHAT, never) == 0.5


def test_unwritable_folder_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "t").write_text("a file")
    assert note(tmp_path).value(WHAT, lambda: 0.25) == 0.25
    assert "cannot cache" in caplog.text


def test_cached_file_records_its_circumstances(tmp_path: Path) -> None:
    note(tmp_path).value(WHAT, lambda: 0.25)
    (path,) = (tmp_path / "t").iterdir()
    found = json.loads(path.read_text())
    assert (found["about"], found["value"]) == ({**AROUND, **WHAT}, 0.25)


def test_the_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "espalier-caches" in str(locate_cache()), "of tests alone"
    monkeypatch.delenv("ESPALIER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert locate_cache() == tmp_path / "espalier"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locate_cache() == tmp_path / ".cache" / "espalier"


def test_surroundings_hold_versions_and_limits() -> None:
    found = describe_surroundings(Limits(cpus=0.5), "torch 2 cpu")
    assert found["versions"]["torch"] == read_versions()["torch"]
    assert (found["cpus"], found["limits"]["cpus"], found["trainer"]) == (
        0.5,
        0.5,
        "torch 2 cpu",
    )
    assert set(measurement_cache.PACKAGES) <= found["versions"].keys()


def test_the_log_says_once_why_measurements_are_not_cached(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        busy = note(tmp_path, load=Busy)
        for batch in (16, 32):
            busy.value({"batch": batch}, lambda: 0.25)
        note(tmp_path).value({"batch": 64}, lambda: 0.25)
    (record,) = caplog.records
    assert "not cached" in record.getMessage()
    assert "other processes used 70%" in record.getMessage()
