"""Whether this device's clock is right: by the coordinator's, and by itself."""

from __future__ import annotations

import math
import time
from pathlib import Path

from edge_agent.doctor.check import Check, State

__all__ = ["clock", "skewed"]

# seconds that clocks may differ before a word, and before certificates and logs are of no use
SKEW = (5.0, 300.0)


def skewed(seconds: float, passed: float) -> Check:
    """seconds: how far the coordinator's clock is ahead; passed: seconds of the question, within
    which nothing can be told.
    """
    off, remedy = (
        max(0.0, abs(seconds) - passed / 2),
        "set this device's clock by the network: timedatectl set-ntp true",
    )
    if not math.isfinite(seconds):
        return Check("skew", "warn", "the coordinator gives no time")
    told = (
        f"this device is {abs(seconds):.1f} s {'behind' if seconds > 0 else 'ahead of'} the "
        f"coordinator (known to {passed / 2:.2f} s)"
    )
    state: State = "ok" if off < SKEW[0] else "warn" if off < SKEW[1] else "fail"
    return Check("skew", state, told, "" if state == "ok" else remedy, 3)


def clock() -> Check:
    """Whether the clock can be right at all: it is not before this program was installed."""
    now, installed = time.time(), Path(__file__).stat().st_mtime
    told = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < installed - 86400:
        return Check(
            "clock",
            "fail",
            f"{told}, before this program was installed",
            "set it: timedatectl set-ntp true; a Pi forgets the time without power",
            3,
        )
    return Check("clock", "ok", told)
