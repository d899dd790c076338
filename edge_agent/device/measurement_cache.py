"""What this device measured, kept beside what it depends on, so that it is measured once. No torch
here.

One small JSON file per measurement, in `$ESPALIER_CACHE`, else `$XDG_CACHE_HOME/espalier`, else
`~/.cache/espalier`. A file that is damaged, or cannot be written, costs a measurement and never
more.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from edge_agent.device.board import processor, read_board
from edge_agent.device.heat import Heat, read_heat, throttled_between
from edge_agent.device.limits import Limits, available_cpus
from edge_agent.device.load import BUSY, Load
from edge_agent.device.sysfs import ROOT, number
from federated.device.profile_file import Circumstances
from federated.runtime import files, provenance

__all__ = ["PACKAGES", "Notebook", "folder", "surroundings", "versions"]

log = logging.getLogger(__name__)

FORMAT = 1
PACKAGES = ("espalier", "numpy", "onnxruntime", "torch")


def folder() -> Path:
    """Where measurements are kept; for a user without a home, nowhere: it cannot be written."""
    if named := os.environ.get("ESPALIER_CACHE"):
        return Path(named)
    if caches := os.environ.get("XDG_CACHE_HOME"):
        return Path(caches) / "espalier"
    try:
        return Path.home() / ".cache/espalier"
    except RuntimeError:
        return Path(os.devnull) / "espalier"


def versions() -> dict[str, str]:
    """Of the packages that timings depend on, where they are installed, and of Python."""
    return {"python": platform.python_version()} | {
        name: version for name, version in provenance.versions(PACKAGES).items() if version
    }


def surroundings(limits: Limits, trainer: str, root: Path = ROOT) -> dict[str, Any]:
    """What every timing of this process depends on: versions, the board with its power mode and
    source, its processors, limits. trainer: its runtime.
    """
    allowed = os.sched_getaffinity(0)
    speeds = {
        number(root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq")
        for cpu in allowed
    }
    return {
        "versions": versions(),
        "board": asdict(read_board(root)),
        "processor": processor(root),
        # of a phone's small and large processors
        "speeds": sorted(speed for speed in speeds if speed),
        "cpus": available_cpus(limits, root=root),
        "limits": asdict(limits),
        "trainer": trainer,
    }


class Notebook:
    """Measurements under one set of surroundings: looked up, or taken and kept.

    What is taken while others use the processors, or while the device throttles, is given but not
    kept; nor is what was kept trusted once the device throttled since. `taken` and `known` count
    both kinds.
    """

    def __init__(
        self,
        around: Mapping[str, Any],
        *,
        fresh: bool = False,
        where: Path | None = None,
        heat: Callable[[], Heat] = read_heat,
        load: Callable[[], Load] = Load,
    ) -> None:
        """fresh: look nothing up. heat, load: how the device is looked at."""
        self.around, self.fresh, self.where = dict(around), fresh, where or folder() / "timings"
        self.taken, self.known, self.throttled, self.busy = 0, 0, False, 0.0
        self._heat, self._load = heat, load
        self._now = heat()

    @property
    def circumstances(self) -> Circumstances:
        """Under which everything was measured that was."""
        heat = self._heat()
        unknown = heat.throttled is None and heat.ever is None
        return Circumstances(heat.celsius, heat.mhz, None if unknown else self.throttled, self.busy)

    def value(
        self, what: Mapping[str, Any], measure: Callable[[], float], *, keep: bool = True
    ) -> float:
        """The number that `measure` would give for `what`, plain values that say all that it
        depends on beside the surroundings.

        keep: whether they do say all; otherwise it is measured each time.
        """
        about = json.loads(json.dumps({**self.around, **what}, sort_keys=True))
        path = (
            self.where
            / f"{hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()}.json"
        )
        if keep and not self.fresh and (kept := self._read(path, about)) is not None:
            self.known += 1
            return kept
        before, load = self._heat(), self._load()
        value = measure()
        self._now, share = self._heat(), load.share()
        held_back = throttled_between(before, self._now)
        self.taken, self.throttled, self.busy = (
            self.taken + 1,
            self.throttled or held_back,
            max(self.busy, share),
        )
        if keep and not held_back and share < BUSY:
            self._write(
                path,
                {
                    "format": FORMAT,
                    "value": value,
                    "about": about,
                    "heat": asdict(self._now),
                    "taken": time.time(),
                },
            )
        return value

    def _read(self, path: Path, about: Mapping[str, Any]) -> float | None:
        """What was kept, where it is whole, of this, and no throttling came in between."""
        try:
            found = json.loads(path.read_bytes())
            value, heat = float(found["value"]), msgspec.convert(found["heat"], Heat)
            if found["format"] != FORMAT or found["about"] != about or not 0 < value < math.inf:
                raise ValueError("it is of something else")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            # msgspec's and JSON's are ValueErrors
            log.warning("measuring again: %s is damaged: %s", path, error)
            return None
        if throttled_between(heat, self._now):
            log.info("measuring again: the device throttled since")
            return None
        return value

    @staticmethod
    def _write(path: Path, entry: Mapping[str, Any]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write(path, json.dumps(entry).encode())
        except OSError as error:
            log.warning("a measurement is not kept: %s: %s", path, error.strerror)
