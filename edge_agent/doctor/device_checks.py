"""Check the device for `edge-agent doctor`: disk, memory, runtimes, limits, power, heat, clock."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from edge_agent.device.board import read_power
from edge_agent.device.heat_and_load import Heat, read_heat
from edge_agent.device.process_limits import (
    Limits,
    count_cpus,
    find_memory_limit,
    measure_free_memory,
)
from federated.defaults import MEMORY_FRACTION
from federated.install_command import pip_command
from federated.wire import messages
from federated.wire.checks.check_result import Check, State
from federated.wire.checks.machine_checks import check_disk, check_namesake, check_runtime

__all__ = ["check_device", "check_skew"]

# bytes of memory below which there is a warning and a failure, if no run states its needs
MEMORY = 400e6, 150e6  # PyTorch takes most of the first


def check_device(store: Path, card: messages.Run | None) -> Iterator[Check]:
    """Run the checks. store: folder for weights and updates; card: of the run to join, if known."""
    disk, memory = compute_required_bytes(card) or (None, None)
    yield from check_namesake()
    yield check_disk(store, "--spool", disk)
    yield check_memory(memory)
    found = (
        "not installed: this device runs inference, and trains only with graphs that a coordinator "
        "exports"
    )
    yield check_runtime("torch", Check("torch", "warn", found, pip_command("train")))
    absent = Check("onnxruntime", "fail", "not installed", pip_command(), 4)
    yield check_runtime("onnxruntime", absent)
    yield check_limits()
    yield check_power()
    yield check_heat(read_heat())


def compute_required_bytes(card: messages.Run | None) -> tuple[int, int] | None:
    """Return the bytes of the largest submodel, and those of memory to train the smallest submodel
    that the run times; None if unknown.
    """
    if card is None or card.network is None or not card.calibration:
        return None
    try:
        from models.cost import cost
        from models.submodel_building import full

        return cost(full(card.network)).bytes, min(
            cost(submodel, card.batch).memory for submodel in card.calibration
        )
    except Exception:
        # no PyTorch, or a network that is not installed here: the checks work without this
        return None


def check_memory(smallest: int | None) -> Check:
    """Check the free memory. smallest: bytes to train the smallest submodel."""
    free = measure_free_memory(Limits())
    found = f"{free / 1e9:.3g} GB free for this process"
    if smallest is not None:
        found += (
            f", {MEMORY_FRACTION:.0%} of it for training; the smallest submodel needs "
            f"{smallest / 1e6:.3g} MB"
        )
        if MEMORY_FRACTION * free < smallest:
            return Check(
                "memory",
                "fail",
                found,
                "stop other programs, or configure smaller submodels (method.widths)",
                6,
            )
    if free < MEMORY[1]:
        return Check(
            "memory", "fail", found, "stop other programs, or raise this process's limit", 6
        )
    if free < MEMORY[0]:
        return Check("memory", "warn", found, "PyTorch alone takes most of it")
    return Check("memory", "ok", found)


def check_limits() -> Check:
    """Check the processors and the word size, and report the memory limit."""
    cpus, limit, bits = count_cpus(Limits()), find_memory_limit(Limits()), 8 * struct.calcsize("P")
    memory = "no memory limit" if math.isinf(limit) else f"at most {limit / 1e6:.4g} MB of memory"
    found = f"{cpus:g} of {os.cpu_count()} processors, {memory}, {bits} bits"
    if bits < 64:
        return Check("limits", "fail", found, "install a 64-bit system", 4)
    if cpus < 0.5:
        return Check("limits", "warn", found, "less than half a processor: rounds will be slow")
    return Check("limits", "ok", found)


def check_power() -> Check:
    source = read_power()
    if source == "battery":
        return Check("power", "warn", source, "plug it in, or join with --when charging")
    return Check("power", "ok", source or "unknown")


def check_heat(heat: Heat) -> Check:
    """Report temperature and clock, and whether the device throttles or has throttled."""
    parts = [] if heat.celsius is None else [f"{heat.celsius:.0f} C"]
    parts += [] if heat.mhz is None else [f"{heat.mhz:.0f} MHz"]
    if heat.throttled or heat.ever:
        parts.append("throttled" if heat.throttled else "has throttled since start-up")
        return Check(
            "heat",
            "warn",
            ", ".join(parts),
            "improve the cooling or the power supply: training times will vary",
        )
    return Check("heat", "ok", ", ".join(parts) or "unknown")


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
