"""Read what slows a device down: heat or a weak power supply, and the load of other processes. Does
not import torch.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import psutil

from edge_agent.device.sysfs import ROOT, Run, list_entries, read_number, read_text, run_command
from federated.system.processors import list_processors

__all__ = ["BUSY", "Heat", "Load", "has_throttled", "measure_load", "read_heat"]

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
    allowed = list_processors() if cpus is None else cpus
    word, events = _read_firmware_word(root, run), _count_events(root)
    capped = _is_slowed(root)
    now = None if word is None and capped is None else bool(capped) or bool((word or 0) & NOW)
    ever = None if word is None and events is None else bool(events) or bool((word or 0) & EVER)
    return Heat(
        _read_celsius(root, run), _read_mhz(root, allowed), now, True if now else ever, events
    )


def has_throttled(before: Heat, after: Heat) -> bool:
    """Return True if the device may have been throttled between two readings: at either end, or in
    between as far as it is recorded.
    """
    newly = before.ever is False and after.ever is True
    counted = (
        before.events is not None and after.events is not None and after.events > before.events
    )
    return bool(before.throttled or after.throttled or newly or counted)


def _read_celsius(root: Path, run: Run) -> float | None:
    zones = [
        read_number(zone / "temp")
        for zone in list_entries(root / "sys/class/thermal", "thermal_zone*")
        if read_text(zone / "type") not in FAKES
    ]
    chips = [
        chip
        for chip in list_entries(root / "sys/class/hwmon", "hwmon*")
        if read_text(chip / "name") in SENSORS
    ]
    inputs = [read_number(sensor) for chip in chips for sensor in list_entries(chip, "temp*_input")]
    # Thousandths of a degree; some phones' zones report whole degrees.
    found = [value / 1000 if abs(value) >= 1000 else value for value in (*zones, *inputs) if value]
    if not found and (match := re.search(r"temp=([\d.]+)", run("vcgencmd", "measure_temp"))):
        found = [float(match[1])]
    return max((value for value in found if PLAUSIBLE[0] <= value <= PLAUSIBLE[1]), default=None)


def _read_mhz(root: Path, cpus: Collection[int]) -> float | None:
    kilohertz = [
        read_number(root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq")
        for cpu in sorted(cpus)
    ]
    found = [value / 1000 for value in kilohertz if value]
    if not found:
        listed = re.findall(
            r"^processor\s*:\s*(\d+)$|^cpu MHz\s*:\s*([\d.]+)$",
            read_text(root / "proc/cpuinfo"),
            re.MULTILINE,
        )
        present = -1
        for processor, speed in listed:
            present = int(processor) if processor else present
            found += [float(speed)] if speed and present in cpus else []
    return max(found, default=None)


def _read_firmware_word(root: Path, run: Run) -> int | None:
    """Return the throttling word of a Pi's firmware, from the kernel or the firmware's command."""
    paths = list_entries(root / "sys/devices/platform", "soc*/soc*firmware/get_throttled")
    words = [read_text(path) for path in paths] or [
        run("vcgencmd", "get_throttled").removeprefix("throttled=")
    ]
    return next(
        (int(word, 16) for word in words if re.fullmatch(r"(0x)?[0-9a-fA-F]{1,8}", word)), None
    )


def _is_slowed(root: Path) -> bool | None:
    """Return True if the kernel slows the processor down for cooling now."""
    coolers = [
        c
        for c in list_entries(root / "sys/class/thermal", "cooling_device*")
        if re.search("cpufreq|^Processor", read_text(c / "type"))
    ]
    states = [
        state for cooler in coolers if (state := read_number(cooler / "cur_state")) is not None
    ]
    return any(state > 0 for state in states) if states else None


def _count_events(root: Path) -> int | None:
    """Return how often the processor throttled itself since boot: Intel's because of heat, a
    Jetson's because of current.
    """
    counters = [
        *list_entries(root / "sys/devices/system/cpu", "cpu*/thermal_throttle/*_throttle_count"),
        *list_entries(root / "sys/class/hwmon", "hwmon*/oc*_event_cnt"),
    ]
    counts = [int(count) for counter in counters if (count := read_number(counter)) is not None]
    return sum(counts) if counts else None


BUSY = 0.2  # fraction of the processors above which a machine counts as busy


class Load:
    """Measure the load from other processes since the last call.

    known: whether the system reports usage (Android does not); if not, every share is 0
    """

    known = True

    def __init__(self) -> None:
        self._last = self._look()

    def share(self) -> float:
        """Return the fraction, 0 to 1, of the processors that other processes used since the
        last call, without this process and its children.
        """
        before, self._last = self._last, self._look()
        (start, used, own), (end, used_now, own_now) = before, self._last
        spent = (end - start) * len(list_processors())
        others = (used_now - used) - max(0.0, own_now - own)
        return min(1.0, max(0.0, others / spent)) if spent > 0 else 0.0

    def _look(self) -> tuple[float, float, float]:
        """Return the time, the processor seconds used by all processes, and those used by this
        process and its children.
        """
        try:
            used = _sum_busy_seconds(list_processors())
        except OSError:
            self.known = False
            return time.monotonic(), 0.0, 0.0
        own = 0.0
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                # user and system time, with those of ended children
                own += sum(process.cpu_times()[:4])
        return time.monotonic(), used, own


def _sum_busy_seconds(cpus: Collection[int]) -> float:
    """Return the busy seconds of processors since boot. OSError: the system does not report
    them.
    """
    per_cpu = psutil.cpu_times(percpu=True)
    here = [per_cpu[cpu] for cpu in cpus if cpu < len(per_cpu)]
    guests = ("guest", "guest_nice")  # the kernel also counts these as user and nice
    return float(
        sum(
            sum(times)
            - times.idle
            - getattr(times, "iowait", 0.0)
            - sum(getattr(times, name, 0.0) for name in guests)
            for times in here
        )
    )


def measure_load(seconds: float = 0.5) -> float | None:
    """Return the fraction of the processors that other processes use over some seconds, or None
    if the system does not report it.
    """
    load = Load()
    time.sleep(seconds)
    share = load.share()
    return share if load.known else None
