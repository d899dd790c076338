"""Measure the machine's energy: the package counters of Intel and AMD processors, and the power
sensors of boards. Does not import torch.

The values cover the whole package or board, including other processes and idle power.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from edge_agent.device.sysfs import ROOT, list_entries, read_number, read_text

__all__ = ["Meter", "TrainingEnergy", "read_counters", "read_watts"]

EVERY = 0.1  # seconds between two readings of a power sensor
# a Jetson's rails that feed the whole board; the other rails are parts of them
WHOLE = ("VDD_IN", "POM_5V_IN", "VDD_TOTAL")


def read_counters(root: Path = ROOT) -> dict[str, tuple[float, float]]:
    """Return each package's energy in microjoules, and the value at which its counter wraps;
    empty if none is readable (Linux requires root).
    """
    # whole packages only
    zones = [
        z
        for z in list_entries(root / "sys/class/powercap", "intel-rapl:*")
        if re.fullmatch(r"intel-rapl:\d+", z.name)
    ]
    found = {
        zone.name: (read_number(zone / "energy_uj"), read_number(zone / "max_energy_range_uj"))
        for zone in zones
    }
    return {name: (used, end or 0.0) for name, (used, end) in found.items() if used is not None}


def read_watts(root: Path = ROOT) -> float | None:
    """Return the board's power from its INA sensors, or None without any."""
    rails: dict[str, float] = {}
    for chip in list_entries(root / "sys/class/hwmon", "hwmon*"):
        if read_text(chip / "name").startswith("ina"):
            rails |= _read_rails(chip)
    whole = [value for name, value in rails.items() if name in WHOLE]
    return (whole[0] if whole else sum(rails.values())) if rails else None


class Meter:
    """Measure joules from start to end with the counters, or else with the sensors' mean power;
    `joules` stays None without either.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self.joules: float | None = None
        self.seconds = 0.0
        self._root = root
        self._stop = threading.Event()
        self._watch: threading.Thread | None = None
        self._seen: list[float] = []

    def __enter__(self) -> Meter:
        self._start, self._counters = time.perf_counter(), read_counters(self._root)
        if not self._counters and read_watts(self._root) is not None:
            self._watch = threading.Thread(target=self._look, daemon=True, name="energy")
            self._watch.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds = time.perf_counter() - self._start
        if self._watch is not None:
            self._stop.set()
            self._watch.join()
            self.joules = sum(self._seen) / len(self._seen) * self.seconds if self._seen else None
        now = read_counters(self._root)
        used = [
            _subtract_counter(before, now[name][0], end)
            for name, (before, end) in self._counters.items()
            if name in now
        ]
        if used:
            self.joules = sum(used) / 1e6

    @property
    def watts(self) -> float:
        """Mean power from start to end; 0 if it is unknown."""
        return self.joules / self.seconds if self.joules and self.seconds else 0.0

    def _look(self) -> None:
        while not self._stop.is_set():
            if (value := read_watts(self._root)) is not None:
                self._seen.append(value)
            self._stop.wait(EVERY)


class TrainingEnergy:
    """The joules that this machine used while the agent trained, with its idle power.

    known: False if no sensor is readable and no power was stated.
    """

    def __init__(
        self,
        watts: float = 0.0,
        *,
        gpu: bool = False,
        root: Path = ROOT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """watts: power while it trains, as the owner states it; 0: sensors measure it. gpu: whether
        it trains on a GPU, which counters of processors do not cover.
        """
        self._watts, self._root, self._clock = watts, root, clock
        self._with_counters = not gpu
        self._joules, self._training, self._read = 0.0, False, clock()
        self._counters = self._read_counters()
        self.known = bool(watts or self._counters) or read_watts(root) is not None

    def update(self, *, training: bool) -> None:
        """Add what was used since the last call, if the agent trained then. training: now."""
        now = self._clock()
        both = training and self._training
        if not (training or self._training) or (both and now - self._read < EVERY):
            return
        seconds, before = now - self._read, self._counters
        self._read, self._counters = now, self._read_counters()
        if self._training:
            self._add(seconds, before)
        self._training = training

    def count(self) -> int:
        """Return the joules so far. Raises OSError if the sensors cannot be read any more."""
        if not self.known:
            raise OSError("no power sensor is readable")
        return int(self._joules)

    def _add(self, seconds: float, before: dict[str, tuple[float, float]]) -> None:
        now = self._counters
        if self._watts:
            self._joules += self._watts * seconds
        elif used := [
            _subtract_counter(start, now[name][0], end)
            for name, (start, end) in before.items()
            if name in now
        ]:
            self._joules += sum(used) / 1e6
        else:
            power = read_watts(self._root)
            self.known = power is not None
            self._joules += (power or 0.0) * seconds

    def _read_counters(self) -> dict[str, tuple[float, float]]:
        return read_counters(self._root) if self._with_counters and not self._watts else {}


def _subtract_counter(before: float, now: float, end: float) -> float:
    return now - before if now >= before else now - before + end


def _read_rails(chip: Path) -> dict[str, float]:
    """Return the watts of each rail of a sensor, from microwatts, or from millivolts times
    milliamperes.
    """
    found = {}
    for sensor in list_entries(chip, "power*_input"):
        if (value := read_number(sensor)) is not None:
            found[
                read_text(chip / sensor.name.replace("_input", "_label"))
                or f"{chip.name} {sensor.name}"
            ] = value / 1e6
    for sensor in [] if found else list_entries(chip, "curr*_input"):
        place = sensor.name.removeprefix("curr").removesuffix("_input")
        amperes, volts = read_number(sensor), read_number(chip / f"in{place}_input")
        if amperes is not None and volts is not None:
            found[read_text(chip / f"in{place}_label") or f"{chip.name} {place}"] = (
                amperes * volts / 1e6
            )
    return found
