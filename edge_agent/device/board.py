"""Identify the device: a Pi, a Jetson, a phone or another machine, with its processor, GPU and
power source, and whether its network is metered. Does not import torch.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from edge_agent.device.sysfs import ROOT, Run, list_entries, read_number, read_text, run_command
from federated.task import Board

__all__ = [
    "Power",
    "is_metered",
    "read_board",
    "read_governor",
    "read_power",
    "read_processor_name",
]

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
        s
        for s in list_entries(root / "sys/class/power_supply", "*")
        if read_text(s / "scope") != "Device"
    ]
    if any(read_text(s / "type") in PLUGS and read_number(s / "online") == 1 for s in supplies):
        return "mains"
    states = [
        state
        for s in supplies
        if read_text(s / "type") == "Battery"
        and (state := read_text(s / "status")) not in ("", "Unknown")
    ]
    if not states and (phone := _run_termux(run, "termux-battery-status")):
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
    device = _find_default_device(root)
    if device and (
        match := re.match(
            r"yes|no\b", run("nmcli", "-g", "GENERAL.METERED", "device", "show", device)
        )
    ):
        return match[0] == "yes"
    # without Wi-Fi a phone uses mobile data
    if wireless := _run_termux(run, "termux-wifi-connectioninfo"):
        return wireless.get("supplicant_state") != "COMPLETED"
    return None


def _find_default_device(root: Path) -> str:
    """Return the interface of the default route with the smallest metric."""
    rows = [line.split() for line in read_text(root / "proc/net/route").splitlines()[1:]]
    routes = [
        (int(row[6]), row[0]) for row in rows if len(row) > 7 and row[1] == row[7] == "00000000"
    ]
    return min(routes, default=(0, ""))[1]


def _run_termux(run: Run, command: str) -> dict[str, Any]:
    """Return the output of a Termux:API command; empty if it is not installed."""
    try:
        found = json.loads(run(command) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


PLACEHOLDERS = re.compile(
    r"to be filled|o\.e\.m\.|default string|system product name|system version|not "
    r"specified|^none$|^unknown$",
    re.IGNORECASE,
)
# the GPU inside each chip of a Jetson
TEGRA = {"210": "Maxwell", "186": "Pascal", "194": "Volta", "234": "Ampere", "264": "Blackwell"}
DRIVERS = {  # kernel driver -> GPU; the displays of servers and virtual machines do not count
    "amdgpu": "AMD",
    "asahi": "Apple",
    "etnaviv": "Vivante",
    "i915": "Intel",
    "lima": "Mali",
    "msm": "Adreno",
    "msm_dpu": "Adreno",
    "nouveau": "NVIDIA",
    "nvidia": "NVIDIA",
    "panfrost": "Mali",
    "panthor": "Mali",
    "radeon": "AMD",
    "v3d": "VideoCore",
    "xe": "Intel",
}
INTEL_INSIDE = "0000:00:02.0"  # bus address of an Intel GPU integrated in the processor


def read_board(
    root: Path = ROOT, run: Run = run_command, environment: Mapping[str, str] = os.environ
) -> Board:
    """Read the board's name from its device tree, firmware or system."""
    power = read_power(root, run)
    tree = _read_device_tree(root, "model")
    chips = _read_device_tree(root, "compatible").split()
    if tree.startswith("Raspberry Pi") or any(chip.startswith("raspberrypi,") for chip in chips):
        gpu, shared = _find_drm_gpu(root)
        return Board("pi", tree, gpu, shared, power)
    if (root / "etc/nv_tegra_release").exists() or any(
        chip.startswith("nvidia,tegra") for chip in chips
    ):
        return Board(
            "jetson", _describe_jetson(root, run, tree), _name_tegra_gpu(chips), True, power
        )
    if "com.termux" in environment.get("PREFIX", "") or (root / "system/build.prop").exists():
        maker, model = run("getprop", "ro.product.manufacturer"), run("getprop", "ro.product.model")
        name = model if model.lower().startswith(maker.lower()) else f"{maker} {model}"
        return Board("android", name.strip(), _read_phone_gpu(root, run), True, power)
    gpu, shared = _find_nvidia_gpu(root, run) or _find_drm_gpu(root)
    return Board("generic", tree or _read_product(root), gpu, shared, power)


