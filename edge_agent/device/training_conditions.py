"""Check the owner's conditions for training, such as `22:00-06:00,charging,unmetered` or
`idle,temperature<70,traffic<2GB,energy<500kJ`. Does not import torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, time
from pathlib import Path

from edge_agent.device.board import is_metered, read_power
from edge_agent.device.heat_and_load import BUSY, Load, read_heat
from edge_agent.device.monthly_use import MonthlyUse
from edge_agent.device.process_limits import parse_size
from edge_agent.device.sysfs import ROOT, Run, run_command
from federated.errors import ConfigError, UsageError
from federated.runtime.unit_formatting import human_bytes

__all__ = ["Conditions"]

CONDITIONS = (
    "HH:MM-HH:MM",
    "charging",
    "energy<JOULES",
    "idle",
    "temperature<DEGREES",
    "traffic<SIZE",
    "unmetered",
)
WARMEST = 120.0  # highest accepted bound in degrees
# degrees below the bound at which a hot device resumes, so that it does not switch on and off
COOLER = 3.0
NONE: Mapping[str, MonthlyUse] = {}

Condition = Callable[[], str | None]
"""Return why the device must not train now: "" if it may, None if unknown."""


class Conditions:
    """Comma-separated conditions; calling the object returns why the device must not train now,
    or "".

    UsageError: the text is not a list of conditions. ConfigError: the device cannot check one of
        them: it would ignore the owner's wish, or never train.
    """

    def __init__(
        self,
        text: str,
        root: Path = ROOT,
        run: Run = run_command,
        load: Callable[[], Load] = Load,
        clock: Callable[[], datetime] = datetime.now,
        uses: Mapping[str, MonthlyUse] = NONE,
    ) -> None:
        """clock: local time. uses: `traffic` (bytes) and `energy` (joules) of this month, as far as
        this device can count them.
        """
        self._root, self._run, self._clock, self._uses = root, run, clock, uses
        self._load = load()
        self._hot = False
        self._unmet = ("", "")  # name of the unmet condition, and why it is unmet
        self._conditions = (
            [self._parse(word.strip()) for word in text.split(",")] if text.strip() else []
        )
        for name, condition in self._conditions:
            if condition() is None:
                raise ConfigError(
                    f"--when {name}: cannot determine {describe_reading(name)} on this device; "
                    "remove the condition"
                )

    def __call__(self) -> str:
        """Return the first unmet condition, worded as when it began. A device that can no longer
        check a condition does not train.
        """
        for name, condition in self._conditions:
            why = condition()
            if why is None:
                why = f"cannot determine {describe_reading(name)}"
            if why:
                # keeps the first wording, so that not every degree is a new reason
                self._unmet = self._unmet if self._unmet[0] == name else (name, why)
                return self._unmet[1]
        self._unmet = ("", "")
        return ""

    def _parse(self, word: str) -> tuple[str, Condition]:
        plain: dict[str, Condition] = {
            "charging": self._charging,
            "idle": self._idle,
            "unmetered": self._unmetered,
        }
        if word in plain:
            return word, plain[word]
        if hours := re.fullmatch(r"(\d{1,2}:\d\d)\s*-\s*(\d{1,2}:\d\d)", word):
            begin, end = (parse_time(text, word) for text in hours.groups())
            if begin == end:
                raise UsageError(f"--when {word}: expected two different times")
            return word, lambda: self._within(begin, end)
        if size := re.fullmatch(r"traffic\s*<\s*(.+)", word):
            most = parse_size(size[1], f"--when {word}")
            return word, lambda: self._has_left("traffic", most, human_bytes(most))
        if energy := re.fullmatch(r"energy\s*<\s*(.+)", word):
            joules = parse_joules(energy[1], word)
            return word, lambda: self._has_left("energy", joules, energy[1])
        bound = re.fullmatch(r"temperature\s*<\s*(\d{1,3}(?:\.\d+)?)", word)
        if bound is None or not 0 < float(bound[1]) <= WARMEST:
            raise UsageError(
                f"--when: expected conditions separated by commas, each one of "
                f"{', '.join(CONDITIONS)}, with DEGREES above 0 and at most {WARMEST:g}; "
                f"found '{word[:60]}'"
            )
        return word, lambda: self._warm(float(bound[1]))

    def _within(self, begin: time, end: time) -> str:
        now = self._clock().time()
        inside = begin <= now < end if begin < end else now >= begin or now < end
        return "" if inside else f"not between {begin:%H:%M} and {end:%H:%M}"

    def _has_left(self, kind: str, most: int, shown: str) -> str | None:
        if kind not in self._uses:
            return None
        try:
            used = self._uses[kind].read()
        except OSError:
            return None
        return f"used {shown} of {kind} this month" if used >= most else ""

    def _charging(self) -> str | None:
        power = read_power(self._root, self._run)
        return {"mains": "", "battery": "on battery", "": None}[power]

    def _idle(self) -> str | None:
        share = self._load.share()
        if not self._load.known:
            return None
        return f"busy: other processes use {share:.0%} of the processors" if share >= BUSY else ""

    def _unmetered(self) -> str | None:
        metered = is_metered(self._root, self._run)
        return None if metered is None else "metered network" if metered else ""

    def _warm(self, bound: float) -> str | None:
        celsius = read_heat(self._root, self._run).celsius
        if celsius is None:
            return None
        self._hot = celsius >= bound - (COOLER if self._hot else 0.0)
        return f"{celsius:.0f} C, not below {bound:g} C" if self._hot else ""


def parse_time(text: str, word: str) -> time:
    """Return a time of day such as `22:00`. Raises UsageError that names the condition."""
    try:
        hour, minute = map(int, text.split(":"))
        return time(hour, minute)
    except ValueError as error:
        raise UsageError(f"--when {word}: expected times from 00:00 to 23:59") from error


def parse_joules(text: str, word: str) -> int:
    """Return the joules of `500kJ` or `0.2kWh`. Raises UsageError that names the condition."""
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,12})?)\s*(k?J|MJ|k?Wh)", text)
    joules = int(float(found[1]) * JOULES[found[2]]) if found else 0
    if not joules:
        raise UsageError(f"--when {word}: expected energy such as 500kJ, 2MJ or 0.2kWh")
    return joules


def describe_reading(name: str) -> str:
    """Return what a condition needs to know, in words."""
    return READINGS.get(name.split("<")[0].strip(), "the time")


JOULES = {"J": 1, "kJ": 1000, "MJ": 10**6, "Wh": 3600, "kWh": 3_600_000}
READINGS = {
    "charging": "the power source",
    "energy": "the energy of training (no power sensor of the board is readable: state its power "
    "while it trains with --watts)",
    "idle": "the load of the processors",
    "temperature": "the temperature",
    "traffic": "the traffic of this month (its file cannot be written)",
    "unmetered": "whether the network is metered",
}
