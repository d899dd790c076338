"""Check the owner's conditions for training, such as `charging,idle,unmetered,temperature<70`. Does
not import torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from edge_agent.device.board import is_metered, read_power
from edge_agent.device.heat_and_load import BUSY, Load, read_heat
from edge_agent.device.sysfs import ROOT, Run, run_command
from federated.errors import ConfigError, UsageError

__all__ = ["Conditions"]

CONDITIONS = ("charging", "idle", "temperature<DEGREES", "unmetered")
WARMEST = 120.0  # highest accepted bound in degrees
# degrees below the bound at which a hot device resumes, so that it does not switch on and off
COOLER = 3.0

Condition = Callable[[], str | None]
"""Return why the device must not train now: "" if it may, None if unknown."""


class Conditions:
    """Comma-separated conditions; calling the object returns why the device must not train now,
    or "".

    UsageError: the text is not a list of conditions. ConfigError: the device cannot check one of
        them: it would ignore the owner's wish, or never train.
    """

    def __init__(
        self, text: str, root: Path = ROOT, run: Run = run_command, load: Callable[[], Load] = Load
    ) -> None:
        self._root, self._run = root, run
        self._load = load()
        self._hot = False
        self._unmet = ("", "")  # name of the unmet condition, and why it is unmet
        self._conditions = (
            [self._parse(word.strip()) for word in text.split(",")] if text.strip() else []
        )
        for name, condition in self._conditions:
            if condition() is None:
                raise ConfigError(
                    f"--when {name}: cannot determine {READINGS[name.split('<')[0].strip()]} on "
                    "this device; remove the condition"
                )

    def __call__(self) -> str:
        """Return the first unmet condition, worded as when it began. A device that can no longer
        check a condition does not train.
        """
        for name, condition in self._conditions:
            why = condition()
            if why is None:
                why = f"cannot determine {READINGS[name.split('<')[0].strip()]}"
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
        bound = re.fullmatch(r"temperature\s*<\s*(\d{1,3}(?:\.\d+)?)", word)
        if bound is None or not 0 < float(bound[1]) <= WARMEST:
            raise UsageError(
                f"--when: expected conditions separated by commas, each one of "
                f"{', '.join(CONDITIONS)}, with DEGREES above 0 and at most {WARMEST:g}; "
                f"found '{word[:60]}'"
            )
        return word, lambda: self._warm(float(bound[1]))

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


READINGS = {
    "charging": "the power source",
    "idle": "the load of the processors",
    "temperature": "the temperature",
    "unmetered": "whether the network is metered",
}