def read_processor_name(root: Path = ROOT) -> str:
    """Return the processor's name; if the kernel gives only part numbers (ARM), those; at least
    the architecture.
    """
    listed = read_text(root / "proc/cpuinfo")
    if named := re.search(r"^model name\s*:\s*(.+)$", listed, re.MULTILINE):
        return named[1]
    parts = sorted(set(re.findall(r"^CPU part\s*:\s*(\w+)$", listed, re.MULTILINE)))
    return f"{platform.machine()} {' '.join(parts)}".strip()


def read_governor(root: Path = ROOT) -> str:
    """Return how the kernel sets the processors' clocks, such as `performance` or `powersave`;
    empty if unknown.
    """
    folders = list_entries(root / "sys/devices/system/cpu", "cpu[0-9]*/cpufreq")
    return " ".join(sorted({read_text(one / "scaling_governor") for one in folders})).strip()


def _read_device_tree(root: Path, name: str) -> str:
    return read_text(root / "proc/device-tree" / name) or read_text(
        root / "sys/firmware/devicetree/base" / name
    )


def _read_product(root: Path) -> str:
    """Return the machine's name from its firmware, if set."""
    words = [read_text(root / "sys/class/dmi/id" / name) for name in ("sys_vendor", "product_name")]
    vendor, product = ("" if PLACEHOLDERS.search(word) else word for word in words)
    return (
        product
        if product.lower().startswith(vendor.lower()) and product
        else f"{vendor} {product}".strip()
    )


def _describe_jetson(root: Path, run: Run, tree: str) -> str:
    """Return the board and its power mode, on which all timings depend."""
    mode = ""
    if match := re.search(r"NV Power Mode:\s*(\S+)", run("nvpmodel", "-q")):
        mode = match[1]
    elif kept := re.search(r"pmode:(\d+)", read_text(root / "var/lib/nvpmodel/status")):
        named = re.search(
            rf"POWER_MODEL\s+ID={int(kept[1])}\s+NAME=(\S+)", read_text(root / "etc/nvpmodel.conf")
        )
        mode = named[1] if named else str(int(kept[1]))
    return ", power mode ".join(part for part in (tree or "NVIDIA Jetson", mode) if part)


def _name_tegra_gpu(chips: list[str]) -> str:
    for chip in chips:
        if (found := re.fullmatch(r"nvidia,tegra(\d+)", chip)) and found[1] in TEGRA:
            return f"NVIDIA {TEGRA[found[1]]} (tegra{found[1]})"
    return "NVIDIA Tegra"


def _read_phone_gpu(root: Path, run: Run) -> str:
    return (
        read_text(root / "sys/class/kgsl/kgsl-3d0/gpu_model")
        or run("getprop", "ro.hardware.egl")
        or run("getprop", "ro.hardware.vulkan")
    )


def _find_nvidia_gpu(root: Path, run: Run) -> tuple[str, bool] | None:
    for card in list_entries(root / "proc/driver/nvidia/gpus", "*/information"):
        if named := re.search(r"^Model:\s*(.+)$", read_text(card), re.MULTILINE):
            return named[1], False
    # fallback where another system drives the card for this one
    name = run("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return (name.splitlines()[0], False) if name else None


def _find_drm_gpu(root: Path) -> tuple[str, bool]:
    """Return the name of the first GPU, and whether it shares the processor's memory: it does
    unless it is a card on the bus outside an Intel processor.
    """
    for card in list_entries(root / "sys/class/drm", "card[0-9]*"):
        about = dict(
            line.split("=", 1)
            for line in read_text(card / "device/uevent").splitlines()
            if "=" in line
        )
        if (driver := about.get("DRIVER", "")) in DRIVERS:
            return f"{DRIVERS[driver]} ({driver})", about.get(
                "PCI_SLOT_NAME", INTEL_INSIDE
            ) == INTEL_INSIDE
    return "", False
