"""All checks of `coordinator doctor`: a broker, if its address is given, and this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

from coordinator.broker.external_broker_checks import examine_broker
from coordinator.broker.mosquitto_config import find_mosquitto, read_version
from federated.install_command import pip_command
from federated.wire.checks.check_result import Check
from federated.wire.checks.machine_checks import (
    check_clock,
    check_disk,
    check_namesake,
    check_runtime,
)

__all__ = ["examine"]

MEMORY = 1e9  # bytes: PyTorch takes 0.4 GB, and the model and its updates a few times their size
EXTRAS = "coordinator,export"


def examine(broker: str | None, run: str | None, runs: Path) -> Iterator[Check]:
    """Run all checks and yield each result at once. runs: folder of runs. Raises UsageError for a
    malformed address, ConfigError.
    """
    if broker is not None:
        yield from examine_broker(broker, run)
    yield from check_namesake()
    yield check_disk(runs, "--runs")
    yield check_memory()
    yield check_runtime("torch", Check("torch", "fail", "not installed", pip_command(EXTRAS), 4))
    absent = "not installed: this machine cannot export networks"
    yield check_runtime("onnx", Check("onnx", "warn", absent, pip_command(EXTRAS)))
    if broker is None:
        yield check_mosquitto()
    yield check_clock()


def check_memory() -> Check:
    """Check the machine's free memory, without limits of a container."""
    free = psutil.virtual_memory().available
    found = f"{free / 1e9:.3g} GB free on this machine"
    if free < MEMORY:
        return Check("memory", "warn", found, "stop other programs, or use a smaller model")
    return Check("memory", "ok", found)


def check_mosquitto() -> Check:
    """Check for the broker that runs start by default."""
    if (program := find_mosquitto()) is None:
        return Check(
            "mosquitto",
            "warn",
            "not installed: runs start the embedded broker, which other machines cannot reach",
            "apt install mosquitto, brew install mosquitto, or set --broker",
        )
    return Check("mosquitto", "ok", f"{read_version(program)}, {program}")
