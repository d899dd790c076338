"""Keep this device's measurements on disk, and reuse one only while everything that it depends on
is the same. Does not import torch.

One small JSON file per measurement, in `$ESPALIER_CACHE`, or else `$XDG_CACHE_HOME/espalier`, or
else `~/.cache/espalier`. A file that is damaged or not writable only costs a new measurement.
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

from edge_agent.device.board import read_board, read_processor_name
from edge_agent.device.heat_and_load import BUSY, Heat, Load, has_throttled, read_heat
from edge_agent.device.process_limits import Limits, count_cpus
from edge_agent.device.state_folder import find_folder
from edge_agent.device.sysfs import ROOT, read_number
from federated.device.profile_file import Circumstances
from federated.install_command import NAME
from federated.runtime import atomic_files, provenance
from federated.system.processors import list_processors

__all__ = ["PACKAGES", "MeasurementCache", "describe_surroundings", "locate_cache", "read_versions"]

log = logging.getLogger(__name__)

FORMAT = 1
PACKAGES = (NAME, "numpy", "onnxruntime", "torch")


def locate_cache() -> Path:
    """Return the cache folder; for a user without a home, a path that cannot be written."""
    try:
        return find_folder("ESPALIER_CACHE", "XDG_CACHE_HOME", ".cache/espalier")
    except RuntimeError:
        return Path(os.devnull) / "espalier"


def read_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that timings depend on."""
    return {"python": platform.python_version()} | {
        name: version for name, version in provenance.versions(PACKAGES).items() if version
    }


def describe_surroundings(limits: Limits, trainer: str, root: Path = ROOT) -> dict[str, Any]:
    """Return what every timing of this process depends on: versions, the board with its power mode
    and source, processors and limits.

    trainer: runtime of the trainer
    """
    allowed = list_processors()
    speeds = {
        read_number(root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq")
        for cpu in allowed
    }
    return {
        "versions": read_versions(),
        "board": asdict(read_board(root)),
        "processor": read_processor_name(root),
        # differ between a phone's small and large processors
        "speeds": sorted(speed for speed in speeds if speed),
        "cpus": count_cpus(limits, root=root),
        "limits": asdict(limits),
        "trainer": trainer,
    }


class MeasurementCache:
    """Measurements under one set of surroundings, from the cache or new.

    A measurement taken while other processes use the processors, or while the device throttles, is
    returned but not cached. Cached values are ignored once the device has throttled since. `taken`
    counts new measurements, `known` cached ones.
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
        """Open the cache.

        fresh: ignore cached values
        heat, load: readers of the device's state
        """
        self.around, self.fresh, self.where = (
            dict(around),
            fresh,
            where or locate_cache() / "timings",
        )
        self.taken, self.known, self.throttled, self.busy = 0, 0, False, 0.0
        self._heat, self._load = heat, load
        self._explained = False  # whether the log says why a measurement is not cached
        self._now = heat()

    @property
    def circumstances(self) -> Circumstances:
        """Device state during all measurements taken."""
        heat = self._heat()
        unknown = heat.throttled is None and heat.ever is None
        return Circumstances(heat.celsius, heat.mhz, None if unknown else self.throttled, self.busy)

    def value(
        self, what: Mapping[str, Any], measure: Callable[[], float], *, keep: bool = True
    ) -> float:
        """Return the cached value for `what`, or the result of `measure`.

        what: plain values that the measurement depends on besides the surroundings
        keep: False if `what` is incomplete: then measure each time
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
        held_back = has_throttled(before, self._now)
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
        elif keep and not self._explained:
            self._explained = True
            why = (
                "the device throttled"
                if held_back
                else f"other processes used {share:.0%} of the processors"
            )
            log.info("measurements are not cached, so the next start measures again: %s", why)
        return value

    def _read(self, path: Path, about: Mapping[str, Any]) -> float | None:
        """Return the cached value if it is intact, matches, and the device has not throttled
        since.
        """
        try:
            found = json.loads(path.read_bytes())
            value, heat = float(found["value"]), msgspec.convert(found["heat"], Heat)
            if found["format"] != FORMAT or found["about"] != about or not 0 < value < math.inf:
                raise ValueError("it belongs to another measurement")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            # msgspec's and JSON's errors are ValueErrors
            log.warning("measuring again: %s is damaged: %s", path, error)
            return None
        if has_throttled(heat, self._now):
            log.info("measuring again: the device has throttled since the last measurement")
            return None
        return value

    @staticmethod
    def _write(path: Path, entry: Mapping[str, Any]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_files.write(path, json.dumps(entry).encode())
        except OSError as error:
            log.warning("cannot cache a measurement: %s: %s", path, error.strerror)
