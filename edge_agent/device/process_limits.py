"""Limit how many processors and how much memory a process may use.

Control groups are used where they are writable (v2, then v1). Elsewhere CPU affinity limits
processors, a governor that stops and continues the process limits fractions of them, and the
process's own data limit limits memory.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
import secrets
import threading
from dataclasses import dataclass
from pathlib import Path

import psutil

from edge_agent.device.sysfs import ROOT, list_entries, read_number, read_text
from federated.errors import UsageError
from federated.system.process_limits import limit_data
from federated.system.processors import limit_processors, list_processors

__all__ = [
    "Limits",
    "ProcessLimiter",
    "count_cpus",
    "find_memory_limit",
    "measure_free_memory",
    "parse_size",
]

log = logging.getLogger(__name__)

UNLIMITED = 2.0**62  # bytes: control groups v1 write "no limit" as a number one page below 2^63
# highest accepted memory limit in bytes: more is a typing error, and more than the kernel accepts
MOST = 2**50
PERIOD = 0.02  # seconds of one scheduling period: short, so that a training step spans several
UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
}


@dataclass(frozen=True)
class Limits:
    """Limits of a process; None means no limit.

    cpus: processors, may be fractional
    memory: bytes
    """

    cpus: float | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        if self.memory is not None and self.memory > MOST:
            raise UsageError(
                f"--limit-memory: expected at most 1024 TiB, found {self.memory / 2**40:.6g} TiB"
            )
        if self.memory is not None and self.memory < 64 * 2**20:
            raise UsageError(
                "--limit-memory: expected at least 64MiB (Python alone needs that much), "
                f"found {self.memory} bytes"
            )

    @property
    def threads(self) -> int:
        """Number of useful threads under this limit."""
        here = len(list_processors())
        return here if self.cpus is None else min(here, max(1, math.ceil(self.cpus)))


def parse_size(text: str, flag: str = "--limit-memory") -> int:
    """Return the bytes of `512MB`, `1.5GiB` or `300000`. Raises UsageError."""
    match = re.fullmatch(r"\s*(\d{1,30}(?:\.\d{1,30})?)\s*([KMG]?I?B?)\s*", text.upper())
    unit = match[2] if match else ""
    unit = unit if unit.endswith("B") or not unit else unit + "B"
    if match is None or unit not in UNITS:
        raise UsageError(f"{flag}: expected a size such as 512MB or 1GiB, found '{text}'")
    return int(float(match[1]) * UNITS[unit])


def count_cpus(limits: Limits, pid: int = 0, root: Path = ROOT) -> float:
    """Return how many processors a process may use (0: this one), given its affinity, control
    groups and `limits`.
    """
    allowed = [float(len(list_processors(pid))), limits.cpus or math.inf]
    for folder in _list_own_groups("cpu", pid, root):
        with contextlib.suppress(OSError, ValueError):
            quota, period = (folder / "cpu.max").read_text().split()
            allowed.append(int(quota) / int(period))
        with contextlib.suppress(OSError, ValueError):
            quota1 = int((folder / "cpu.cfs_quota_us").read_text())
            if quota1 > 0:
                allowed.append(quota1 / int((folder / "cpu.cfs_period_us").read_text()))
    return min(allowed)


def measure_free_memory(limits: Limits, pid: int = 0, root: Path = ROOT) -> int:
    """Return how many more bytes a process may allocate (0: this one), given the machine's free
    memory, its control groups and `limits`.
    """
    free = [_read_machine_memory(root)]
    if limits.memory is not None:
        free.append(limits.memory - psutil.Process(pid or None).memory_info().rss)
    for folder in _list_own_groups("memory", pid, root):
        for limit, usage, inactive in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            with contextlib.suppress(OSError, ValueError):
                stat = dict(
                    line.split() for line in (folder / "memory.stat").read_text().splitlines()
                )
                free.append(
                    int((folder / limit).read_text())
                    - int((folder / usage).read_text())
                    + int(stat.get(inactive, 0))
                )
    return int(max(0, min(free)))


def find_memory_limit(limits: Limits, pid: int = 0, root: Path = ROOT) -> float:
    """Return how many bytes a process may hold (0: this one); infinity without a limit."""
    bounds = [math.inf if limits.memory is None else float(limits.memory)]
    for folder in _list_own_groups("memory", pid, root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            bound = read_number(folder / name)
            bounds += [bound] if bound is not None and bound < UNLIMITED else []
    return min(bounds)


def _read_machine_memory(root: Path) -> int:
    """Return the bytes that the machine can provide without swapping."""
    match = re.search(r"^MemAvailable:\s*(\d+) kB$", read_text(root / "proc/meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else int(psutil.virtual_memory().available)


def _list_own_groups(controller: str, pid: int = 0, root: Path = ROOT) -> list[Path]:
    """Return the control groups of a process (0: this one), innermost first, up to the root."""
    groups = root / "sys/fs/cgroup"
    for line in read_text(root / "proc" / (str(pid) if pid else "self") / "cgroup").splitlines():
        hierarchy, names, path = line.split(":", 2)
        if controller in names.split(",") or (hierarchy == "0" and not names):
            top = groups / controller if names else groups
            inner = top / path.strip("/")
            return [p for p in (inner, *inner.parents) if p == top or top in p.parents]
    return []


def _remove_stale_groups(parent: Path) -> None:
    """Remove groups of ended processes whose agents were killed before they could."""
    for group in list_entries(parent, "espalier-*"):
        pid = group.name.split("-")[1]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            with contextlib.suppress(OSError):
                group.rmdir()


class ProcessLimiter:
    """Limit the process `pid` until closed; `how` lists the means in use."""

    def __init__(self, pid: int, limits: Limits) -> None:
        self.how: list[str] = []
        self._groups: list[Path] = []
        self._stop = threading.Event()
        self._governor: threading.Thread | None = None
        if limits.cpus is not None:
            self._limit_cpus(pid, limits.cpus)
        if limits.memory is not None:
            self._limit_memory(pid, limits.memory)

    def close(self) -> None:
        """Stop the governor and remove the control groups; call after the process has ended."""
        self._stop.set()
        if self._governor is not None:
            self._governor.join()
        for group in self._groups:
            with contextlib.suppress(OSError):
                group.rmdir()
        self._groups = []

    def _limit_cpus(self, pid: int, cpus: float) -> None:
        quota, period = int(cpus * PERIOD * 1e6), int(PERIOD * 1e6)
        if self._group(
            "cpu",
            pid,
            {"cpu.max": f"{quota} {period}"},
            {"cpu.cfs_period_us": f"{period}", "cpu.cfs_quota_us": f"{quota}"},
        ):
            self.how.append(f"{cpus:g} cpus with a control group")
            return
        processors = sorted(list_processors())
        if cpus >= len(processors):
            self.how.append(f"all {len(processors)} cpus")
            return
        start = pid % len(processors)
        chosen = (processors + processors)[start : start + math.ceil(cpus)]
        if limit_processors(pid, chosen):
            self.how.append(f"{len(chosen)} cpus with affinity")
        else:
            chosen = processors
        if cpus < len(chosen):
            self._governor = threading.Thread(
                target=self._govern, args=(pid, cpus / len(chosen)), daemon=True, name="governor"
            )
            self._governor.start()
            self.how.append(f"{cpus:g} of them with a governor that stops and continues it")

    def _limit_memory(self, pid: int, memory: int) -> None:
        if self._group(
            "memory",
            pid,
            {"memory.max": f"{memory}", "memory.swap.max": "0"},
            {"memory.limit_in_bytes": f"{memory}"},
        ):
            self.how.append(f"{memory // 10**6} MB with a control group")
            return
        self.how.append(
            f"{memory // 10**6} MB with a data limit"
            if limit_data(pid, memory)
            else "memory not limited, because only Linux can limit another process"
        )

    def _group(self, controller: str, pid: int, v2: dict[str, str], v1: dict[str, str]) -> bool:
        """Create a control group below the current one and move the process into it; return
        False if that is not allowed.
        """
        parents = _list_own_groups(controller)
        if not parents:
            return False
        unified = (parents[0] / "cgroup.controllers").exists()
        # A process is in one group per hierarchy: in the unified one, reuse the group of another
        # limit.
        known = next((group for group in self._groups if group.parent == parents[0]), None)
        group = known or parents[0] / f"espalier-{pid}-{secrets.token_hex(3)}"
        _remove_stale_groups(parents[0])
        try:
            group.mkdir(exist_ok=True)
            for name, value in (v2 if unified else v1).items():
                (group / name).write_text(value)
            (group / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            log.debug("no control group for %s: %s", controller, error)
            if known is None:
                with contextlib.suppress(OSError):
                    group.rmdir()
            return False
        if known is None:
            self._groups.append(group)
        return True

    def _govern(self, pid: int, share: float) -> None:
        """Let the process run for the fraction `share` of each period."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            try:
                while not self._stop.is_set():
                    process.resume()
                    self._stop.wait(PERIOD * share)
                    process.suspend()
                    self._stop.wait(PERIOD * (1 - share))
            finally:
                process.resume()
