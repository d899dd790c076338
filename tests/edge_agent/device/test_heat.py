"""Temperature and throttling are read from recorded boards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.device.heat_and_load import Heat, has_throttled, read_heat
from tests.support.boards import copy_board, load_board


@pytest.mark.parametrize(
    ("name", "cpus", "heat"),
    [
        ("pi5", range(4), Heat(51.25, 2400.0, False, False, None)),
        ("pi4-throttled", range(4), Heat(81.303, 600.0, True, True, None)),
        ("jetson-orin", range(6), Heat(49.125, 1510.4, False, True, 4)),
        ("jetson-orin", (3, 4), Heat(49.125, 729.6, False, True, 4)),
        ("termux", range(8), Heat(42.0, 2210.0, None, None, None)),
        ("laptop-battery", range(2), Heat(67.0, 2801.117, False, True, 12)),
        ("laptop-battery", (0,), Heat(67.0, 1198.342, False, True, 12)),
        ("container-v1", (0,), Heat(None, 2399.998, None, None, None)),
    ],
)
def test_heat_is_read_from_sensors_firmware_and_counters(
    name: str, cpus: range, heat: Heat
) -> None:
    found = load_board(name)
    assert read_heat(found.root, found.run, cpus) == heat


def test_pi_bits_separate_current_from_past_throttling(tmp_path: Path) -> None:
    found = copy_board("pi5", tmp_path)
    found.write("commands/vcgencmd_get_throttled", "throttled=0x50000\n")
    heat = read_heat(found.root, found.run)
    assert (heat.throttled, heat.ever) == (False, True)
    # the kernel's own file comes first
    found.write("sys/devices/platform/soc/soc_firmware/get_throttled", "4\n")
    heat = read_heat(found.root, found.run)
    assert (heat.throttled, heat.ever) == (True, True)


def test_kernel_cooling_counts_as_throttling(tmp_path: Path) -> None:
    found = copy_board("jetson-orin", tmp_path)
    found.write("sys/class/thermal/cooling_device3/cur_state", "3\n")
    assert read_heat(found.root, found.run).throttled


def test_implausible_zone_is_ignored(tmp_path: Path) -> None:
    found = copy_board("jetson-orin", tmp_path)
    found.write("sys/class/thermal/thermal_zone9/type", "PMIC-Die\n")
    found.write("sys/class/thermal/thermal_zone9/temp", "100000\n")
    assert read_heat(found.root, found.run).celsius == 49.125


def test_pi_without_zones_uses_vcgencmd(tmp_path: Path) -> None:
    found = copy_board("container-v1", tmp_path)
    found.write("commands/vcgencmd_measure_temp", "temp=48.3'C\n")
    assert read_heat(found.root, found.run).celsius == 48.3


def test_throttling_between_readings_uses_both_ends_and_counters() -> None:
    cool = Heat(50.0, 1000.0, False, False, 3)
    assert not has_throttled(cool, cool)
    assert has_throttled(cool, replace(cool, throttled=True))
    assert has_throttled(cool, replace(cool, ever=True))
    assert has_throttled(cool, replace(cool, events=4))
    assert not has_throttled(replace(cool, ever=True), replace(cool, ever=True)), "that was before"
    assert not has_throttled(cool, replace(cool, events=0)), "it was started anew"
    assert not has_throttled(Heat(), Heat())


def test_this_machine_is_read_without_an_error() -> None:
    assert isinstance(read_heat(), Heat)
