"""What a device is: a Pi, a Jetson, a phone or another machine, its processor, its GPU and what
powers it. No torch here.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from edge_agent.device.power import read_power
from edge_agent.device.sysfs import ROOT, Run, entries, run_command, text
from federated.task import Board

__all__ = ["processor", "read_board"]

PLACEHOLDERS = re.compile(
    r"to be filled|o\.e\.m\.|default string|system product name|system version|not "
    r"specified|^none$|^unknown$",
    re.IGNORECASE,
)
# the GPU inside each chip of a Jetson
TEGRA = {"210": "Maxwell", "186": "Pascal", "194": "Volta", "234": "Ampere", "264": "Blackwell"}
DRIVERS = {  # of GPUs, by the kernel's driver; displays of servers and of virtual machines are none
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
INTEL_INSIDE = "0000:00:02.0"  # where Intel's GPU sits on the bus when it is part of the processor


def read_board(
    root: Path = ROOT, run: Run = run_command, environment: Mapping[str, str] = os.environ
) -> Board:
    """The board as its device tree, its firmware or its system name it."""
    power = read_power(root, run)
    tree = _device_tree(root, "model")
    chips = _device_tree(root, "compatible").split()
    if tree.startswith("Raspberry Pi") or any(chip.startswith("raspberrypi,") for chip in chips):
        gpu, shared = _drm(root)
        return Board("pi", tree, gpu, shared, power)
    if (root / "etc/nv_tegra_release").exists() or any(
        chip.startswith("nvidia,tegra") for chip in chips
    ):
        return Board("jetson", _jetson(root, run, tree), _tegra(chips), True, power)
    if "com.termux" in environment.get("PREFIX", "") or (root / "system/build.prop").exists():
        maker, model = run("getprop", "ro.product.manufacturer"), run("getprop", "ro.product.model")
        name = model if model.lower().startswith(maker.lower()) else f"{maker} {model}"
        return Board("android", name.strip(), _phone_gpu(root, run), True, power)
    gpu, shared = _nvidia(root, run) or _drm(root)
    return Board("generic", tree or _product(root), gpu, shared, power)


def processor(root: Path = ROOT) -> str:
    """The processor's name; where the kernel gives only parts (ARM), their numbers; at least its
    architecture.
    """
    listed = text(root / "proc/cpuinfo")
    if named := re.search(r"^model name\s*:\s*(.+)$", listed, re.MULTILINE):
        return named[1]
    parts = sorted(set(re.findall(r"^CPU part\s*:\s*(\w+)$", listed, re.MULTILINE)))
    return f"{platform.machine()} {' '.join(parts)}".strip()


def _device_tree(root: Path, name: str) -> str:
    return text(root / "proc/device-tree" / name) or text(
        root / "sys/firmware/devicetree/base" / name
    )


def _product(root: Path) -> str:
    """The machine's name as its maker wrote it into the firmware, where it did."""
    words = [text(root / "sys/class/dmi/id" / name) for name in ("sys_vendor", "product_name")]
    vendor, product = ("" if PLACEHOLDERS.search(word) else word for word in words)
    return (
        product
        if product.lower().startswith(vendor.lower()) and product
        else f"{vendor} {product}".strip()
    )


def _jetson(root: Path, run: Run, tree: str) -> str:
    """The board and its power mode, on which all timings depend."""
    mode = ""
    if said := re.search(r"NV Power Mode:\s*(\S+)", run("nvpmodel", "-q")):
        mode = said[1]
    elif kept := re.search(r"pmode:(\d+)", text(root / "var/lib/nvpmodel/status")):
        named = re.search(
            rf"POWER_MODEL\s+ID={int(kept[1])}\s+NAME=(\S+)", text(root / "etc/nvpmodel.conf")
        )
        mode = named[1] if named else str(int(kept[1]))
    return ", power mode ".join(part for part in (tree or "NVIDIA Jetson", mode) if part)


def _tegra(chips: list[str]) -> str:
    for chip in chips:
        if (found := re.fullmatch(r"nvidia,tegra(\d+)", chip)) and found[1] in TEGRA:
            return f"NVIDIA {TEGRA[found[1]]} (tegra{found[1]})"
    return "NVIDIA Tegra"


def _phone_gpu(root: Path, run: Run) -> str:
    return (
        text(root / "sys/class/kgsl/kgsl-3d0/gpu_model")
        or run("getprop", "ro.hardware.egl")
        or run("getprop", "ro.hardware.vulkan")
    )


def _nvidia(root: Path, run: Run) -> tuple[str, bool] | None:
    for card in entries(root / "proc/driver/nvidia/gpus", "*/information"):
        if named := re.search(r"^Model:\s*(.+)$", text(card), re.MULTILINE):
            return named[1], False
    # where another system drives the card for this one
    name = run("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return (name.splitlines()[0], False) if name else None


def _drm(root: Path) -> tuple[str, bool]:
    """The first GPU that draws or computes. One that is no card on the bus, or is inside Intel's
    processors, has the processor's memory.
    """
    for card in entries(root / "sys/class/drm", "card[0-9]*"):
        about = dict(
            line.split("=", 1) for line in text(card / "device/uevent").splitlines() if "=" in line
        )
        if (driver := about.get("DRIVER", "")) in DRIVERS:
            return f"{DRIVERS[driver]} ({driver})", about.get(
                "PCI_SLOT_NAME", INTEL_INSIDE
            ) == INTEL_INSIDE
    return "", False
