"""A phone learns activities from its motion sensors, in a real browser with emulated sensors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.phone_pages import PAGE_TEST, PATIENCE, find_violations, open_page, start_run
from tests.support.processes import Start
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, *PAGE_TEST]
SAMPLES, PIECES = 100, 6
# of each class: acceleration (m/s²) and rotation (degrees per second) along x, y and z
LYING, TURNING = ((0.0, 0.0, 9.8), (0.0, 0.0, 0.0)), ((0.0, 9.8, 0.0), (0.0, 0.0, 90.0))
ACTIVITIES = (LYING, TURNING)
READ_ROTATION = """() => new Promise(resolve => {
  const read = ({rotationRate: {alpha, beta, gamma}}) => resolve([alpha, beta, gamma]);
  addEventListener("devicemotion", read, {once: true});
})"""


def write_har(root: Path) -> None:
    """Write a file in the form of `har`, with windows of both activities by ten people."""
    generator = np.random.default_rng(0)
    count = 200
    y = np.arange(count) % len(ACTIVITIES)
    means = np.asarray([[*still, *np.radians(turn)] for still, turn in ACTIVITIES])
    x = means[y][:, None] + generator.normal(0, 0.3, (count, SAMPLES, 6))
    (root / "har").mkdir(parents=True)
    np.savez(
        root / "har" / "windows100.npz",
        x=x.astype(np.float32),
        y=y,
        subject=np.arange(count) // 20,
        execution=np.zeros(count, int),
        classes=np.asarray(["lying", "turning"]),
    )


def start_har(tmp_path: Path, start: Start) -> None:
    write_har(tmp_path / "data")
    start_run(
        *(tmp_path, start, "model.name=resnet1d-tiny", "data.name=har"),
        *(f"data.root={tmp_path / 'data'}", "method.name=fedavg", "method.widths=[1.0]"),
        *("rounds=100000", "broker.kind=embedded", "fleet.min_agents=1"),
    )


class Sensors:
    """The emulated sensors of a page."""

    def __init__(self, page: Any) -> None:
        self._session = page.context.new_cdp_session(page)
        for kind in ("accelerometer", "linear-acceleration", "gyroscope"):
            self._send("setSensorOverrideEnabled", kind, enabled=True, metadata={"available": True})

    def move(self, activity: tuple[tuple[float, ...], tuple[float, ...]]) -> None:
        acceleration, turn = activity
        self._read("accelerometer", acceleration)
        self._read("linear-acceleration", (0.0, 0.0, 0.0))
        self._read("gyroscope", np.radians(turn))

    def _read(self, kind: str, values: Any) -> None:
        reading = {"xyz": dict(zip("xyz", map(float, values), strict=True))}
        self._send("setSensorOverrideReadings", kind, reading=reading)

    def _send(self, method: str, kind: str, **more: Any) -> None:
        self._session.send(f"Emulation.{method}", {"type": kind, **more})


def test_a_phone_learns_activities_from_its_motion(
    tmp_path: Path, start: Start, browser: Any
) -> None:
    start_har(tmp_path, start)
    page = open_page(browser, tmp_path, "p0", "0/1")
    record = page.get_by_role("button", name="Record this class")
    record.wait_for()
    assert page.get_by_role("button", name="Train on digits").count() == 0
    sensors = Sensors(page)
    for label, activity in enumerate(ACTIVITIES):
        sensors.move(activity)
        page.get_by_role("spinbutton", name="Class").fill(str(label))
        record.click()
        many = re.compile(rf"Class {label}: [{PIECES}-9] pieces")
        page.get_by_text(many).wait_for()
        assert find_violations(page) == []
        page.get_by_role("button", name="Stop recording").click()
    turned = page.evaluate(READ_ROTATION)
    assert turned == pytest.approx(TURNING[1], abs=1e-3), "around x, y and z, as the page assumes"
    page.get_by_role("button", name="Train on this motion").click()
    page.get_by_text(re.compile(r"^Trainings accepted[1-9]")).wait_for(timeout=PATIENCE * 1000)
    assert "(motion)" in page.inner_text("main")
    page.get_by_role("button", name="Use the motion sensors").click()
    answer = page.get_by_text(re.compile(r"^class \d \("))
    for label, activity in reversed(list(enumerate(ACTIVITIES))):
        sensors.move(activity)
        wanted = f"class {label} ("
        eventually(
            lambda wanted=wanted: (
                page.wait_for_timeout(200)
                or any(one.startswith(wanted) for one in answer.all_inner_texts())
            ),
            PATIENCE,
        )
    status = page.get_by_role("status").get_by_text("class 0", exact=True)
    status.wait_for(state="attached")
    assert find_violations(page) == []
    page.get_by_role("button", name="Stop the motion sensors").click()


def test_a_device_without_motion_sensors_says_so(
    tmp_path: Path, start: Start, browser: Any
) -> None:
    start_har(tmp_path, start)
    page = open_page(browser, tmp_path, "p0", "0/1")
    page.get_by_role("button", name="Record this class").click()
    page.get_by_role("alert").get_by_text("Perhaps it has none").wait_for()
    page.get_by_role("button", name="Record this class").wait_for()
