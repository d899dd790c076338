"""Read what powers the device, and whether its network is metered. Does not import torch."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

from edge_agent.device.sysfs import ROOT, Run, entries, number, run_command, text

__all__ = ["Power", "is_metered", "read_power"]

Power = Literal["mains", "battery", ""]

PLUGS = ("Mains", "USB", "Wireless")
MANAGER = (
    "org.freedesktop.NetworkManager",
    "/org/freedesktop/NetworkManager",
    "org.freedesktop.NetworkManager",
    "Metered",
)
# NetworkManager's values: yes, no, guessed yes, guessed no
METERED = {"1": True, "2": False, "3": True, "4": False}


def read_power(root: Path = ROOT, run: Run = run_command) -> Power:
    """Return `mains` if the device is plugged in or its battery charges, `battery` if the
    battery discharges, "" if unknown.
    """
    # skips peripherals' batteries, such as a mouse's
    supplies = [
        s for s in entries(root / "sys/class/power_supply", "*") if text(s / "scope") != "Device"
    ]
    if any(text(s / "type") in PLUGS and number(s / "online") == 1 for s in supplies):
        return "mains"
    states = [
        state
        for s in supplies
        if text(s / "type") == "Battery" and (state := text(s / "status")) not in ("", "Unknown")
    ]
    if not states and (phone := _termux(run, "termux-battery-status")):
        states = (
            ["Discharging" if phone.get("plugged") == "UNPLUGGED" else "Charging"]
            if "plugged" in phone
            else []
        )
    if not states:
        return ""
    return "battery" if "Discharging" in states else "mains"


def is_metered(root: Path = ROOT, run: Run = run_command) -> bool | None:
    """Return True if the network is metered, as set by the owner or guessed by the system; None if
    unknown.
    """
    if match := re.fullmatch(r"u ([1-4])", run("busctl", "get-property", *MANAGER)):
        return METERED[match[1]]
    device = _default_device(root)
    if device and (
        match := re.match(
            r"yes|no\b", run("nmcli", "-g", "GENERAL.METERED", "device", "show", device)
        )
    ):
        return match[0] == "yes"
    # without Wi-Fi a phone uses mobile data
    if wireless := _termux(run, "termux-wifi-connectioninfo"):
        return wireless.get("supplicant_state") != "COMPLETED"
    return None


def _default_device(root: Path) -> str:
    """Return the interface of the default route with the smallest metric."""
    rows = [line.split() for line in text(root / "proc/net/route").splitlines()[1:]]
    routes = [
        (int(row[6]), row[0]) for row in rows if len(row) > 7 and row[1] == row[7] == "00000000"
    ]
    return min(routes, default=(0, ""))[1]


def _termux(run: Run, command: str) -> dict[str, Any]:
    """Return the output of a Termux:API command; empty if it is not installed."""
    try:
        found = json.loads(run(command) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
