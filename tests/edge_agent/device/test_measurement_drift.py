"""A device detects outdated measurements."""

from __future__ import annotations

import math
import threading
from dataclasses import replace

from edge_agent.device.board import Power
from edge_agent.device.heat_and_load import Heat
from edge_agent.device.measurement_drift import LOOK, POWER, REST, Watch
from federated.wire.messages import Condition
from tests.support.waiting import eventually

COOL = Heat(50.0, 2000.0, False, False, 0)


class Device:
    """Device state as set by the test."""

    now = 0.0
    limits = (0.5, math.inf)
    heat = COOL
    power: Power = ""

    def watch(self) -> Watch:
        return Watch(
            lambda: self.limits, lambda: self.heat, lambda: self.now, power=lambda: self.power
        )

    def later(self, watch: Watch, seconds: float = LOOK) -> str:
        self.now += seconds
        return watch.look()


def test_nothing_is_due_while_nothing_changes() -> None:
    device = Device()
    watch = device.watch()
    assert [device.later(watch) for _ in range(5)] == [""] * 5


def test_changed_limit_is_reported_once() -> None:
    device = Device()
    watch = device.watch()
    device.limits = (0.2, math.inf)
    assert device.later(watch, LOOK / 2) == "", "it looks now and then"
    assert device.later(watch) == "its limit changed from 0.5 processors to 0.2 processors"
    assert not watch.fresh, "what is known of that limit holds"
    watch.reset()
    assert device.later(watch) == ""
    device.limits = (0.2, 5e8)
    assert device.later(watch) == "its limit changed from no memory limit to 500 MB"
    watch.reset()
    device.limits = (0.204, 5.1e8)
    assert device.later(watch) == "", "noise"


def test_throttling_is_reported_when_it_starts_and_ends() -> None:
    device = Device()
    watch = device.watch()
    device.heat = replace(COOL, throttled=True, ever=True)
    assert device.later(watch) == "the processor is throttled"
    assert watch.fresh
    watch.reset()
    device.heat = replace(COOL, throttled=False, ever=True)
    assert device.later(watch, 2 * LOOK) == "", "not twice within the rest"
    assert device.later(watch, REST) == "the processor is no longer throttled"


def test_the_condition_is_that_of_the_last_look() -> None:
    device = Device()
    watch = device.watch()
    assert watch.condition == Condition(50.0, False, "")
    device.heat, device.power = Heat(80.0, throttled=True), "battery"
    assert watch.condition == Condition(50.0, False, "")
    device.later(watch)
    assert watch.condition == Condition(80.0, True, ""), "the power source is read seldom"
    device.later(watch, POWER)
    eventually(lambda: watch.condition == Condition(80.0, True, "battery"))


def test_a_hanging_power_reading_does_not_block_the_check() -> None:
    device, answered = Device(), threading.Event()
    readings = iter(["mains", "battery"])

    def read_power() -> Power:
        found = next(readings)
        if found == "battery":
            answered.wait()
        return found

    watch = Watch(lambda: device.limits, lambda: device.heat, lambda: device.now, power=read_power)
    for _ in range(3):
        device.later(watch, POWER)  # the second reading hangs, and no third one begins
    assert watch.condition.power == "mains"
    answered.set()
    eventually(lambda: watch.condition.power == "battery")


def test_growing_event_count_is_throttling() -> None:
    device = Device()
    watch = device.watch()
    device.heat = replace(COOL, events=3, ever=True)
    assert device.later(watch) == "the processor is throttled"


def test_due_measurement_stays_due_until_done() -> None:
    device = Device()
    watch = device.watch()
    device.limits = (0.2, math.inf)
    assert device.later(watch)
    assert device.later(watch)
    watch.reset()
    assert not device.later(watch)
