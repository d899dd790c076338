"""Read the processor's temperature and clock, and whether heat or a weak power supply throttles
it. Does not import torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from edge_agent.device.sysfs import ROOT, Run, entries, number, run_command, text

__all__ = ["Heat", "read_heat", "throttled_between"]

# bits of a Pi's word: low voltage, capped, throttled, soft limit; and the same since boot
NOW, EVER = 0xF, 0xF0000
PLAUSIBLE = (-40.0, 150.0)  # degrees; disabled sensors report -274, 0 kelvin, or nonsense
FAKES = ("PMIC-Die",)  # of a Jetson Nano or TX2; always reports 100 degrees
# hwmon names of processor sensors
SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal")


@dataclass(frozen=True)
class Heat:
    """Readings of one moment; None if the machine does not report a value.

    celsius: hottest sensor
    mhz: fastest processor that this process may use
    throttled: throttled now
    ever: throttled since boot
    events: throttling events since boot
    """

    celsius: float | None = None
    mhz: float | None = None
    throttled: bool | None = None
    ever: bool | None = None
    events: int | None = None


def read_heat(
    root: Path = ROOT, run: Run = run_command, cpus: Collection[int] | None = None
) -> Heat:
    """Read the kernel's and the board firmware's sensors.

    cpus: processors to read; by default those that this process may use
    """
    allowed = os.sched_getaffinity(0) if cpus is None else cpus
    word, events = _firmware(root, run), _events(root)
    capped = _is_slowed(root)
    now = None if word is None and capped is None else bool(capped) or bool((word or 0) & NOW)
    ever = None if word is None and events is None else bool(events) or bool((word or 0) & EVER)
    return Heat(_celsius(root, run), _mhz(root, allowed), now, True if now else ever, events)


def throttled_between(before: Heat, after: Heat) -> bool:
    """Return True if the device may have been throttled between two readings: at either end, or in
    between as far as it is recorded.
    """
    newly = before.ever is False and after.ever is True
    counted = (
        before.events is not None and after.events is not None and after.events > before.events
    )
    return bool(before.throttled or after.throttled or newly or counted)


def _celsius(root: Path, run: Run) -> float | None:
    zones = [
        number(zone / "temp")
        for zone in entries(root / "sys/class/thermal", "thermal_zone*")
        if text(zone / "type") not in FAKES
    ]
    chips = [
        chip
        for chip in entries(root / "sys/class/hwmon", "hwmon*")
        if text(chip / "name") in SENSORS
    ]
    inputs = [number(sensor) for chip in chips for sensor in entries(chip, "temp*_input")]
    # Thousandths of a degree; some phones' zones report whole degrees.
    found = [value / 1000 if abs(value) >= 1000 else value for value in (*zones, *inputs) if value]
    if not found and (match := re.search(r"temp=([\d.]+)", run("vcgencmd", "measure_temp"))):
        found = [float(match[1])]
    return max((value for value in found if PLAUSIBLE[0] <= value <= PLAUSIBLE[1]), default=None)


def _mhz(root: Path, cpus: Collection[int]) -> float | None:
    kilohertz = [
        number(root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq")
        for cpu in sorted(cpus)
    ]
    found = [value / 1000 for value in kilohertz if value]
    if not found:
        listed = re.findall(
            r"^processor\s*:\s*(\d+)$|^cpu MHz\s*:\s*([\d.]+)$",
            text(root / "proc/cpuinfo"),
            re.MULTILINE,
        )
        present = -1
        for processor, speed in listed:
            present = int(processor) if processor else present
            found += [float(speed)] if speed and present in cpus else []
    return max(found, default=None)


def _firmware(root: Path, run: Run) -> int | None:
    """Return the throttling word of a Pi's firmware, from the kernel or the firmware's command."""
    paths = entries(root / "sys/devices/platform", "soc*/soc*firmware/get_throttled")
    words = [text(path) for path in paths] or [
        run("vcgencmd", "get_throttled").removeprefix("throttled=")
    ]
    return next(
        (int(word, 16) for word in words if re.fullmatch(r"(0x)?[0-9a-fA-F]{1,8}", word)), None
    )


def _is_slowed(root: Path) -> bool | None:
    """Return True if the kernel slows the processor down for cooling now."""
    coolers = [
        c
        for c in entries(root / "sys/class/thermal", "cooling_device*")
        if re.search("cpufreq|^Processor", text(c / "type"))
    ]
    states = [state for cooler in coolers if (state := number(cooler / "cur_state")) is not None]
    return any(state > 0 for state in states) if states else None


def _events(root: Path) -> int | None:
    """Return how often the processor throttled itself since boot: Intel's because of heat, a
    Jetson's because of current.
    """
    counters = [
        *entries(root / "sys/devices/system/cpu", "cpu*/thermal_throttle/*_throttle_count"),
        *entries(root / "sys/class/hwmon", "hwmon*/oc*_event_cnt"),
    ]
    counts = [int(count) for counter in counters if (count := number(counter)) is not None]
    return sum(counts) if counts else None
