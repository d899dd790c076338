"""Checks of this device's clock."""

from __future__ import annotations

import math
import time
from pathlib import Path

from edge_agent.doctor.check import Check, State

__all__ = ["check_clock", "check_skew"]

# seconds of skew that lead to a warning, and that make certificates and logs unusable
SKEW = (5.0, 300.0)


def check_skew(ahead: float, round_trip: float) -> Check:
    """Compare this device's clock with the coordinator's.

    ahead: seconds by which the coordinator's clock is ahead.
    round_trip: seconds of the request, which limit the precision.
    """
    if not math.isfinite(ahead):
        return Check("skew", "warn", "the coordinator reports no time")
    skew = max(0.0, abs(ahead) - round_trip / 2)
    found = (
        f"this device is {abs(ahead):.1f} s {'behind' if ahead > 0 else 'ahead of'} the "
        f"coordinator (precision {round_trip / 2:.2f} s)"
    )
    state: State = "ok" if skew < SKEW[0] else "warn" if skew < SKEW[1] else "fail"
    remedy = "synchronise this device's clock: timedatectl set-ntp true"
    return Check("skew", state, found, "" if state == "ok" else remedy, 3)


def check_clock() -> Check:
    """Check that the clock is not earlier than the installation of this program."""
    now, installed = time.time(), Path(__file__).stat().st_mtime
    found = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < installed - 86400:
        return Check(
            "clock",
            "fail",
            f"{found}, before this program was installed",
            "set the clock: timedatectl set-ntp true; a Raspberry Pi loses the time without power",
            3,
        )
    return Check("clock", "ok", found)
