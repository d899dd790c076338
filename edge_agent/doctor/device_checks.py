"""What the device itself has: room on disk and in memory, what trains and answers, limits, power
and heat.
"""

from __future__ import annotations

import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from edge_agent.device.heat import Heat, read_heat
from edge_agent.device.limits import Limits, available_cpus, available_memory, memory_limit
from edge_agent.device.power import read_power
from edge_agent.doctor.check import Check
from federated.wire import messages

__all__ = ["device"]

# of the largest submodel on disk: its weights, an update, and one that is still on its way
COPIES = 3
# bytes of disk that are worth a word, and that are too few, where no run says what it needs
ROOM = 500e6, 50e6
LEAST = 400e6, 150e6  # bytes of memory likewise: PyTorch alone takes most of the first
SHARE = 0.6  # of memory that assignment fills (coordinator: assign.memory)
LONGEST = 120.0  # seconds that a runtime may take to load
TRAIN = "pip install 'espalier[train]'"
TRIAL = {
    "torch": "import torch; torch.ones(8, 8) @ torch.ones(8, 8); print(torch.__version__, "
    "f'{torch.get_num_threads()} threads', sep=', ')",
    "onnxruntime": "import onnxruntime as o; print(o.__version__, ' "
    "'.join(o.get_available_providers()), sep=', ')",
}


def device(store: Path, card: messages.Run | None) -> Iterator[Check]:
    """store: where weights and updates are to lie. card: of the run to join, where one was
    found.
    """
    needs = needed(card)
    yield disk(store, needs[0] if needs else None)
    yield memory(needs[1] if needs else None)
    yield runtime("torch")
    yield runtime("onnxruntime")
    yield limits()
    yield power()
    yield heat(read_heat())


def needed(card: messages.Run | None) -> tuple[int, int] | None:
    """Bytes of the largest submodel, and of memory to train the smallest that the run times; None
    where that cannot be said here.
    """
    if card is None or card.network is None or not card.calibration:
        return None
    try:
        from models.cost import cost
        from models.families.catalogue import full

        return cost(full(card.network)).bytes, min(
            cost(submodel, card.batch).memory for submodel in card.calibration
        )
    except Exception:
        # no PyTorch, or a network that is not installed here: what is known without it must do
        return None


def disk(store: Path, largest: int | None) -> Check:
    place = next(path for path in (store, *store.absolute().parents) if path.is_dir())
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"0")
    except OSError as error:
        return Check(
            "disk",
            "fail",
            f"{place} cannot be written ({error.strerror})",
            "let this user write there, or name another folder by --spool",
            7,
        )
    free = shutil.disk_usage(place).free
    word, least = (COPIES * largest, COPIES * largest) if largest is not None else ROOM
    told = f"{free / 1e9:.3g} GB free at {place}" + (
        f", {COPIES} times the largest submodel are {word / 1e6:.3g} MB"
        if largest is not None
        else ""
    )
    if free < least:
        return Check(
            "disk", "fail", told, "make room, or name a folder on another disk by --spool", 7
        )
    return (
        Check("disk", "warn", told, "little for weights and updates: make room")
        if free < word
        else Check("disk", "ok", told)
    )


def memory(smallest: int | None) -> Check:
    free = available_memory(Limits())
    told = f"{free / 1e9:.3g} GB free for this process"
    if smallest is not None:
        told += (
            f", {SHARE:.0%} of it may be trained in; the least submodel needs "
            f"{smallest / 1e6:.3g} MB"
        )
        if SHARE * free < smallest:
            return Check(
                "memory",
                "fail",
                told,
                "stop other programs, or ask the coordinator for smaller submodels (method.widths)",
                6,
            )
    if free < LEAST[1]:
        return Check(
            "memory", "fail", told, "stop other programs, or raise this process's limit", 6
        )
    return (
        Check("memory", "warn", told, "PyTorch alone takes most of it")
        if free < LEAST[0]
        else Check("memory", "ok", told)
    )


def runtime(package: str) -> Check:
    """Loads it in a process of its own: on a processor that it was not built for, it ends that."""
    try:
        ended = subprocess.run(  # noqa: S603
            [sys.executable, "-c", TRIAL[package]],
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Check(
            package,
            "fail",
            f"did not load within {LONGEST:.0f} s",
            "the device is too busy, or its disk too slow",
            4,
        )
    if ended.returncode == 0:
        return Check(package, "ok", ended.stdout.strip())
    if "ModuleNotFoundError" in ended.stderr and f"'{package}'" in ended.stderr:
        if package == "torch":
            return Check(package, "warn", "not installed: this device can answer, not train", TRAIN)
        return Check(package, "fail", "not installed", "pip install espalier", 4)
    if ended.returncode < 0:
        return Check(
            package,
            "fail",
            f"ended by signal {-ended.returncode}",
            f"it is not built for this processor: install another build of {package}",
            4,
        )
    return Check(
        package,
        "fail",
        ended.stderr.strip().splitlines()[-1] if ended.stderr.strip() else "fails",
        f"install {package} anew",
        4,
    )


def limits() -> Check:
    cpus, bound, bits = available_cpus(Limits()), memory_limit(Limits()), 8 * struct.calcsize("P")
    held = "no limit of memory" if math.isinf(bound) else f"at most {bound / 1e6:.4g} MB of memory"
    told = f"{cpus:g} of {os.cpu_count()} processors, {held}, {bits} bits"
    if bits < 64:
        return Check("limits", "fail", told, "install a 64-bit system", 4)
    return (
        Check("limits", "warn", told, "less than half a processor: rounds will be slow")
        if cpus < 0.5
        else Check("limits", "ok", told)
    )


def power() -> Check:
    found = read_power()
    if found == "battery":
        return Check("power", "warn", "battery", "plug it in, or join with --when charging")
    return Check("power", "ok", found or "this machine does not say")


def heat(read: Heat) -> Check:
    said = [
        "" if read.celsius is None else f"{read.celsius:.0f} C",
        "" if read.mhz is None else f"{read.mhz:.0f} MHz",
        "held back now"
        if read.throttled
        else "was held back since it started"
        if read.ever
        else "",
    ]
    told = ", ".join(word for word in said if word)
    if read.throttled or read.ever:
        return Check(
            "heat",
            "warn",
            told,
            "by heat or a weak supply: cool it, or give it a better one; its times will vary",
        )
    return Check("heat", "ok", told or "this machine does not say")
